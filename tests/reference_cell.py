"""One step of the float64 NumPy network, forward and backward, as functions of preactivations.

With input-side bias b_W and recurrent-side bias b_R:

    LSTM  i = sigmoid(W_i x + R_i h + b_Wi + b_Ri), f and o likewise
          g = tanh(W_g x + R_g h + b_Wg + b_Rg)
          c' = clip(f c + i g), h' = o tanh(c'), with projection h' = W_p (o tanh(c'));
          the initial c is clipped, too
    LSTM with peepholes: i and f are the sigmoids of what they are there plus p_i c and p_f c, and
          o of that plus p_o c'
    GRU   r = sigmoid(W_r x + R_r h + b_Wr + b_Rr), z likewise
          g = tanh(W_g x + b_Wg + r (R_g h + b_Rg)), h' = (1 - z) g + z h
    GRU that resets before the product
          g = tanh(W_g x + b_Wg + R_g (r h) + b_Rg), and the rest as above
    LSTM and GRU with layer normalization: N(v) = gamma (v - mean(v)) / sqrt(var(v) + eps) + beta
          over the units, each N with its own gamma and beta;
          i = sigmoid(N_i(W_i x + ...)), f, g and o likewise, c' = N_c(f c + i g), h' = o tanh(c');
          r and z likewise, g = tanh(N_g(W_g x + b_Wg + r (R_g h + b_Rg)))
    RNN   h' = act(W x + R h + b_W + b_R)
    Zoneout leaves shares of h and c what they are: with h' and c' from above, h becomes
          m h + (1 - m) h', and c likewise, with masks m or, in inference, with the rates.

Other activations may take the place of sigmoid, tanh and act.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

NUM_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
NUM_GATES |= {"gru_reset_before": 3, "lstm_peephole": 4}
NUM_GATES |= {"lstm_layer_norm": 4, "gru_layer_norm": 3}
LSTMS = ("lstm", "lstm_peephole", "lstm_layer_norm")


class PseudoLayer(NamedTuple):
    """One direction of one layer, the gates of each side stacked into one map."""

    input_weights: np.ndarray | None  # [G * H, fan_in]; None in skip_input mode.
    recurrent_weights: np.ndarray  # [G * H, P]
    projection: np.ndarray | None  # [P, H]
    input_bias: np.ndarray  # [G * H], zeros if the bias mode has none.
    recurrent_bias: np.ndarray
    # [3, H]: p_i, p_f, p_o. Or, of each norm, gamma and beta, in the order of gates; then c's.
    vectors: np.ndarray | None = None


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _hard(slope: float) -> tuple[Any, Any, tuple[float, ...]]:
    end = 0.5 / slope
    return (
        lambda x: np.clip(slope * x + 0.5, 0.0, 1.0),
        lambda x: slope * (np.abs(x) < end),
        (-end, end),
    )


# Each activation, its slope, and where it has kinks.
ACTIVATIONS = {
    "tanh": (np.tanh, lambda x: 1.0 - np.tanh(x) ** 2, ()),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), ()),
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: 1.0 * (x > 0.0), (0.0,)),
    "linear": (lambda x: x, np.ones_like, ()),
    "softsign": (lambda x: x / (1.0 + np.abs(x)), lambda x: (1.0 + np.abs(x)) ** -2.0, ()),
    "elu": (
        lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
        lambda x: np.exp(np.minimum(x, 0.0)),
        (),
    ),
    "hard_sigmoid": _hard(1.0 / 6.0),
    "keras_2_hard_sigmoid": _hard(0.2),
}


def _activate(config: Any, kept: dict[str, Any], which: str, own: str, x: np.ndarray) -> Any:
    """Returns the activation of x and its slope there, and notes how near x is to a kink."""
    function, slope, kinks = ACTIVATIONS[getattr(config, which, "") or own]
    for kink in kinks:
        # A number that is exactly there, such as a c of zeros, is there in every type.
        distance = np.where(x == kink, np.inf, np.abs(x - kink))
        kept["margin"] = np.minimum(kept["margin"], distance)
    return function(x), slope(x)


def clip_cells(config: Any, c: np.ndarray) -> tuple[np.ndarray, Any, Any]:
    """Returns clipped cell states, where clipping changes none, and distances from the clip."""
    clip = float(np.float32(config.cell_clip))
    if not clip:
        return c, True, np.inf
    return np.clip(c, -clip, clip), np.abs(c) < clip, np.abs(np.abs(c) - clip)


class _Norm:
    """One row of gamma and beta at work: what it returned, and gradients back through it."""

    def __init__(self, config: Any, vectors: np.ndarray, x: np.ndarray):
        self.gamma = vectors[0]
        centred = x - x.mean(-1, keepdims=True)
        epsilon = float(np.float32(config.layer_norm_epsilon))
        self.deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        self.standard = centred / self.deviation
        self.result = self.gamma * self.standard + vectors[1]

    def backward(self, d: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Returns the gradient of x, and those of gamma and beta."""
        d_vectors = [(d * self.standard).sum(0), d.sum(0)]
        d = d * self.gamma
        along = (d * self.standard).mean(-1, keepdims=True)
        d = d - d.mean(-1, keepdims=True) - self.standard * along
        return d / self.deviation, d_vectors


