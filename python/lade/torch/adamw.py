# SPDX-License-Identifier: Apache-2.0
"""lade.torch.AdamW: an optimizer whose state lies in liblade, on the host or on a drive, exact or compact.

torch allocates no byte of state. The update is lade/adam.h's: one written sequence of operations, with equal bits
wherever the state lies. FP32 parameters are their own master. BF16 parameters have the other 16 bits of an exact
master beside them. The moments are FP32, BF16, or 8 bits with a scale for each block.

On a store, a parameter's state is cut into pieces. A step streams them through a ring of buffers: while one piece is
updated, others are read ahead and written back (lade_tensor_store_submit). The cut changes no bit. State smaller than a
transfer is worth (a bias, a norm) stays in memory.
"""
import collections
import ctypes as c

import torch

from ..errors import Error
from ..library import ErrorText, check, library
from .running import tiers

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_MOMENTS = {"fp32": 0, "bf16": 1, "8bit": 2}
_ARRAYS = ("residual", "exp_avg", "exp_avg_sq", "exp_avg_scales", "exp_avg_sq_scales")
_PIECE_ELEMENTS = {"fp32": 1 << 20, "bf16": 2 << 20, "8bit": 4 << 20}  # of a piece on a store: 8 to 16 MB, in whole shards
_SMALL_BYTES = 64 << 10    # state on a store is larger: a busy drive takes as long for less as for a megabyte
_RING = 12                 # pieces of a step in memory, about half of them being read and half being written
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


class _Piece:
    """State of one range of a parameter: arrays one after another in one buffer outside of torch's allocator."""

    def __init__(self, owner, param, number, first, n):
        self.owner, self.first, self.n, self.number, self.dtype = owner, first, n, number, _DTYPES[param.dtype]
        self.element_bytes, self.buffer = param.element_size(), None
        self.shard = _Shard(c.sizeof(_Shard), self.dtype, 0, owner.moments, 0, n, first, number, True)
        sizes = _Bytes(c.sizeof(_Bytes))
        check(owner.lib.lade_adam_get_bytes(c.byref(self.shard), c.byref(sizes), c.byref(owner.error)), owner.error,
              "lade_adam_get_bytes")
        self.sizes, self.places, at = (sizes.residual, sizes.m, sizes.v, sizes.m_scales, sizes.v_scales), [], 0
        for n_bytes in self.sizes:
            self.places.append(at)
            at += (n_bytes + 63) // 64 * 64
        self.n_bytes = (max(at, 64) + 4095) // 4096 * 4096  # whole blocks: the drive reads and writes the buffer itself
        self.name = b"state %d.%d" % (number, first)

    def shard_at(self, base, weight, grad):
        """Return the shard whose state begins at address @base; @weight and @grad are of the whole parameter."""
        shard = self.shard
        shard.weight = weight.data_ptr() + self.first * self.element_bytes
        if grad is not None:
            shard.grad_dtype = _DTYPES[grad.dtype]
            shard.grad = grad.data_ptr() + self.first * grad.element_size()
        shard.residual, shard.m, shard.v, shard.m_scales, shard.v_scales = [
            base + place if n else None for place, n in zip(self.places, self.sizes)]
        return shard


