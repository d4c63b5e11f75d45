"""Draws random networks and data, to compare the ops with `reference`."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import reference
import reference_masks
import tensorflow as tf
from reference_cell import ACTIVATIONS

from cudnn_rnn_tf import native, ops
from cudnn_rnn_tf.config import RnnConfig

# The largest relative error of rounding a number to the type.
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

# The largest errors, as parts of the largest magnitude in a tensor. Sums of a few hundred products
# keep 14 digits in float64 and 6 in float32, in which the half types compute as well. `errors` has
# already subtracted what the half types lose by rounding their results.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-5, "bfloat16": 1e-5}
# Root mean squares of the errors if products also round their factors to the half type: of outputs
# and states; of gradients; and of gradients if a rounded number may be on the other side of the
# kink of a ReLU or a clip.
RMS_TOLERANCE = {"float16": (2e-3, 1e-2, 1e-1), "bfloat16": (1.6e-2, 8e-2, 5e-1)}


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, the shape of its data and how it runs."""

    index: int
    config: RnnConfig
    max_time: int
    batch_size: int
    time_major: bool
    is_training: bool
    sequence_lengths: tuple[int, ...] | None
    has_resets: bool = False
    has_cell_sequences: bool = False

    @property
    def resets(self) -> np.ndarray | None:
        """Where segments of the sequences begin, boolean [T, B] or [B, T]; None for nowhere."""
        if not self.has_resets:
            return None
        resets = np.random.default_rng([self.index, 23]).random((self.max_time, self.batch_size))
        return np.ascontiguousarray(resets if self.time_major else resets.T) < 0.3

    def __str__(self) -> str:
        config = self.config
        parts = [
            f"{self.index:03d}-{config.rnn_mode}-L{config.num_layers}-H{config.num_units}",
            f"I{config.input_size}-T{self.max_time}-B{self.batch_size}",
            config.bias_mode,
        ]
        parts += [f"P{config.num_proj}"] * bool(config.num_proj)
        parts += ["skip"] * (config.input_mode == "skip_input")
        parts += ["bidirectional"] * (config.direction == "bidirectional")
        parts += [f"dropout{config.dropout:.2f}"] * bool(config.dropout)
        parts += [f"recurrent{config.recurrent_dropout:.2f}"] * bool(config.recurrent_dropout)
        parts += [f"zoneout{config.zoneout:.2f}-{config.cell_zoneout:.2f}"] * config.has_zoneout
        parts += [f"clip{config.cell_clip:.2f}"] * bool(config.cell_clip)
        parts += filter(None, [config.activation, config.recurrent_activation])
        parts += ["lengths"] * (self.sequence_lengths is not None)
        parts += ["resets"] * self.has_resets + ["cells"] * self.has_cell_sequences
        parts += ["time_major" if self.time_major else "batch_major"]
        parts += ["training" if self.is_training else "inference"]
        return "-".join(parts)


class Data(NamedTuple):
    """The inputs of a forward and a backward pass, in the data's type."""

    inputs: np.ndarray
    states: tuple[np.ndarray, ...]
    params: np.ndarray
    seed: np.ndarray
    d_outputs: np.ndarray
    d_states: tuple[np.ndarray, ...]
    d_cells: tuple[np.ndarray, ...] = ()


class Results(NamedTuple):
    """The results of both passes, in the data's type; states are h and an LSTM's c."""

    outputs: np.ndarray
    states: tuple[np.ndarray, ...]
    d_inputs: np.ndarray
    d_states: tuple[np.ndarray, ...]
    d_params: np.ndarray
    cells: tuple[np.ndarray, ...] = ()

    def named(self) -> dict[str, np.ndarray]:
        named = {"outputs": self.outputs, "d_inputs": self.d_inputs, "d_params": self.d_params}
        for prefix, states in (("", self.states), ("d_", self.d_states)):
            named |= dict(zip((prefix + "h", prefix + "c"), states, strict=False))
        return named | dict(zip(("cells",), self.cells, strict=False))


