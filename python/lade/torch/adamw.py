# SPDX-License-Identifier: Apache-2.0
"""lade.torch.AdamW: an optimizer whose state lies in liblade, on the host or on a drive, exact or compact.

torch allocates no byte of state. The update is lade/adam.h's: one written sequence of operations, with equal bits
wherever the state lies. FP32 parameters are their own master. BF16 parameters have the other 16 bits of an exact
master beside them. The moments are FP32, BF16, or 8 bits with a scale for each block.
"""
import ctypes as c

import torch

from ..errors import Error
from ..library import ErrorText, check, library
from . import tiers

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_MOMENTS = {"fp32": 0, "bf16": 1, "8bit": 2}
_ARRAYS = ("residual", "exp_avg", "exp_avg_sq", "exp_avg_scales", "exp_avg_sq_scales")
_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}


class _Shard(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("dtype", c.c_int), ("grad_dtype", c.c_int), ("moments", c.c_int),
                ("master", c.c_int), ("n_elements", c.c_int64), ("first_element", c.c_uint64), ("param", c.c_uint32),
                ("has_decay", c.c_bool), ("grad", c.c_void_p), ("weight", c.c_void_p), ("residual", c.c_void_p),
                ("m", c.c_void_p), ("v", c.c_void_p), ("m_scales", c.c_void_p), ("v_scales", c.c_void_p)]


class _Bytes(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.c_uint64) for name in
                                                ("grad", "weight", "residual", "m", "v", "m_scales", "v_scales")]


class _Step(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("seed", c.c_uint64), ("step", c.c_uint32), ("lr", c.c_double),
                ("beta1", c.c_double), ("beta2", c.c_double), ("eps", c.c_double), ("weight_decay", c.c_double),
                ("grad_scale", c.c_double)]


class _Moments:
    """State of one parameter: arrays one behind another in one buffer outside of torch's allocator."""

    def __init__(self, owner, param, number):
        self.owner, self.n, self.number, self.step, self.shape = owner, param.numel(), number, 0, param.shape
        self.dtype = _DTYPES[param.dtype]
        sizes = _Bytes(c.sizeof(_Bytes))
        shard = self._shard(None, None, 0)
        check(owner.lib.lade_adam_get_bytes(c.byref(shard), c.byref(sizes), c.byref(owner.error)), owner.error,
              "lade_adam_get_bytes")
        wanted = (sizes.residual, sizes.m, sizes.v, sizes.m_scales, sizes.v_scales)
        self.sizes, self.places, at = wanted, [], 0
        for n in wanted:
            self.places.append(at)
            at += (n + 63) // 64 * 64
        self.n_bytes, self.buffer = max(at, 64), None
        self.name = b"state %d" % number

    def _shard(self, param, grad, base):
        owner = self.owner
        shard = _Shard(c.sizeof(_Shard), self.dtype, 0, owner.moments, 0, self.n, 0, self.number, True)
        if param is not None:
            shard.grad_dtype = _DTYPES[grad.dtype] if grad is not None else 0
            shard.grad, shard.weight = grad.data_ptr() if grad is not None else None, param.data_ptr()
            fields = ("residual", "m", "v", "m_scales", "v_scales")
            for field, place, n in zip(fields, self.places, self.sizes):
                setattr(shard, field, base + place if n else None)
        return shard

    def create(self, weight):
        """Set the first state from the weights."""
        self.buffer = tiers.Host(self.n_bytes)
        owner, master = self.owner, weight.to(torch.float32).contiguous()
        shard = self._shard(weight, None, self.buffer.address)
        check(owner.lib.lade_adam_set(owner.adam, c.byref(shard), c.c_void_p(master.data_ptr()), c.byref(owner.error)),
              owner.error, "lade_adam_set")
        self.release()

    def fetch(self):
        """Bring the arrays to memory; return their address."""
        if self.buffer is None:
            self.buffer = tiers.Host(self.n_bytes)
            self.owner.store.get(self.name, self.buffer.address, self.n_bytes)
        return self.buffer.address

    def release(self):
        """Put the arrays to the store, if they live there."""
        if self.owner.store is not None:
            self.owner.store.put(self.name, self.buffer.address, self.n_bytes)
            self.buffer = None

    def update(self, weight, grad, step):
        owner, shard = self.owner, self._shard(weight, grad, self.fetch())
        step.step = self.step
        check(owner.lib.lade_adam_update(owner.adam, c.byref(shard), c.byref(step), c.byref(owner.error)), owner.error,
              "lade_adam_update")
        self.step += 1
        self.release()

    def save(self):
        """Return the arrays as tensors of their own."""
        base, found = self.fetch(), {}
        for key, place, n in zip(_ARRAYS, self.places, self.sizes):
            if n:
                raw = torch.frombuffer(bytearray(c.string_at(base + place, n)), dtype=torch.uint8)
                dtype = torch.int16 if key == "residual" else torch.uint8 if "scales" in key else _TORCH[self.owner.form]
                found[key] = raw.view(dtype)
                if found[key].numel() == self.n:
                    found[key] = found[key].reshape(self.shape)
        if self.owner.store is not None:
            self.buffer = None
        return {"step": torch.tensor(float(self.step)), **found}

    def load(self, saved):
        self.buffer, self.step = tiers.Host(self.n_bytes), int(saved["step"])
        for key, place, n in zip(_ARRAYS, self.places, self.sizes):
            if not n:
                continue
            if key not in saved:
                raise Error(f"the saved state has no {key}; it was saved with another form of state")
            flat = saved[key].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            if flat.numel() != n:
                raise Error(f"the saved {key} has {flat.numel()} bytes instead of {n}: another form or another shape")
            c.memmove(self.buffer.address + place, flat.data_ptr(), n)
        self.release()


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov, Hutter 2019) with its state in liblade.

    @state: "fp32" changes no number; "bf16" and "8bit" round stochastically and reproducibly. @where: "host", or
    "store:DIR" with the bytes of the drive taken when the first step begins. Use it as torch's; it also works inside of
    lade.torch.step. One thread at a time.
    """
    lade_per_param = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, state="fp32", where="host",
                 seed=0):
        if state not in _MOMENTS:
            raise ValueError(f"state is {state!r}: expected \"fp32\", \"bf16\" or \"8bit\"")
        if where != "host" and not where.startswith("store:"):
            raise ValueError(f"where is {where!r}: expected \"host\" or \"store:DIR\"")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.form, self.where, self.seed = state, where, seed
        self.shared = _Shared(self, state, where)

    def _parts(self, param, group):
        """Return the local tensors of a parameter and its gradient, on the CPU and contiguous."""
        local = lambda t: t.to_local() if hasattr(t, "to_local") else t
        weight, grad = local(param.detach()), local(param.grad.detach())
        if weight.dtype not in _DTYPES:
            raise Error(f"a parameter of {weight.dtype}: expected torch.float32 or torch.bfloat16")
        if grad.is_sparse:
            raise Error("sparse gradients are not supported")
        if grad.dtype not in _DTYPES:
            grad = grad.float()
        return weight, grad.cpu().contiguous()

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient. pre: gradients are finite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = map(float, group["betas"])
            step = _Step(c.sizeof(_Step), self.seed, 0, float(group["lr"]), beta1, beta2, float(group["eps"]),
                         float(group["weight_decay"]), 0.0)
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group, step)
        return loss

    def _update(self, param, group, step):
        weight, grad = self._parts(param, group)
        host = weight if weight.device.type == "cpu" and weight.is_contiguous() else weight.cpu().contiguous()
        moments = self.state[param].get("lade")
        if moments is None:
            moments = self.state[param]["lade"] = self.shared.moments_of(param, weight)
            moments.create(host)
        moments.update(host, grad, step)
        if host is not weight:
            weight.copy_(host)
        torch.autograd.graph.increment_version(param)

    def state_dict(self):
        """Return torch's format; the moments have the dtype of their form."""
        saved = super().state_dict()
        saved["state"] = {i: state["lade"].save() for i, state in saved["state"].items() if "lade" in state}
        return saved

    @torch.no_grad()
    def load_state_dict(self, state_dict):
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        params = [p for group in self.param_groups for p in group["params"]]
        for i, saved in state_dict["state"].items():
            weight = params[i].to_local() if hasattr(params[i], "to_local") else params[i]
            moments = self.state[params[i]]["lade"] = self.shared.moments_of(params[i], weight)
            moments.load(saved)


    def snapshot(self):
        """Return copies of all state, for restore()."""
        return {param: state["lade"].save() for param, state in self.state.items() if "lade" in state}

    def restore(self, copies):
        """Bring the state back to a snapshot; state that it does not have is dropped."""
        for param in list(self.state):
            if param in copies:
                self.state[param]["lade"].load(copies[param])
            else:
                del self.state[param]


