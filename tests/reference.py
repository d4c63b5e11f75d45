"""A float64 NumPy network to compare the ops with, forward and backward.

It follows the published parameter layout, and `reference_cell` the published arithmetic, step by
step; they share no code with the kernels.

With recurrent dropout, each gate's R multiplies h times the gate's mask. Gates stand in the order
i f g o and r z g. In skip_input mode the first layer has W x = x for every gate.
With resets, h and c before a step are zeros where a segment begins, and for the backward direction
where one ends.
`config` is anything with the attributes of `cudnn_rnn_tf.config.RnnConfig`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from reference_cell import LSTMS, NUM_GATES, PseudoLayer, clip_cells, step_backward, step_forward

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
    """Runs the network on inputs [T, B, I], or [B, T, I] batch-major.

    What stands past a sequence's end is ignored. States are h [L * D, B, P] and an LSTM's c [L * D,
    B, H], or [B, L * D, n] batch-major; `resets` are true where a segment begins. `masks` are
    factors of the outputs of each layer but the last, time-major; `recurrent_masks` [L * D, G, B,
    P] of h for each gate; `zones` [L * D, 2, T, B, H] are the shares of h and c that stay, None for
    the rates.
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
        states[1], inside, distance = clip_cells(config, states[1])
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
                new_h, new_c, steps[t] = step_forward(
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
                d_input[t], previous_dh, previous_dc, d_params = step_backward(
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