class _Moments:
    """State of one parameter."""

    def __init__(self, owner, param, number):
        self.owner, self.n, self.step, self.shape = owner, param.numel(), 0, param.shape
        cut = _PIECE_ELEMENTS[owner.form] if owner.store is not None else max(self.n, 1)
        self.pieces = [_Piece(owner, param, number, first, min(cut, self.n - first)) for first in range(0, self.n, cut)]
        self.n_bytes = sum(piece.n_bytes for piece in self.pieces)

    def create(self, weight):
        """Set the first state from the weights."""
        owner, master = self.owner, weight.to(torch.float32).contiguous()
        for piece in self.pieces:
            room = tiers.Host(piece.n_bytes)
            shard = piece.shard_at(room.address, weight, None)
            check(owner.lib.lade_adam_set(owner.adam, c.byref(shard), c.c_void_p(master.data_ptr() + 4 * piece.first),
                                          c.byref(owner.error)), owner.error, "lade_adam_set")
            self._keep(piece, room)

    def _keep(self, piece, room):
        if self.owner.store is None:
            piece.buffer = room
        else:
            self.owner.store.put(piece.name, (room.address, piece.n_bytes))

    def save(self):
        """Return the arrays as tensors of their own."""
        parts = [[] for _ in _ARRAYS]
        for piece in self.pieces:
            room = piece.buffer
            if room is None:
                room = tiers.Host(piece.n_bytes)
                self.owner.store.get(piece.name, (room.address, piece.n_bytes))
            for part, place, n in zip(parts, piece.places, piece.sizes):
                if n:
                    part.append(torch.frombuffer(bytearray(c.string_at(room.address + place, n)), dtype=torch.uint8))
        found = {}
        for key, part in zip(_ARRAYS, parts):
            if part:
                dtype = torch.int16 if key == "residual" else torch.uint8 if "scales" in key else _TORCH[self.owner.form]
                found[key] = (torch.cat(part) if len(part) > 1 else part[0]).view(dtype)
                if found[key].numel() == self.n:
                    found[key] = found[key].reshape(self.shape)
        return {"step": torch.tensor(float(self.step)), **found}

    def load(self, saved):
        flat = {}
        for key, n in zip(_ARRAYS, [sum(sizes) for sizes in zip(*[piece.sizes for piece in self.pieces])]):
            if not n:
                continue
            if key not in saved:
                raise Error(f"the saved state has no {key}; it was saved with another form of state")
            flat[key] = saved[key].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            if flat[key].numel() != n:
                raise Error(f"the saved {key} has {flat[key].numel()} bytes instead of {n}: another form or another "
                            "shape")
        self.step, at = int(saved["step"]), dict.fromkeys(_ARRAYS, 0)
        for piece in self.pieces:
            room = tiers.Host(piece.n_bytes)
            for key, place, n in zip(_ARRAYS, piece.places, piece.sizes):
                if n:
                    c.memmove(room.address + place, flat[key].data_ptr() + at[key], n)
                    at[key] += n
            self._keep(piece, room)


