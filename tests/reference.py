"""A float64 NumPy network to compare the ops with, forward and backward.

It follows the published arithmetic and parameter layout step by step and shares no code with the
kernels. With input-side bias b_W and recurrent-side bias b_R:

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

With recurrent dropout, each gate's R multiplies h times the gate's mask. Gates stand in the order
i f g o and r z g. In skip_input mode the first layer has W x = x for every gate.
With resets, h and c before a step are zeros where a segment begins, and for the backward direction
where one ends.
`config` is anything with the attributes of `cudnn_rnn_tf.config.RnnConfig`.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

NUM_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
NUM_GATES |= {"gru_reset_before": 3, "lstm_peephole": 4}
NUM_GATES |= {"lstm_layer_norm": 4, "gru_layer_norm": 3}
LSTMS = ("lstm", "lstm_peephole", "lstm_layer_norm")
NUM_VECTORS = {"lstm_peephole": 3, "lstm_layer_norm": 10, "gru_layer_norm": 6}


# The opaque buffer.


def num_dirs(config: Any) -> int:
    return 2 if config.direction == "bidirectional" else 1


def canonical_shapes(config: Any) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The shapes of all matrices and all bias vectors, in the order of the opaque buffer."""
    gates, units = NUM_GATES[config.rnn_mode], config.num_units
    out = config.num_proj or units
    weights, biases = [], []
    for layer in range(config.num_layers):
        fan_in = config.input_size if layer == 0 else num_dirs(config) * out
        for _ in range(num_dirs(config)):
            if layer > 0 or config.input_mode != "skip_input":
                weights += [(units, fan_in)] * gates
            weights += [(units, out)] * gates
            if config.num_proj:
                weights += [(out, units)]
            weights += [(units,)] * NUM_VECTORS.get(config.rnn_mode, 0)
            biases += (
                [(units,)]
                * gates
                * ("none", "single", "double").index(config.bias_mode.split("_")[0])
            )
    return weights, biases


def split_params(config: Any, params: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Cuts an opaque buffer into its canonical weights and biases."""
    weight_shapes, bias_shapes = canonical_shapes(config)
    tensors, start = [], 0
    for shape in weight_shapes + bias_shapes:
        end = start + int(np.prod(shape))
        tensors.append(params[start:end].reshape(shape))
        start = end
    assert start == params.size
    return tensors[: len(weight_shapes)], tensors[len(weight_shapes) :]


def join_params(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the opaque buffer of canonical weights and biases."""
    return np.concatenate([tensor.ravel() for tensor in (*weights, *biases)])


class PseudoLayer(NamedTuple):
    """One direction of one layer, the gates of each side stacked into one map."""

    input_weights: np.ndarray | None  # [G * H, fan_in]; None in skip_input mode.
    recurrent_weights: np.ndarray  # [G * H, P]
    projection: np.ndarray | None  # [P, H]
    input_bias: np.ndarray  # [G * H], zeros if the bias mode has none.
    recurrent_bias: np.ndarray
    # [3, H]: p_i, p_f, p_o. Or, of each norm, gamma and beta, in the order of gates; then c's.
    vectors: np.ndarray | None = None


def _pseudo_layers(
    config: Any, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]
) -> Iterator[PseudoLayer]:
    gates = NUM_GATES[config.rnn_mode]
    weights = iter([np.asarray(w, np.float64) for w in weights])
    biases = iter([np.asarray(b, np.float64) for b in biases])
    zeros = np.zeros(gates * config.num_units)

    def stack(tensors: Iterator[np.ndarray]) -> np.ndarray:
        return np.concatenate([next(tensors) for _ in range(gates)])

    for layer in range(config.num_layers):
        for _ in range(num_dirs(config)):
            skips = layer == 0 and config.input_mode == "skip_input"
            yield PseudoLayer(
                input_weights=None if skips else stack(weights),
                recurrent_weights=stack(weights),
                projection=next(weights) if config.num_proj else None,
                input_bias=stack(biases)
                if config.bias_mode in ("single_input", "double")
                else zeros,
                recurrent_bias=stack(biases)
                if config.bias_mode in ("single_recurrent", "double")
                else zeros,
                vectors=np.stack([next(weights) for _ in range(NUM_VECTORS[config.rnn_mode])])
                if config.rnn_mode in NUM_VECTORS
                else None,
            )