class _Shared:
    """The library's side of an optimizer; copies of the optimizer for single parameters share it."""

    def __init__(self, optimizer, form, where):
        self.lib, self.error, self.form, self.moments = library(), ErrorText(), form, _MOMENTS[form]
        self.lib.lade_adam_destroy.argtypes = [c.c_void_p]
        self.lib.lade_adam_destroy.restype = None
        self.adam, self.store, self.store_dir = c.c_void_p(), None, where.partition(":")[2]
        self.numbers, self.optimizer_params = {}, [p for g in optimizer.param_groups for p in g["params"]]
        check(self.lib.lade_adam_create(torch.get_num_threads(), c.byref(self.error), c.byref(self.adam)), self.error,
              "lade_adam_create")

    def __del__(self):
        if getattr(self, "adam", None):
            self.lib.lade_adam_destroy(self.adam)
            self.adam = None

    def moments_of(self, param, weight):
        """Return new state for a parameter. A parameter outside of the optimizer (a priced one) stays in memory."""
        number = next((i for i, p in enumerate(self.optimizer_params) if p is param), None)
        if number is None:
            return _Moments(_Alone(self), weight, 0)
        if self.store_dir and self.store is None:
            bytes_each = [(_Moments(_Alone(self), p, 0).n_bytes + 65535) // 65536 * 65536
                          for p in map(_local, self.optimizer_params) if p.dtype in _DTYPES and p.requires_grad]
            self.store = tiers.Store(self.store_dir, sum(bytes_each))
        return _Moments(self, weight, number)


def _local(param):
    return param.to_local() if hasattr(param, "to_local") else param


class _Alone:
    """A view of _Shared without its store."""

    def __init__(self, shared):
        self.lib, self.error, self.form, self.moments = shared.lib, shared.error, shared.form, shared.moments
        self.adam, self.store, self.shared = shared.adam, None, shared