class _Ring:
    """Buffers through which the pieces of a step are read, updated and written back."""

    def __init__(self, store, n_bytes):
        self.store, self.rooms = store, [tiers.Host(n_bytes) for _ in range(_RING)]

    def run(self, pieces, update):
        """Call @update(piece, address) for each piece, in order. A failure ends it after the transfers in flight."""
        free, reading, writing, ahead = list(self.rooms), collections.deque(), collections.deque(), iter(pieces)
        piece = next(ahead, None)
        try:
            while piece is not None or reading:
                while piece is not None and free:
                    room = free.pop()
                    reading.append((piece, room, self.store.submit_get(piece.name, (room.address, piece.n_bytes))))
                    piece = next(ahead, None)
                if reading and (piece is None or len(reading) > _RING // 2 or not writing):
                    now, room, request = reading.popleft()
                    request.wait()
                    update(now, room.address)
                    writing.append((room, self.store.submit_put(now.name, (room.address, now.n_bytes))))
                else:
                    room, request = writing.popleft()
                    request.wait()
                    free.append(room)
        finally:
            self._drain([request for _, _, request in reading] + [request for _, request in writing])

    @staticmethod
    def _drain(requests):
        """Wait for all of @requests, then raise the first failure."""
        fault = None
        for request in requests:
            try:
                request.wait()
            except Error as failed:
                fault = fault or failed
        if fault is not None:
            raise fault


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
            self.shared.run(self._update_begin(param, group, step) for param in group["params"]
                            if param.grad is not None)
        return loss

    def _update_begin(self, param, group, step):
        weight, grad = self._parts(param, group)
        host = weight if weight.device.type == "cpu" and weight.is_contiguous() else weight.cpu().contiguous()
        moments = self.state[param].get("lade")
        if moments is None:
            moments = self.state[param]["lade"] = self.shared.moments_of(param, weight)
            moments.create(host)
        return _Update(moments, param, weight, host, grad, step)

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


    def state_bytes(self):
        """Return the bytes of all state."""
        return sum(state["lade"].n_bytes for state in self.state.values() if "lade" in state)

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
        self.ring, self.optimizer_params = None, [p for g in optimizer.param_groups for p in g["params"]]
        self.numbers = {id(p): i for i, p in enumerate(self.optimizer_params)}
        check(self.lib.lade_adam_create(torch.get_num_threads(), c.byref(self.error), c.byref(self.adam)), self.error,
              "lade_adam_create")

    def __del__(self):
        if getattr(self, "adam", None):
            self.lib.lade_adam_destroy(self.adam)
            self.adam = None

    def moments_of(self, param, weight):
        """Return new state for a parameter. It is in memory if it is small, or if the optimizer lacks the parameter (a
        priced one)."""
        number = self.numbers.get(id(param))
        if number is not None and self.store_dir and self.store is None:
            self._store_open()
        here = _Moments(_Alone(self), weight, number or 0)
        return here if number is None or self.store is None or here.n_bytes <= _SMALL_BYTES else _Moments(self, weight, number)

    def _store_open(self):
        """Take the bytes of all parameters' state from the drive, and a ring of the largest piece."""
        cut = _Alone(self)
        cut.store = True  # pieces as on a store
        moments = [_Moments(cut, _local(p), 0) for p in self.optimizer_params if p.dtype in _DTYPES and p.requires_grad]
        pieces = [piece for one in moments if one.n_bytes > _SMALL_BYTES for piece in one.pieces]
        n_bytes = sum((piece.n_bytes + 65535) // 65536 * 65536 for piece in pieces)
        self.store = tiers.Store(self.store_dir, max(n_bytes, 65536))
        self.ring = _Ring(self.store, max((piece.n_bytes for piece in pieces), default=4096))

    def run(self, updates):
        """Run updates of parameters; those whose state is on the store stream through the ring, in order."""
        away = []
        if self.store_dir:  # all begin before one changes: a state without room on the drive leaves the parameters as they are
            updates = list(updates)
        for update in updates:
            if update.moments.owner.store is None:
                for piece in update.moments.pieces:
                    update.run(piece, piece.buffer.address)
                update.end()
            else:
                away.append(update)
        of = {id(piece): update for update in away for piece in update.moments.pieces}
        if of:
            self.ring.run([piece for update in away for piece in update.moments.pieces],
                          lambda piece, address: of[id(piece)].run(piece, address))
        for update in away:
            update.end()


class _Update:
    """The update of one parameter in one step."""

    def __init__(self, moments, param, weight, host, grad, step):
        self.moments, self.param, self.weight, self.host, self.grad = moments, param, weight, host, grad
        self.step, self.number = step, moments.step

    def run(self, piece, address):
        """Update one piece whose state is at @address."""
        owner, shard = self.moments.owner, piece.shard_at(address, self.host, self.grad)
        self.step.step = self.number
        check(owner.lib.lade_adam_update(owner.adam, c.byref(shard), c.byref(self.step), c.byref(owner.error)),
              owner.error, "lade_adam_update")

    def end(self):
        self.moments.step += 1
        if self.host is not self.weight:
            self.weight.copy_(self.host)
        torch.autograd.graph.increment_version(self.param)


def _local(param):
    return param.to_local() if hasattr(param, "to_local") else param


class _Alone:
    """A view of _Shared without its store."""

    def __init__(self, shared):
        self.lib, self.error, self.form, self.moments = shared.lib, shared.error, shared.form, shared.moments
        self.adam, self.store, self.shared = shared.adam, None, shared