def _canonical(
    config: Any, pseudo_layers: Sequence[PseudoLayer]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    gates = NUM_GATES[config.rnn_mode]
    weights, biases = [], []
    for layer in pseudo_layers:
        if layer.input_weights is not None:
            weights += np.split(layer.input_weights, gates)
        weights += np.split(layer.recurrent_weights, gates)
        if layer.projection is not None:
            weights.append(layer.projection)
        if layer.vectors is not None:
            weights += list(layer.vectors)
        if config.bias_mode in ("single_input", "double"):
            biases += np.split(layer.input_bias, gates)
        if config.bias_mode in ("single_recurrent", "double"):
            biases += np.split(layer.recurrent_bias, gates)
    return weights, biases


# One step of one pseudo-layer, as functions of the two sides' preactivations.


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
        # What is exactly there, such as a c of zeros, is so in every type.
        distance = np.where(x == kink, np.inf, np.abs(x - kink))
        kept["margin"] = np.minimum(kept["margin"], distance)
    return function(x), slope(x)


def _clip(config: Any, c: np.ndarray) -> tuple[np.ndarray, Any, Any]:
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


def _step_forward(config: Any, p: PseudoLayer, mask, x, h, c) -> tuple[Any, Any, dict[str, Any]]:
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
        new_c, inside, margin = _clip(config, f * c + i * g)
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


def _step_backward(config: Any, p: PseudoLayer, kept: dict[str, Any], dh, dc):
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


# The network.


@dataclasses.dataclass
class Forward:
    """The results of a forward pass, and what it leaves for its backward pass."""

    outputs: np.ndarray
    states: tuple[np.ndarray, ...]
    cells: np.ndarray  # The last layer's c after each step; empty without c.
    # The smallest distance of a number from a kink of its function: of a ReLU's argument from 0, of
    # a cell state from the clip. If rounding can exceed it, gradients may differ.
    margin: float
    config: Any
    time_major: bool
    valid: np.ndarray  # [T, B, 1]
    anew: list[np.ndarray]  # By direction, [T, B, 1].
    masks: list[np.ndarray] | None
    pseudo_layers: list[PseudoLayer]
    kept: list[list[dict[str, Any]]]  # [L * D][T]
    inside: Any  # [L * D, B, H]: true where an LSTM's initial cell states are not clipped.


class Gradients(NamedTuple):
    inputs: np.ndarray
    states: tuple[np.ndarray, ...]
    params: np.ndarray


def _swap(array: np.ndarray, time_major: bool) -> np.ndarray:
    """Changes an array to time-major or back, in float64."""
    array = np.asarray(array, np.float64)
    return array if time_major else array.swapaxes(0, 1)


def _steps(direction: int, max_time: int) -> Sequence[int]:
    return range(max_time) if direction == 0 else range(max_time - 1, -1, -1)


def forward(
    config: Any,
    inputs: np.ndarray,
    states: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    biases: Sequence[np.ndarray],
    *,
    sequence_lengths: Sequence[int] | None = None,
    resets: np.ndarray | None = None,
    masks: list[np.ndarray] | None = None,
    recurrent_masks: np.ndarray | None = None,
    zones: np.ndarray | None = None,
    time_major: bool = True,
) -> Forward:
    """Runs the network.

    Args:
        config: the network.
        inputs: [T, B, I], or [B, T, I] batch-major; what stands past a sequence's end is ignored.
        states: h [L * D, B, P] and an LSTM's c [L * D, B, H], or [B, L * D, n] batch-major.
        weights: canonical matrices.
        biases: canonical bias vectors.
        sequence_lengths: steps per sequence; None: T each.
        resets: [T, B], or [B, T] batch-major, true where a segment begins; None: nowhere.
        masks: per layer but the last, time-major factors of its output; None: no dropout.
        recurrent_masks: [L * D, G, B, P], factors of h for each gate; None: no recurrent dropout.
        zones: [L * D, 2, T, B, H], shares of h and c that stay; None: the rates.
        time_major: the layout of inputs, states and results.
    """
    x = _swap(inputs, time_major)
    max_time, batch_size, _ = x.shape
    lengths = np.full(batch_size, max_time) if sequence_lengths is None else sequence_lengths
    valid = (np.arange(max_time)[:, None] < np.asarray(lengths))[..., None]
    x = np.where(valid, x, 0.0)
    begins = np.zeros(valid.shape, bool)
    if resets is not None:
        begins = (resets if time_major else resets.T)[..., None] & valid
    anew = [begins, np.concatenate([begins[1:], np.zeros_like(begins[:1])])]
    states = [_swap(state, time_major) for state in states]
    pseudo_layers = list(_pseudo_layers(config, weights, biases))
    kept, margin, inside = [], np.inf, True
    if config.rnn_mode in LSTMS:
        states[1], inside, distance = _clip(config, states[1])
        margin = np.min(distance, initial=np.inf)
    final_states = [np.empty_like(state) for state in states]
    for layer in range(config.num_layers):
        if layer > 0 and masks is not None:
            x = x * masks[layer - 1]
        outputs, cells = [], []
        for direction in range(num_dirs(config)):
            index = layer * num_dirs(config) + direction
            h = states[0][index]
            c = states[1][index] if config.rnn_mode in LSTMS else None
            output = np.zeros((max_time, batch_size, h.shape[-1]))
            steps = [{}] * max_time
            cells.append(np.zeros((max_time, batch_size, 0 if c is None else config.num_units)))
            for t in _steps(direction, max_time):
                h = np.where(anew[direction][t], 0.0, h)
                c = None if c is None else np.where(anew[direction][t], 0.0, c)
                new_h, new_c, steps[t] = _step_forward(
                    config,
                    pseudo_layers[index],
                    None if recurrent_masks is None else recurrent_masks[index],
                    x[t],
                    h,
                    c,
                )
                shares = np.float32([config.zoneout, config.cell_zoneout]).astype(np.float64)
                steps[t]["zones"] = shares = shares if zones is None else zones[index, :, t]
                new_h = shares[0] * h + (1.0 - shares[0]) * new_h
                new_c = None if c is None else shares[1] * c + (1.0 - shares[1]) * new_c
                # A sequence that has ended, or that has not begun in reverse, keeps its state.
                h = np.where(valid[t], new_h, h)
                c = None if c is None else np.where(valid[t], new_c, c)
                output[t] = np.where(valid[t], new_h, 0.0)
                if c is not None:
                    cells[-1][t] = np.where(valid[t], new_c, 0.0)
                margin = min(
                    margin, np.where(valid[t], steps[t]["margin"], np.inf).min(initial=np.inf)
                )
            kept.append(steps)
            outputs.append(output)
            for final, state in zip(final_states, (h, c), strict=False):
                final[index] = state
        x = np.concatenate(outputs, axis=-1)
    return Forward(
        outputs=_swap(x, time_major),
        states=tuple(_swap(state, time_major) for state in final_states),
        cells=_swap(np.concatenate(cells, axis=-1), time_major),
        margin=float(margin),
        config=config,
        time_major=time_major,
        valid=valid,
        anew=anew,
        masks=masks,
        pseudo_layers=pseudo_layers,
        kept=kept,
        inside=inside,
    )


def backward(
    run: Forward,
    d_outputs: np.ndarray,
    d_states: Sequence[np.ndarray],
    d_cells: Sequence[np.ndarray] = (),
) -> Gradients:
    """Back-propagation through time.

    Args:
        run: the forward pass.
        d_outputs: the gradients of its outputs; ignored past a sequence's end.
        d_states: the gradients of its final states.
        d_cells: that of its cells, in a sequence; ignored past a sequence's end.
    """
    config = run.config
    max_time = run.valid.shape[0]
    dx = np.where(run.valid, _swap(d_outputs, run.time_major), 0.0)
    d_states = [_swap(state, run.time_major).copy() for state in d_states]
    gradients = [PseudoLayer(*(_zeros_like(p) for p in layer)) for layer in run.pseudo_layers]
    for layer in reversed(range(config.num_layers)):
        d_output = np.split(dx, num_dirs(config), axis=-1)
        dx = 0.0
        for direction in range(num_dirs(config)):
            index = layer * num_dirs(config) + direction
            p = run.pseudo_layers[index]
            dh = d_states[0][index]
            dc = d_states[1][index] if config.rnn_mode in LSTMS else None
            fan_in = config.input_size if layer == 0 else d_output[0].shape[-1] * num_dirs(config)
            d_input = np.zeros((*run.valid.shape[:2], fan_in))
            for t in reversed(_steps(direction, max_time)):
                valid = run.valid[t]
                if layer + 1 == config.num_layers:
                    for d in d_cells:
                        all_dc = np.split(_swap(d, run.time_major)[t], num_dirs(config), axis=-1)
                        dc = np.where(valid, dc + all_dc[direction], dc)
                of_h, of_c = run.kept[index][t]["zones"]
                new_dh = np.where(valid, dh + d_output[direction][t], 0.0)
                new_dc = None if dc is None else np.where(valid, dc, 0.0)
                d_input[t], previous_dh, previous_dc, d_params = _step_backward(
                    config,
                    p,
                    run.kept[index][t],
                    (1.0 - of_h) * new_dh,
                    None if dc is None else (1.0 - of_c) * new_dc,
                )
                previous_dh = previous_dh + of_h * new_dh if np.any(of_h) else previous_dh
                previous_dc = None if dc is None else previous_dc + of_c * new_dc
                dh = np.where(valid, previous_dh, dh)
                dc = None if dc is None else np.where(valid, previous_dc, dc)
                dh = np.where(run.anew[direction][t], 0.0, dh)
                dc = None if dc is None else np.where(run.anew[direction][t], 0.0, dc)
                for total, addend in zip(gradients[index], d_params, strict=True):
                    if total is not None:
                        total += addend
            dx = dx + d_input
            d_states[0][index] = dh
            if dc is not None:
                d_states[1][index] = dc
        if layer > 0 and run.masks is not None:
            dx = dx * run.masks[layer - 1]
    if config.rnn_mode in LSTMS:
        d_states[1] = d_states[1] * run.inside
    return Gradients(
        inputs=_swap(dx, run.time_major),
        states=tuple(_swap(state, run.time_major) for state in d_states),
        params=join_params(*_canonical(config, gradients)),
    )


def _zeros_like(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else np.zeros_like(array)
