# SPDX-License-Identifier: Apache-2.0
"""Training steps of decoders with equal layers (Llama's shape), from hundreds to hundreds of thousands of ops.

Each layer has 16 forward and 26 backward ops, and one update for each of its 9 parameters. Weights and gradients have
2 bytes an element, Adam's state 12. Products have separate ops for the gradients of inputs and of weights. Attention
keeps its output and one number a row and head, as fused kernels do. Storages of all layers have common classes.
"""
from step import BYTES_PER_NS, LAUNCH_NS, Step

HALF, STATE = 2, 12      # bytes of an element: activations and weights; master weight and two moments
FLOPS_PER_NS = 100000    # of products in 16 bits
HEAD_CHANNELS = 128


class Decoder(Step):
    """A decoder's step. Its backward ops are listed by hand, because every layer has the same ones."""

    def __init__(self, batch, layers, width, seq_len, vocabulary, has_classes, state_tier):
        super().__init__(has_classes)
        self.state_tier = state_tier
        self.rows, self.seq_len = batch * seq_len, seq_len
        self.layers, self.width, self.hidden, self.vocabulary = layers, width, width * 8 // 3 // 64 * 64, vocabulary
        self.heads = max(1, width // HEAD_CHANNELS)
        self.label = ""
        self.pending = []  # (name, weights, gradient), of which each awaits its update

    def made(self, name, n_bytes):
        class_name = name if self.label else None
        return self.storage(self.label + name, n_bytes, class_name=class_name)

    def rows_of(self, name, channels):
        return self.made(name, self.rows * channels * HALF)

    def weights(self, name, elements):
        class_name = name if self.label else None
        return self.storage(self.label + name, elements * HALF, is_given=True, class_name=class_name)

    def timed(self, name, reads, writes, flops=0):
        traffic = (self.bytes_of(set(reads)) + self.bytes_of(writes)) // BYTES_PER_NS
        self.op(self.label + name, reads, writes, LAUNCH_NS + max(traffic, flops // FLOPS_PER_NS))

    def product(self, name, x, w, rows_in, channels_out):
        y = self.rows_of(name, channels_out)
        self.timed(name, [x, w], [y], 2 * self.rows * rows_in * channels_out)
        return y

    def product_backward(self, name, g, x, w, n_in, n_out):
        """Return the gradient of @x."""
        dx = self.rows_of(f"{name}.dx", n_in)
        self.timed(f"{name}.dgrad", [g, w], [dx], 2 * self.rows * n_in * n_out)
        self.timed(f"{name}.wgrad", [g, x], [self.gradient(name, w)], 2 * self.rows * n_in * n_out)
        return dx

    def gradient(self, name, w):
        gradient = self.made(f"{name}.dw", self.storages[w]["bytes"])
        self.pending.append((self.label + name, w, gradient))
        return gradient

    def plus(self, name, a, b, channels):
        total = self.rows_of(name, channels)
        self.timed(name, [a, b], [total])
        return total

    # ---- one layer ----

    def layer_weights(self):
        d, f = self.width, self.hidden
        sizes = {"n1": d, "q": d * d, "k": d * d, "v": d * d, "o": d * d, "n2": d, "gate": d * f, "up": d * f,
                 "down": d * f}
        return {name: self.weights(f"{name}.w", size) for name, size in sizes.items()}

    def norm(self, name, x, w):
        y, scale = self.rows_of(name, self.width), self.made(f"{name}.scale", self.rows * 4)
        self.timed(name, [x, w], [y, scale])
        return y, scale

    def norm_backward(self, name, g, x, w, scale):
        dx = self.rows_of(f"{name}.dx", self.width)
        self.timed(f"{name}.bwd", [g, x, w, scale], [dx, self.gradient(name, w)])
        return dx

    def attention_flops(self):
        return 2 * self.rows * self.seq_len * self.width  # causal: half of 4 rows * seq_len * width

    def layer(self, x):
        """Add a layer's forward ops; return its output and the values that its backward reads."""
        d, f, w = self.width, self.hidden, self.layer_weights()
        s = {"w": w, "x": x}
        s["n1"], s["n1.scale"] = self.norm("n1", x, w["n1"])
        q, k = self.product("q", s["n1"], w["q"], d, d), self.product("k", s["n1"], w["k"], d, d)
        s["v"] = self.product("v", s["n1"], w["v"], d, d)
        s["qr"], s["kr"] = self.rows_of("q.rope", d), self.rows_of("k.rope", d)
        self.timed("q.rope", [q], [s["qr"]])
        self.timed("k.rope", [k], [s["kr"]])
        s["a"], s["lse"] = self.rows_of("attention", d), self.made("attention.lse", self.rows * self.heads * 4)
        self.timed("attention", [s["qr"], s["kr"], s["v"]], [s["a"], s["lse"]], self.attention_flops())
        s["mid"] = self.plus("mid", x, self.product("o", s["a"], w["o"], d, d), d)
        s["n2"], s["n2.scale"] = self.norm("n2", s["mid"], w["n2"])
        s["gate"] = self.product("gate", s["n2"], w["gate"], d, f)
        s["up"] = self.product("up", s["n2"], w["up"], d, f)
        s["silu"], s["act"] = self.rows_of("silu", f), self.rows_of("act", f)
        self.timed("silu", [s["gate"]], [s["silu"]])
        self.timed("act", [s["silu"], s["up"]], [s["act"]])
        return self.plus("out", s["mid"], self.product("down", s["act"], w["down"], f, d), d), s

    def mlp_backward(self, s, g):
        """Return the gradient of the layer's middle."""
        d, f, w = self.width, self.hidden, s["w"]
        dact = self.product_backward("down", g, s["act"], w["down"], f, d)
        dsilu, dup = self.rows_of("silu.d", f), self.rows_of("up.d", f)
        self.timed("act.bwd", [dact, s["silu"], s["up"]], [dsilu, dup])
        dgate = self.rows_of("gate.d", f)
        self.timed("silu.bwd", [dsilu, s["gate"]], [dgate])
        dn2 = self.plus("n2.d", self.product_backward("up", dup, s["n2"], w["up"], d, f),
                        self.product_backward("gate", dgate, s["n2"], w["gate"], d, f), d)
        return self.plus("mid.d", g, self.norm_backward("n2", dn2, s["mid"], w["n2"], s["n2.scale"]), d)

    def layer_backward(self, s, g):
        """Return the gradient of the layer's input."""
        d, w = self.width, s["w"]
        dmid = self.mlp_backward(s, g)
        da = self.product_backward("o", dmid, s["a"], w["o"], d, d)
        dqr, dkr, dv = (self.rows_of(name, d) for name in ("q.rope.d", "k.rope.d", "v.d"))
        self.timed("attention.bwd", [da, s["qr"], s["kr"], s["v"], s["a"], s["lse"]], [dqr, dkr, dv],
                   5 * self.attention_flops() // 2)
        dq, dk = self.rows_of("q.d", d), self.rows_of("k.d", d)
        self.timed("q.rope.bwd", [dqr], [dq])
        self.timed("k.rope.bwd", [dkr], [dk])
        dn1 = self.plus("n1.d1", self.product_backward("v", dv, s["n1"], w["v"], d, d),
                        self.product_backward("k", dk, s["n1"], w["k"], d, d), d)
        dn1 = self.plus("n1.d", dn1, self.product_backward("q", dq, s["n1"], w["q"], d, d), d)
        return self.plus("x.d", dmid, self.norm_backward("n1", dn1, s["x"], w["n1"], s["n1.scale"]), d)

    # ---- the step ----

    def head(self, x):
        """Add the last norm, the head and the loss with their backward; return the gradient of @x."""
        d, vocabulary = self.width, self.vocabulary
        wn, wh = self.weights("norm.w", d), self.weights("head.w", d * vocabulary)
        y, scale = self.norm("norm", x, wn)
        logits = self.product("head", y, wh, d, vocabulary)
        loss, lse = self.storage("loss", 4), self.storage("lse", self.rows * 4)
        self.timed("loss", [logits, self.target], [loss, lse])
        self.kept.append(loss)
        self.part = "backward"
        dlogits = self.rows_of("logits.d", vocabulary)
        self.timed("loss.bwd", [logits, self.target, lse], [dlogits])
        return self.norm_backward("norm", self.product_backward("head", dlogits, y, wh, d, vocabulary), x, wn, scale)

    def updates(self):
        self.part = "update"
        for name, w, gradient in self.pending:
            n_bytes = self.storages[w]["bytes"]
            state = self.storage(f"{name}.adam", n_bytes // HALF * STATE, is_given=True, tier=self.state_tier)
            ns = LAUNCH_NS + (3 * n_bytes + 2 * n_bytes // HALF * STATE) // BYTES_PER_NS
            self.op(f"{name}.update", [gradient], [], ns, updates=[w, state])

    def build(self):
        tokens = self.storage("tokens", self.rows * 8, is_given=True)
        self.target = self.storage("target", self.rows * 8, is_given=True)
        table = self.weights("table", self.vocabulary * self.width)
        x = self.rows_of("embedded", self.width)
        self.timed("embed", [tokens, table], [x])
        saved = []
        for layer in range(self.layers):
            self.label = f"l{layer}."
            x, values = self.layer(x)
            saved.append(values)
        self.label = ""
        g = self.head(x)
        for layer in reversed(range(self.layers)):
            self.label = f"l{layer}."
            g = self.layer_backward(saved[layer], g)
        self.label = ""
        self.timed("embed.bwd", [tokens, g], [self.gradient("table", table)])
        self.updates()
        return self


def transformer(layers, batch=8, width=2048, seq_len=1024, vocabulary=32000, has_classes=False,
                state_tier="device"):
    return Decoder(batch, layers, width, seq_len, vocabulary, has_classes, state_tier).build()