def step_forward(config: Any, p: PseudoLayer, mask, x, h, c) -> tuple[Any, Any, dict[str, Any]]:
    gates = NUM_GATES[config.rnn_mode]
    input_side = np.tile(x, gates) if p.input_weights is None else x @ p.input_weights.T
    a = np.split(input_side + p.input_bias, gates, axis=-1)
    read = [h] * gates if mask is None else list(h * mask)
    recurrent_weights = np.split(p.recurrent_weights, gates)
    recurrent_bias = np.split(p.recurrent_bias, gates)
    s = [
        h_read @ weights.T + bias
        for h_read, weights, bias in zip(read, recurrent_weights, recurrent_bias, strict=True)
    ]
    kept = {"x": x, "h": h, "c": c, "margin": np.inf, "read": read, "mask": mask}
    gate = functools.partial(_activate, config, kept, "recurrent_activation", "sigmoid")
    own = "relu" if config.rnn_mode == "rnn_relu" else "tanh"
    act = functools.partial(_activate, config, kept, "activation", own)
    if config.rnn_mode.endswith("_layer_norm"):
        vectors = np.split(p.vectors, len(p.vectors) // 2)
        is_lstm = config.rnn_mode in LSTMS
        norms = [
            _Norm(config, *each)
            for each in zip(vectors, np.add(a, s)[: 4 if is_lstm else 2], strict=False)
        ]
        kept["norms"] = norms
        if is_lstm:
            (i, kept["slope_i"]), (f, kept["slope_f"]) = (gate(n.result) for n in norms[:2])
            (g, kept["slope_g"]), (o, kept["slope_o"]) = act(norms[2].result), gate(norms[3].result)
            norms.append(_Norm(config, vectors[4], f * c + i * g))
            act_c, kept["slope_c"] = act(norms[4].result)
            kept |= {"i": i, "f": f, "g": g, "o": o, "act_c": act_c}
            return o * act_c, norms[4].result, kept
        (r, kept["slope_r"]), (z, kept["slope_z"]) = (gate(n.result) for n in norms)
        norms.append(_Norm(config, vectors[2], a[2] + r * s[2]))
        g, kept["slope_g"] = act(norms[2].result)
        return (1.0 - z) * g + z * h, None, kept | {"r": r, "z": z, "g": g, "s_g": s[2]}
    if config.rnn_mode in LSTMS:
        peep_i, peep_f, peep_o = (0, 0, 0) if p.vectors is None else p.vectors
        i, kept["slope_i"] = gate(a[0] + s[0] + peep_i * c)
        f, kept["slope_f"] = gate(a[1] + s[1] + peep_f * c)
        g, kept["slope_g"] = act(a[2] + s[2])
        new_c, inside, margin = clip_cells(config, f * c + i * g)
        kept["margin"] = np.minimum(kept["margin"], margin)
        o, kept["slope_o"] = gate(a[3] + s[3] + peep_o * new_c)
        act_c, kept["slope_c"] = act(new_c)
        y = o * act_c
        kept["new_c"] = new_c
        kept |= {"i": i, "f": f, "g": g, "o": o, "y": y, "act_c": act_c, "inside": inside}
        return (y if p.projection is None else y @ p.projection.T), new_c, kept
    if config.rnn_mode == "gru":
        (r, kept["slope_r"]), (z, kept["slope_z"]) = (gate(a[i] + s[i]) for i in (0, 1))
        g, kept["slope_g"] = act(a[2] + r * s[2])
        return (1.0 - z) * g + z * h, None, kept | {"r": r, "z": z, "g": g, "s_g": s[2]}
    if config.rnn_mode == "gru_reset_before":
        (r, kept["slope_r"]), (z, kept["slope_z"]) = (gate(a[i] + s[i]) for i in (0, 1))
        kept["unreset"] = read[2]
        read[2] = r * read[2]
        g, kept["slope_g"] = act(a[2] + read[2] @ recurrent_weights[2].T + recurrent_bias[2])
        return (1.0 - z) * g + z * h, None, kept | {"r": r, "z": z, "g": g}
    new_h, kept["slope"] = act(a[0] + s[0])
    return new_h, None, kept


def step_backward(config: Any, p: PseudoLayer, kept: dict[str, Any], dh, dc):
    """Returns the gradients for x, h, c and, as a PseudoLayer, for the parameters."""
    direct_dh = 0.0
    previous_dc = None
    d_projection = d_vectors = None
    if config.rnn_mode == "lstm_layer_norm":
        i, f, g, o = (kept[name] for name in "ifgo")
        d_o = dh * kept["act_c"] * kept["slope_o"]
        dc, of_c = kept["norms"][4].backward(dc + dh * o * kept["slope_c"])
        d_gates = (dc * g * kept["slope_i"], dc * kept["c"] * kept["slope_f"])
        d_gates += (dc * i * kept["slope_g"], d_o)
        passed = [norm.backward(d) for norm, d in zip(kept["norms"], d_gates, strict=False)]
        da = ds = np.concatenate([d for d, _ in passed], axis=-1)
        d_vectors = np.stack([*sum((pair for _, pair in passed), []), *of_c])
        previous_dc = dc * f
    elif config.rnn_mode == "gru_layer_norm":
        r, z, g = kept["r"], kept["z"], kept["g"]
        of_r, of_z, of_g = kept["norms"]
        dg, of_g = of_g.backward(dh * (1.0 - z) * kept["slope_g"])
        dz, of_z = of_z.backward(dh * (kept["h"] - g) * kept["slope_z"])
        dr, of_r = of_r.backward(dg * kept["s_g"] * kept["slope_r"])
        da = np.concatenate([dr, dz, dg], axis=-1)
        ds = np.concatenate([dr, dz, dg * r], axis=-1)
        d_vectors = np.stack([*of_r, *of_z, *of_g])
        direct_dh = dh * z
    elif config.rnn_mode in LSTMS:
        i, f, g, o, act_c = (kept[name] for name in ("i", "f", "g", "o", "act_c"))
        dy = dh
        if p.projection is not None:
            d_projection = dh.T @ kept["y"]
            dy = dh @ p.projection
        d_o = dy * act_c * kept["slope_o"]
        peep_i, peep_f, peep_o = (0, 0, 0) if p.vectors is None else p.vectors
        dc = np.where(kept["inside"], dc + dy * o * kept["slope_c"] + d_o * peep_o, 0.0)
        d_i, d_f = dc * g * kept["slope_i"], dc * kept["c"] * kept["slope_f"]
        da = ds = np.concatenate([d_i, d_f, dc * i * kept["slope_g"], d_o], axis=-1)
        previous_dc = dc * f + d_i * peep_i + d_f * peep_f
        if p.vectors is not None:
            terms = (d_i * kept["c"], d_f * kept["c"], d_o * kept["new_c"])
            d_vectors = np.stack([term.sum(axis=0) for term in terms])
    elif config.rnn_mode == "gru":
        r, z, g = kept["r"], kept["z"], kept["g"]
        dg = dh * (1.0 - z) * kept["slope_g"]
        dz = dh * (kept["h"] - g) * kept["slope_z"]
        dr = dg * kept["s_g"] * kept["slope_r"]
        da = np.concatenate([dr, dz, dg], axis=-1)
        ds = np.concatenate([dr, dz, dg * r], axis=-1)
        direct_dh = dh * z
    elif config.rnn_mode == "gru_reset_before":
        r, z, g = kept["r"], kept["z"], kept["g"]
        dg = dh * (1.0 - z) * kept["slope_g"]
        dz = dh * (kept["h"] - g) * kept["slope_z"]
        dr = dg @ np.split(p.recurrent_weights, 3)[2] * kept["unreset"] * kept["slope_r"]
        da = ds = np.concatenate([dr, dz, dg], axis=-1)
        direct_dh = dh * z
    else:
        da = ds = dh * kept["slope"]
    if p.input_weights is None:
        dx = sum(np.split(da, NUM_GATES[config.rnn_mode], axis=-1))
    else:
        dx = da @ p.input_weights
    gates = NUM_GATES[config.rnn_mode]
    parts = [np.split(array, gates, axis=-1) for array in (ds, p.recurrent_weights.T)]
    d_read = [ds_gate @ weights.T for ds_gate, weights in zip(*parts, strict=True)]
    if config.rnn_mode == "gru_reset_before":
        d_read[2] = d_read[2] * kept["r"]
    if kept["mask"] is not None:
        d_read = d_read * kept["mask"]
    gradients = PseudoLayer(
        input_weights=None if p.input_weights is None else da.T @ kept["x"],
        recurrent_weights=np.concatenate(
            [ds_gate.T @ read for ds_gate, read in zip(parts[0], kept["read"], strict=True)]
        ),
        projection=d_projection,
        input_bias=da.sum(0),
        recurrent_bias=ds.sum(0),
        vectors=d_vectors,
    )
    return dx, sum(d_read) + direct_dh, previous_dc, gradients
