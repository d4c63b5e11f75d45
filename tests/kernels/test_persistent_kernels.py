"""The persistent GPU kernels, compiled for a CPU that plays the GPU's part, against `reference`.

What only a GPU shows, the speed, TF32's rounding and real races, is the business of `test_gpu.py`.
"""

import functools
import pathlib
import types

import numpy as np
import pytest
import reference
from emulated_layers import (
    BACKWARD,
    FORWARD,
    SHAPES,
    STACKS,
    Network,
    Shape,
    compile_kernel,
    reordered,
)


def _each_of(shapes: list[Shape]) -> pytest.MarkDecorator:
    def marks(shape: Shape, with_lengths: bool) -> list[pytest.MarkDecorator]:
        # Teams that are no clusters take many steps, and thus long.
        is_thorough = not shape.is_cluster and not with_lengths
        # One worker of pytest-xdist runs all tests of a shape, so that its kernels are compiled
        # once.
        group = pytest.mark.xdist_group(str(shape))
        return [group, *([pytest.mark.thorough] if is_thorough else [])]

    return pytest.mark.parametrize(
        ("shape", "with_lengths"),
        [
            pytest.param(shape, with_lengths, marks=marks(shape, with_lengths))
            for shape in shapes
            for with_lengths in (False, True)
        ],
        ids=str,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("kernels")


def _check(tolerance: float, name: str, value: np.ndarray, expected: np.ndarray) -> None:
    scale = max(np.abs(expected).max(initial=0.0), 1e-3)
    error = np.abs(value.astype(np.float64) - expected).max(initial=0.0) / scale
    assert error <= tolerance, f"{name} is off by {error}"


@pytest.mark.slow
@_each_of(SHAPES)
def test_kernels_agree_with_the_reference(shape, with_lengths, folder):
    rng = np.random.default_rng([shape.num_units, with_lengths])
    directions, time_major = shape.directions, bool(rng.integers(2))
    steps, batch = int(rng.integers(1, 9)), int(rng.integers(1, 20))
    if not shape.is_cluster:
        # Two teams run at the same time, and with so many sequences each has two shares or more. In
        # so many steps of each, rings go round more than twice.
        steps = int(rng.integers(34, 36))
        batch = int(rng.integers(16 * shape.row_tiles + 1, 20 * shape.row_tiles))
    net = Network(shape, rng, 1, directions)
    net.draw_data(steps, batch, with_lengths)
    units, gates, slots, run = shape.num_units, net.gates, net.slots, net.run
    d_outputs = net.draw(steps, batch, directions * units)
    d_states = [net.draw(directions, batch, units) for _ in range(1 + net.is_lstm)]
    # No gradient reaches these sequences.
    is_idle = np.arange(batch) % 3 == 1
    d_cells = net.draw(steps, batch, directions * units)
    for gradient in (d_outputs, *d_states, d_cells):
        gradient[:, is_idle] = 0
    given = [d.astype(np.float64) for d in (d_outputs, *d_states, d_cells)]
    of_cells = given[-1:] * shape.has_cell_sequences
    gradients = reference.backward(run, given[0], given[1:-1], of_cells)

    strides = (batch, 1) if time_major else (1, steps)
    lead = (steps, batch) if time_major else (batch, steps)
    # In a caller's state of no steps, the bits may be those of a state that was not sent yet.
    is_nan = np.zeros(batch, bool) if net.lengths is None else net.lengths == 0
    first_h = net.states[0]
    first_h.view(f"u{first_h.itemsize}")[:, is_nan] = np.iinfo(f"u{first_h.itemsize}").max
    outputs = net.full(*lead, directions * units)
    d_outputs_here = np.ascontiguousarray(reordered(d_outputs, time_major))
    if net.lengths is not None:
        d_cells[np.arange(steps)[:, None] >= net.lengths] = np.nan
    d_cells = np.ascontiguousarray(reordered(d_cells, time_major))
    cells = [np.full_like(d_cells, np.nan), d_cells] if shape.has_cell_sequences else []
    buffers = [
        net.buffers(d, time_major, [d_outputs_here, *d_states], outputs, cells)
        for d in range(directions)
    ]
    net.call(compile_kernel(shape, "forward", folder), FORWARD, buffers, strides)

    check = functools.partial(_check, shape.tolerance)
    check("outputs", reordered(outputs, time_major), run.outputs)
    if cells:
        check("cells", reordered(cells[0], time_major), run.cells)
    for d, b in enumerate(buffers):
        check("h", b.last_h[~is_nan], run.states[0][d][~is_nan])
        assert np.isnan(b.last_h[is_nan].astype(np.float32)).all()
        if net.is_lstm:
            check("c", b.last_c, run.states[1][d])

    net.call(compile_kernel(shape, "backward", folder), BACKWARD, buffers, strides)

    expected_weights, expected_biases = reference.split_params(net.config, gradients.params)
    d_products = gradients.inputs.reshape(steps, batch, directions, gates * units)
    for d, b in enumerate(buffers):
        of_gates = b.gates.astype(np.float64)
        check("gates", reordered(of_gates[..., : gates * units], time_major), d_products[:, :, d])
        idle = [b.first_h_backprop[is_idle], reordered(of_gates, time_major)[:, is_idle]]
        assert not any(np.any(gradient) for gradient in idle), "zero does not stay zero"
        check("d_h", b.first_h_backprop, gradients.states[0][d])
        if net.is_lstm:
            check("d_c", b.first_c_backprop, gradients.states[1][d])
        # A GRU's candidate has a separate gradient on the recurrent side, in the fourth slot.
        of_recurrent = of_gates.reshape(*lead, slots, units)
        sums = b.bias_sums.astype(np.float64).sum(axis=0).reshape(slots, units)
        parts = list(range(slots)) if net.is_lstm or slots == 1 else [0, 1, 3]
        of_steps = reordered(of_recurrent[:, :, parts], time_major)
        h_before = np.stack([kept["h"] for kept in run.kept[d]])
        d_recurrent = np.einsum("abgi,abj->gij", of_steps, h_before)
        first = d * (2 * gates + net.num_vectors)
        check("d_weights", d_recurrent, np.stack(expected_weights[first + gates :][:gates]))
        if shape.norms:
            of_vectors = b.vector_sums.astype(np.float64).sum(axis=0).reshape(-1, units)
            expected = expected_weights[first + 2 * gates :][: net.num_vectors]
            check("d_vectors", of_vectors, np.stack(expected))
        first = d * 2 * gates
        check("d_input_bias", sums[:gates], np.stack(expected_biases[first:][:gates]))
        check("d_recurrent_bias", sums[parts], np.stack(expected_biases[first + gates :][:gates]))


def _in_tf32(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def _largest(rows: np.ndarray, least: float = 2.0**-98) -> np.ndarray:
    """Returns the largest finite number of each row, of which its power of two is made."""
    return np.where(np.isfinite(rows), np.abs(rows), least).max(axis=1, initial=least)


def _check_sums(
    sums: np.ndarray, a: np.ndarray, b: np.ndarray, largest: np.ndarray, is_as_in_tf32: bool
) -> None:
    """Checks `sums`, which should be a @ b. `largest` bounds the terms of each sum, added up.

    Two roundings to eleven bits change a term by at most 2**-10. What is small beside the largest
    number is off by up to 2**-39 of that.
    """
    with np.errstate(invalid="ignore"):
        exact, magnitudes = a @ b, np.abs(a) @ np.abs(b)
        errors = np.abs(sums - exact)
    is_finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(sums), is_finite)
    bounds = 1.001 * 2.0**-10 * magnitudes + 2.0**-38 * largest + 2.0**-140
    assert (errors <= bounds)[is_finite].all()
    if is_as_in_tf32:
        of_tf32 = _in_tf32(a) @ _in_tf32(b) - exact
        norm, norm_of_tf32 = (np.linalg.norm(each / magnitudes) for each in (errors, of_tf32))
        assert norm <= 1.05 * norm_of_tf32


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["near", "far", "dead", "subnormal", "not finite"])
@pytest.mark.parametrize(
    "shape",
    [
        shape
        for shape in SHAPES
        if shape.products == 3 and (shape.is_cluster or shape.slices > 1)
        if not (shape.norms or shape.has_zoneout)
    ],
    ids=str,
)
def test_products_in_float16_have_the_range_of_floats(shape, draw, folder):
    """Of the gates' sums, those of the candidate are seen: a GRU stores them, others their tanh."""
    units, batch, is_gru = shape.num_units, 19, shape.rnn_mode == "gru"
    net = Network(shape, np.random.default_rng(units), 1, 1)
    rng, gates = net.rng, net.gates
    rows = slice(2 * units, 3 * units) if gates > 1 else slice(units)

    def spread(*dims: int, bits: float = 27.0 if draw == "near" else 60.0) -> np.ndarray:
        return rng.choice([-1, 1], dims) * 2.0 ** -rng.uniform(0, bits, dims)

    net.biases, net.lengths, net.order, net.resets = [[None, None]], None, None, None
    for _ in range(2):
        h, weights = spread(batch, units), spread(gates * units, units)
        gradients = [spread(1, batch, units, bits=20.0) for _ in range(2 + net.is_lstm)]
        if draw == "near":
            h[:, 0] = 1.0  # As large as a GRU's h may become.
        elif draw == "dead":  # Units that nobody reads, and two halves that read only themselves.
            half, is_dead = np.arange(units) % 2, np.arange(units) % 3 == 0
            h = np.where(is_dead, 1e4, 1e-9) * np.sign(h)
            weights *= (np.tile(half, gates)[:, None] == half) & ~is_dead
            gradients = [gradient * np.where(half, 1.0, 1e-10) for gradient in gradients]
        else:
            h *= 10.0 ** rng.uniform(-12, 30, (batch, 1) if is_gru else 1)
            gradients[0] *= 10.0 ** rng.uniform(-20, 6, (batch, 1))
        if is_gru:
            weights *= 10.0 ** rng.uniform(-3, 3, (gates * units, 1))
            # No gradient passes the update gate, beside which that of the sums would be small.
            weights[units : 2 * units] = 0.0
        else:  # A tanh keeps the digits of sums below 1.
            weights /= 1e-20 + (np.abs(weights) @ np.abs(h.T)).max(axis=1, keepdims=True)
        if draw == "subnormal":
            weights[::3] *= 2.0**-130
            h[::2] *= 2.0**-130
        elif draw == "not finite":
            weights.flat[rng.integers(weights.size, size=3)] = [np.inf, -np.inf, np.nan]
            h[:3, 1] = [np.inf, -np.inf, np.nan]
            gradients[0][0, 3, 1] = np.inf
        net.products = np.zeros((1, batch, 1, gates * units), np.float32)
        if is_gru:
            net.products[..., units : 2 * units] = -200.0
        net.recurrent = [weights.astype(np.float32)]
        net.states = [h[None].astype(np.float32), net.draw(1, batch, units)][: 1 + net.is_lstm]
        gradients = [gradient.astype(np.float32) for gradient in gradients]
        outputs = net.full(1, batch, units)
        buffers = net.buffers(0, True, gradients, outputs)
        weights, h = (each.astype(np.float64) for each in (net.recurrent[0], net.states[0][0]))

        net.call(compile_kernel(shape, "forward", folder), FORWARD, [buffers], (batch, 1))
        slots = buffers.gates.reshape(batch, net.slots, units)
        sums = slots[:, 3 if is_gru else 2 if net.is_lstm else 0].T.astype(np.float64)
        with np.errstate(divide="ignore"):
            sums = sums if is_gru else np.arctanh(sums)
        of_h = _largest(h, 1.0 if is_gru else 2.0**-98)
        largest = units * np.outer(_largest(weights[rows]), of_h)
        _check_sums(sums, weights[rows], h.T, largest, draw == "near")

        if draw == "not finite":  # Gradients reach all weights.
            slots[:] = rng.uniform(0.1, 0.9, slots.shape)
            slots[:, 1:2] *= not is_gru
            for values in (buffers.cells, buffers.first_h, buffers.first_c):
                values[:] = 0.5
        net.call(compile_kernel(shape, "backward", folder), BACKWARD, [buffers], (batch, 1))
        d_gates = slots[:, [0, 1, 3] if is_gru else range(gates)].astype(np.float64)
        terms = _largest(weights).reshape(gates, units) * np.abs(d_gates)
        largest = np.zeros(batch)
        of_band = shape.block_units * shape.slices
        for first in range(0, units, of_band):
            of_block = terms[..., first : first + of_band].reshape(batch, -1)
            largest += of_block.shape[1] * of_block.max(axis=1)
        sums = buffers.first_h_backprop.T.astype(np.float64)
        d_gates = d_gates.reshape(batch, -1).T
        _check_sums(sums, weights.T, d_gates, largest, draw == "near")