def mostly_slow(cases: Iterable[Any], every: int = 4, one_of: int = 1) -> list[Any]:
    """Returns the cases as parameters of a test, and marks all but one of every `every` as slow.

    Of every `one_of` of these, all but one are marked as thorough as well.
    """

    def marks(index: int) -> list[pytest.MarkDecorator]:
        if index % every == 0:
            return []
        is_thorough = (index - index // every) % one_of
        return [pytest.mark.slow, *([pytest.mark.thorough] if is_thorough else [])]

    return [pytest.param(case, marks=marks(index)) for index, case in enumerate(cases)]


def random_cases(count: int, seed: int) -> list[Case]:
    """Draws networks over all attributes; mostly small, some with many steps, rows or units."""
    rng = np.random.default_rng(seed)
    return [_random_case(rng, index) for index in range(count)]


def _random_case(rng: np.random.Generator, index: int) -> Case:
    rnn_mode = str(rng.choice(["lstm", "lstm", "gru", "rnn_tanh", "rnn_relu"]))
    if rnn_mode == "gru" and index % 2:
        rnn_mode = "gru_reset_before"
    if rnn_mode == "lstm" and index % 5 < 2:
        rnn_mode = "lstm_peephole"
    is_lstm = rnn_mode in reference.LSTMS
    size = rng.choice(["small", "long", "wide"], p=[0.86, 0.09, 0.05])
    # With 129 units or more, a row of the state is more than one block of the inner products.
    low, high = {"small": (1, 41), "long": (8, 34), "wide": (129, 420)}[size]
    num_units = int(rng.integers(low, high))
    input_size = int(rng.integers(1, 41))
    input_mode = "skip_input" if rng.random() < 0.2 else "linear_input"
    max_time, batch_size = (int(n) for n in rng.integers(1, 9, size=2))
    if size == "long":
        max_time, batch_size = int(rng.integers(15, 28)), int(rng.integers(17, 50))
    elif rng.random() < 0.1:
        max_time = 1
    elif rng.random() < 0.1:
        batch_size = 1
    projects = is_lstm and rng.random() < 0.3
    clips = is_lstm and rng.random() < 0.3
    lengths = None
    if rng.random() < 0.5:
        lengths = rng.integers(0, max_time + 1, size=batch_size)
        lengths[rng.random(batch_size) < 0.2] = max_time
    return Case(
        index=index,
        config=RnnConfig(
            rnn_mode=rnn_mode,
            num_layers=1 if size == "wide" else int(rng.integers(1, 4)),
            num_units=num_units,
            input_size=num_units if input_mode == "skip_input" else input_size,
            input_mode=input_mode,
            direction=str(rng.choice(["unidirectional", "bidirectional"])),
            bias_mode=str(rng.choice(["none", "single_input", "single_recurrent", "double"])),
            num_proj=int(rng.integers(1, num_units + 1)) if projects else 0,
            dropout=float(rng.uniform(0.05, 0.95)) if rng.random() < 0.4 else 0.0,
            cell_clip=float(rng.uniform(0.1, 1.0)) if clips else 0.0,
            **(_random_activations(rnn_mode, index) if size == "small" else {}),
        ),
        max_time=max_time,
        batch_size=batch_size,
        time_major=bool(rng.random() < 0.5),
        is_training=bool(rng.random() < 0.7),
        sequence_lengths=None if lengths is None else tuple(int(n) for n in lengths),
    )


def _random_activations(rnn_mode: str, index: int) -> dict[str, str]:
    """Returns other activations than the mode's own for every fourth network.

    Those of gates are within 0 and 1, since steps would magnify rounding errors otherwise.
    """
    if index % 4 != 1 or rnn_mode == "rnn_relu":
        return {}
    rng = np.random.default_rng([index, 5])
    chosen = {"activation": str(rng.choice(list(ACTIVATIONS)))}
    if rnn_mode != "rnn_tanh":
        gates = [name for name in ACTIVATIONS if name.endswith("sigmoid")]
        chosen["recurrent_activation"] = str(rng.choice(gates))
    return chosen


def with_recurrent_dropout(case: Case) -> Case:
    """Returns the case in training, with a random rate of recurrent dropout.

    Rates are at most 0.3. At high rates, numbers that are kept are scaled up so much that the
    recurrence enlarges every rounding error, and overflows float16.
    """
    rate = float(np.random.default_rng(case.index).uniform(0.05, 0.3))
    config = dataclasses.replace(case.config, recurrent_dropout=rate)
    return dataclasses.replace(case, config=config, is_training=True)


def layer_normalized(cases: Iterable[Case]) -> list[Case]:
    """Returns those of LSTMs and GRUs, with layer normalization.

    Of few units, two may be so near to each other that their gradients are mostly rounding errors.
    """
    others = {"num_proj": 0, "cell_clip": 0.0}
    return [
        dataclasses.replace(
            case,
            config=dataclasses.replace(
                case.config,
                rnn_mode=f"{case.config.rnn_mode}_layer_norm",
                layer_norm_epsilon=(1e-12, 1e-3)[case.index % 2],
                **others,
            ),
        )
        for case in cases
        if case.config.rnn_mode in ("lstm", "gru") and case.config.num_units >= 8
    ]


def with_zoneout(cases: Iterable[Case]) -> list[Case]:
    """Returns the cases that may have zoneout with it: of h, of an LSTM's c or of both.

    Fewer numbers are near a wider clip.
    """
    return [
        dataclasses.replace(
            case,
            config=dataclasses.replace(
                case.config,
                cell_clip=2.0 * case.config.cell_clip,
                zoneout=0.0 if is_lstm and case.index % 3 == 0 else 0.3,
                cell_zoneout=0.4 if is_lstm and case.index % 3 != 1 else 0.0,
            ),
        )
        for case in cases
        for is_lstm in [case.config.rnn_mode == "lstm"]
        if not case.config.num_proj and not case.config.normalizes
    ]


def with_resets(cases: Iterable[Case], every: int = 3) -> list[Case]:
    """Returns the cases, of which every `every`-th one has resets."""
    return [
        dataclasses.replace(case, has_resets=number % every == 1)
        for number, case in enumerate(cases)
    ]


def with_cell_sequences(cases: Iterable[Case]) -> list[Case]:
    """Returns the cases, of which LSTMs have cell sequences in half of the cases."""
    return [
        dataclasses.replace(
            case, has_cell_sequences=number % 4 > 1 and case.config.rnn_mode in reference.LSTMS
        )
        for number, case in enumerate(cases)
    ]


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def draw_data(case: Case, dtype: str, attempt: int = 0) -> Data:
    """Random data, rounded to `dtype`."""
    rng = np.random.default_rng([case.index, attempt])
    config, out = case.config, case.config.num_proj or case.config.num_units
    batch_size, max_time = case.batch_size, case.max_time
    lead = (max_time, batch_size) if case.time_major else (batch_size, max_time)
    count = config.num_layers * reference.num_dirs(config)
    state_lead = (count, batch_size) if case.time_major else (batch_size, count)
    state_sizes = (out, config.num_units) if config.rnn_mode in reference.LSTMS else (out,)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(numpy_dtype(dtype))

    d_scales = [1.0, 1.0]
    if config.cell_clip and dtype in UNIT_ROUNDOFF:
        # A final cell state is rounded before it is clipped, and rounding may carry it over the
        # clip.
        d_scales[1] = 0.0
    weight_shapes, bias_shapes = reference.canonical_shapes(config)
    # With this scale, preactivations are about 1, so that the gates do not saturate.
    scale = max(config.num_units, config.input_size) ** -0.5
    return Data(
        inputs=draw(*lead, config.input_size),
        states=tuple(draw(*state_lead, n) for n in state_sizes),
        params=draw(sum(int(np.prod(shape)) for shape in weight_shapes + bias_shapes), scale=scale),
        seed=rng.integers(-(2**63), 2**63, size=2),
        d_outputs=draw(*lead, out * reference.num_dirs(config)),
        d_states=tuple(
            draw(*state_lead, n, scale=scale)
            for n, scale in zip(state_sizes, d_scales, strict=False)
        ),
        d_cells=tuple(
            draw(*lead, config.num_units * reference.num_dirs(config), scale=d_scales[1])
            for _ in range(case.has_cell_sequences)
        ),
    )


def draw_whole_numbers(index: int) -> tuple[Case, Data, Results]:
    """Draws a ReLU network of small whole numbers, which every type represents exactly.

    Its sizes exceed a product's blocks, panels and pairs. The results are exact as well, except for
    the gradients of weights, sums over all steps that are rounded.
    """
    rng = np.random.default_rng([index, 17])
    input_size, num_units = (int(rng.integers(1, high)) for high in (700, (90, 560)[index % 2]))
    direction = str(rng.choice(["unidirectional", "bidirectional"]))
    config = RnnConfig(
        "rnn_relu", int(rng.integers(1, 3)), num_units, input_size, direction=direction
    )
    max_time, batch_size = int(rng.integers(1, 5)), int(rng.choice([1, 3, 20, 70]))
    case = Case(index, config, max_time, batch_size, bool(rng.random() < 0.5), True, None)

    def draw(*shape: int, share: float = 1.0) -> np.ndarray:
        return rng.integers(-2, 3, shape) * (rng.random(shape) < share) * 1.0

    out, dirs = config.num_units, config.layout.num_dirs
    states = (draw(*config.state_shapes(batch_size, case.time_major)[0]),)
    leading = (max_time, batch_size) if case.time_major else (batch_size, max_time)
    data = Data(
        draw(*leading, input_size),
        states,
        draw(config.layout.size, share=1.5 / max(input_size, num_units)),
        np.zeros(2, np.int64),
        draw(*leading, dirs * out),
        (draw(*states[0].shape),),
    )
    expected = run_reference(case, data)[1]
    for name, value in expected.named().items():
        assert name == "d_params" or np.abs(value).max() <= 256, (name, str(case))
    return case, data, expected


def inexact_whole_numbers(index: int, dtype: str) -> list[str]:
    """Returns the names of the tensors that are not exactly what they must be."""
    case, data, expected = draw_whole_numbers(index)

    def cast(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(cast, value))
        return value.astype(numpy_dtype(dtype)) if value.dtype == np.float64 else value

    results = run_ops(case, Data(*map(cast, data)))
    return [
        f"{name} of {case}"
        for name, value in results.named().items()
        if not np.array_equal(value, cast(expected.named()[name]))
    ]


def draw_smooth_data(case: Case, dtype: str) -> tuple[Data, Results]:
    """Draws data for which rounding moves no number over a kink; returns the results as well.

    If a ReLU's argument is on the wrong side of zero, or a cell state on the wrong side of the
    clip, a gradient is completely wrong. Data are drawn again if the type's rounding could move
    a number so far.
    """
    reach = 1e-10 if dtype == "float64" else 1e-5
    for attempt in range(20):
        data = draw_data(case, dtype, attempt)
        run, results = run_reference(case, data)
        if run.margin > reach:
            return data, results
    raise AssertionError(f"no data without a number within {reach} of a kink: {case}")


def run_reference(case: Case, data: Data) -> tuple[reference.Forward, Results]:
    """Returns the reference's forward pass over `data`, and its results."""
    masks = recurrent_masks = zones = None
    if case.is_training:
        masks = reference_masks.dropout_masks(
            case.config, data.seed, case.max_time, case.batch_size
        )
        recurrent_masks = reference_masks.recurrent_dropout_masks(
            case.config, data.seed, case.batch_size
        )
        zones = reference_masks.zones(case.config, data.seed, case.max_time, case.batch_size)
    run = reference.forward(
        case.config,
        data.inputs,
        data.states,
        *reference.split_params(case.config, data.params),
        sequence_lengths=case.sequence_lengths,
        resets=case.resets,
        masks=masks,
        recurrent_masks=recurrent_masks,
        zones=zones,
        time_major=case.time_major,
    )
    gradients = reference.backward(run, *data[4:])
    cells = (run.cells,) * case.has_cell_sequences
    return run, Results(run.outputs, run.states, *gradients, cells)


def run_ops(case: Case, data: Data, jit_compile: bool | None = None) -> Results:
    return run_forward(
        ops.forward,
        case,
        data,
        seed=tf.constant(data.seed),
        is_training=case.is_training,
        jit_compile=jit_compile,
    )


def run_forward(
    forward: Callable[..., Any],
    case: Case,
    data: Data,
    unconnected_gradients: str = "none",
    jit_compile: bool | None = None,
    **options: Any,
) -> Results:
    """Returns the results of a function like `ops.forward`, with gradients from a tape.

    If `jit_compile` is not None, both passes run in one `tf.function`, which has this argument.
    """
    inputs, params = tf.constant(data.inputs), tf.constant(data.params)
    lengths = case.sequence_lengths
    if case.has_resets:
        options["resets"] = tf.constant(case.resets)
    if case.has_cell_sequences:
        options["return_cell_sequences"] = True
    states = [tf.constant(state) for state in data.states]

    def run(inputs: tf.Tensor, params: tf.Tensor, *states: tf.Tensor) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            tape.watch([inputs, params, *states])
            outputs, final_states, *cells = forward(
                case.config,
                inputs,
                states,
                params,
                sequence_lengths=None if lengths is None else tf.constant(lengths, tf.int32),
                time_major=case.time_major,
                **options,
            )
        d_inputs, d_params, *d_states = tape.gradient(
            [outputs, *final_states, *cells],
            [inputs, params, *states],
            output_gradients=list(
                map(tf.constant, (data.d_outputs, *data.d_states, *data.d_cells))
            ),
            unconnected_gradients=unconnected_gradients,
        )
        return outputs, tuple(final_states), d_inputs, tuple(d_states), d_params, tuple(cells)

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    return Results(
        *tf.nest.map_structure(lambda tensor: tensor.numpy(), run(inputs, params, *states))
    )


def errors(results: Results, expected: Results, dtype: str) -> dict[str, float]:
    """Returns the error of each tensor, relative to the largest magnitude in it.

    The half types compute in float32 and round once, when they are stored. The error of this
    rounding, relative to each number, is subtracted first.
    """
    return {
        name: _error(value, expected.named()[name], dtype)
        for name, value in results.named().items()
    }


def beyond_tolerance(
    case: Case, results: Results, expected: Results, dtype: str, rounds_factors: bool
) -> dict[str, float]:
    """Returns the errors of the tensors whose errors are too large."""
    if not rounds_factors:
        found = errors(results, expected, dtype)
        return {name: error for name, error in found.items() if not error <= TOLERANCE[dtype]}
    of_outputs, smooth, kinked = RMS_TOLERANCE[dtype]
    of_gradients = kinked if has_kinks(case) else smooth
    return {
        name: error
        for name, error in rms_errors(results, expected).items()
        if not error <= (of_gradients if name.startswith("d_") else of_outputs)
    }


def has_kinks(case: Case) -> bool:
    """Returns whether a rounded number may be on the other side of a kink."""
    names = {case.config.activation, case.config.recurrent_activation}
    kinky = {name for name, (_, _, kinks) in ACTIVATIONS.items() if kinks}
    return case.config.rnn_mode == "rnn_relu" or case.config.cell_clip > 0 or bool(names & kinky)


def cpu_rounds_factors(dtype: str) -> bool:
    """Returns whether products on this CPU round their factors to the type of the data."""
    return dtype == "bfloat16" and native.info()["cpu_isa"] in ("avx512bf16", "amx")


def rms_errors(results: Results, expected: Results) -> dict[str, float]:
    """Returns the root mean squares of the errors, divided by those of the numbers."""
    return {
        name: rms_error(value, expected.named()[name])
        for name, value in results.named().items()
        if value.size
    }


def rms_error(value: np.ndarray, expected: np.ndarray) -> float:
    scale = np.linalg.norm(expected.ravel()) or 1.0
    return float(np.linalg.norm((value.astype(np.float64) - expected).ravel()) / scale)


def _error(value: np.ndarray, expected: np.ndarray, dtype: str) -> float:
    assert value.shape == expected.shape
    if not value.size:
        return 0.0
    difference = np.abs(value.astype(np.float64) - expected)
    if dtype in ("float16", "bfloat16"):
        tiny = 2.0**-25 if dtype == "float16" else 0.0  # This is half the distance of denormals.
        difference = np.maximum(difference - np.abs(expected) * UNIT_ROUNDOFF[dtype] - tiny, 0.0)
    scale = np.abs(expected).max()
    return float(difference.max() / scale) if scale else float(difference.max())


def bits(results: Results) -> Sequence[bytes]:
    return [array.tobytes() for array in results.named().values()]