@pytest.mark.slow
@_each_of(STACKS)
def test_stacks_agree_with_the_reference(shape, with_lengths, folder):
    rng = np.random.default_rng([shape.num_units, with_lengths])
    layers, steps, batch = (int(rng.integers(low, high)) for low, high in ((2, 5), (1, 9), (1, 20)))
    net = Network(shape, rng, layers, 1)
    net.draw_data(steps, batch, with_lengths)
    units, slots = shape.num_units, net.slots

    def ones(*dims: int) -> np.ndarray:
        size = np.prod(dims) * net.dtype.itemsize
        return np.full(size, 0xFF, np.uint8).view(net.dtype).reshape(dims)

    buffers: list[types.SimpleNamespace] = []
    for layer in range(layers):
        output = ones(steps, batch, units)
        own = net.buffers(layer, True, [output, *net.states], output)
        own.output, own.input_weights = output, net.of_input[layer]
        if layer > 0:
            own.gates, own.input = ones(steps, batch, slots * units), buffers[-1].output
        buffers.append(own)
    cells = net.full(steps, batch, units)
    if shape.has_cell_sequences:
        buffers[-1].all_c = cells
    net.call(compile_kernel(shape, "forward", folder), FORWARD, buffers, (batch, 1))

    check = functools.partial(_check, layers * shape.tolerance)
    check("outputs", buffers[-1].output, net.run.outputs)
    if shape.has_cell_sequences:
        check("cells", cells, net.run.cells)
    for layer, own in enumerate(buffers):
        check("h", own.last_h, net.run.states[0][layer])
        if net.is_lstm:
            check("c", own.last_c, net.run.states[1][layer])
