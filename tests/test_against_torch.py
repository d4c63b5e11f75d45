"""The ops and the Keras layers against `torch.nn.LSTM`, `GRU` and `RNN`, over random networks."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from layer_reference import LAYERS

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

torch = pytest.importorskip("torch")

# Networks this small gain nothing from several threads, which wait for each other.
torch.set_num_threads(1)

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

# The largest errors, as parts of the largest magnitude in a tensor. Two programs that add up a few
# hundred products in different orders agree in 13 digits in float64 and in 6 in float32; steps and
# layers cost one more.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    index: int
    rnn_mode: str
    num_layers: int
    bidirectional: bool
    input_size: int
    num_units: int
    num_proj: int
    bias: bool
    batch_first: bool
    lengths: tuple[int, ...] | None
    batch_size: int
    max_time: int
    dtype: str

    @property
    def num_dirs(self) -> int:
        return 2 if self.bidirectional else 1

    def __str__(self) -> str:
        flags = ("bidirectional", "bias", "batch_first")
        parts = [f"{self.index:02d}", self.rnn_mode, f"L{self.num_layers}", self.dtype]
        parts += [name for name in flags if getattr(self, name)]
        parts += [f"P{self.num_proj}"] * bool(self.num_proj) + ["packed"] * bool(self.lengths)
        return "-".join(parts)


class Data(NamedTuple):
    """Inputs and upstream gradients, in PyTorch's layout: states are [L * D, B, n]."""

    inputs: np.ndarray
    states: tuple[np.ndarray, ...]
    d_outputs: np.ndarray
    d_states: tuple[np.ndarray, ...]


class Results(NamedTuple):
    """Results in PyTorch's layout; the parameters' gradients are an opaque buffer."""

    outputs: np.ndarray
    states: tuple[np.ndarray, ...]
    d_inputs: np.ndarray
    d_states: tuple[np.ndarray, ...]
    d_params: np.ndarray


def random_case(rng: np.random.Generator, index: int) -> Case:
    rnn_mode = ("lstm", "gru", "rnn_tanh", "rnn_relu")[index % 4]
    num_units = int(rng.integers(2, 20))
    batch_size, max_time = (int(n) for n in rng.integers(1, 8, size=2))
    lengths = None
    if rng.random() < 0.5:
        # PyTorch does not allow empty sequences.
        lengths = tuple(int(n) for n in rng.integers(1, max_time + 1, size=batch_size))
    return Case(
        index=index,
        rnn_mode=rnn_mode,
        num_layers=int(rng.integers(1, 4)),
        bidirectional=bool(rng.random() < 0.5),
        input_size=int(rng.integers(1, 20)),
        num_units=num_units,
        num_proj=int(rng.integers(1, num_units))
        if rnn_mode == "lstm" and rng.random() < 0.5
        else 0,
        bias=bool(rng.random() < 0.6),
        batch_first=bool(rng.random() < 0.5),
        lengths=lengths,
        batch_size=batch_size,
        max_time=max_time,
        dtype=("float64", "float32")[index // 4 % 2],
    )


_rng = np.random.default_rng(7)
CASES = [random_case(_rng, index) for index in range(80)]


def draw_data(case: Case) -> Data:
    rng = np.random.default_rng(case.index)
    lead = (case.max_time, case.batch_size)
    lead = lead[::-1] if case.batch_first else lead
    out = case.num_proj or case.num_units
    sizes = (out, case.num_units) if case.rnn_mode == "lstm" else (out,)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(case.dtype)

    def draw_states() -> tuple[np.ndarray, ...]:
        return tuple(draw(case.num_layers * case.num_dirs, case.batch_size, n) for n in sizes)

    return Data(
        inputs=draw(*lead, case.input_size),
        states=draw_states(),
        d_outputs=draw(*lead, out * case.num_dirs),
        d_states=draw_states(),
    )


def make_torch_module(case: Case) -> Any:
    torch.manual_seed(case.index)
    options = {
        "input_size": case.input_size,
        "hidden_size": case.num_units,
        "num_layers": case.num_layers,
        "bias": case.bias,
        "batch_first": case.batch_first,
        "bidirectional": case.bidirectional,
        "dtype": getattr(torch, case.dtype),
    }
    if case.rnn_mode == "lstm":
        return torch.nn.LSTM(proj_size=case.num_proj, **options)
    if case.rnn_mode == "gru":
        return torch.nn.GRU(**options)
    return torch.nn.RNN(nonlinearity=case.rnn_mode.removeprefix("rnn_"), **options)


def opaque_buffer(case: Case, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """Returns PyTorch's parameters, or their gradients, in the order of the opaque buffer.

    PyTorch stacks the gates in cuDNN's order, i f g o and r z n.
    """

    def canonical(kinds: tuple[str, ...]) -> Iterator[np.ndarray]:
        for layer in range(case.num_layers):
            for suffix in ("", "_reverse")[: case.num_dirs]:
                for kind in kinds:
                    stacked = parameters.get(f"{kind}_l{layer}{suffix}")
                    if stacked is not None:
                        yield from np.split(
                            stacked, 1 if kind == "weight_hr" else GATES[case.rnn_mode]
                        )

    tensors = [
        *canonical(("weight_ih", "weight_hh", "weight_hr")),
        *canonical(("bias_ih", "bias_hh")),
    ]
    return np.concatenate([tensor.ravel() for tensor in tensors])


def run_torch(case: Case, module: Any, data: Data) -> Results:
    inputs = torch.tensor(data.inputs, requires_grad=True)
    states = [torch.tensor(state, requires_grad=True) for state in data.states]
    sequences = inputs
    if case.lengths:
        sequences = torch.nn.utils.rnn.pack_padded_sequence(
            inputs, case.lengths, batch_first=case.batch_first, enforce_sorted=False
        )
    outputs, final = module(sequences, tuple(states) if case.rnn_mode == "lstm" else states[0])
    if case.lengths:
        outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(
            outputs, batch_first=case.batch_first, total_length=case.max_time
        )
    final = final if case.rnn_mode == "lstm" else (final,)
    torch.autograd.backward(
        [outputs, *final], [torch.tensor(d) for d in (data.d_outputs, *data.d_states)]
    )
    return Results(
        outputs.detach().numpy(),
        tuple(state.detach().numpy() for state in final),
        inputs.grad.numpy(),
        tuple(state.grad.numpy() for state in states),
        opaque_buffer(case, {name: p.grad.numpy() for name, p in module.named_parameters()}),
    )


def run_tensorflow(
    case: Case, data: Data, params: tf.Tensor | tf.Variable, call: Callable[..., Any]
) -> Results:
    """`call` takes inputs, states and lengths, and returns outputs and states."""

    def relaid(state: np.ndarray) -> tf.Tensor:
        return tf.constant(state.swapaxes(0, 1) if case.batch_first else state)

    def in_torch_layout(state: tf.Tensor) -> np.ndarray:
        return state.numpy().swapaxes(0, 1) if case.batch_first else state.numpy()

    inputs = tf.constant(data.inputs)
    states = [relaid(state) for state in data.states]
    lengths = tf.constant(case.lengths) if case.lengths else None
    with tf.GradientTape() as tape:
        tape.watch([inputs, params, *states])
        outputs, final = call(inputs, states, lengths)
    d_inputs, d_params, *d_states = tape.gradient(
        [outputs, *final],
        [inputs, params, *states],
        output_gradients=[tf.constant(data.d_outputs), *map(relaid, data.d_states)],
    )
    return Results(
        outputs.numpy(),
        tuple(map(in_torch_layout, final)),
        d_inputs.numpy(),
        tuple(map(in_torch_layout, d_states)),
        d_params.numpy(),
    )


def run_ops(case: Case, data: Data, params: np.ndarray) -> Results:
    config = RnnConfig(
        case.rnn_mode,
        case.num_layers,
        case.num_units,
        case.input_size,
        direction="bidirectional" if case.bidirectional else "unidirectional",
        bias_mode="double" if case.bias else "none",
        num_proj=case.num_proj,
    )
    params = tf.constant(params)

    def call(inputs, states, lengths):
        return ops.forward(
            config,
            inputs,
            states,
            params,
            sequence_lengths=lengths,
            time_major=not case.batch_first,
        )

    return run_tensorflow(case, data, params, call)


def run_layer(case: Case, data: Data, params: np.ndarray) -> Results:
    layer = LAYERS[case.rnn_mode](
        case.num_layers,
        case.num_units,
        direction="bidirectional" if case.bidirectional else "unidirectional",
        bias_mode="double" if case.bias else "none",
        return_state=True,
        time_major=not case.batch_first,
        dtype=case.dtype,
        **({"num_proj": case.num_proj or None} if case.rnn_mode == "lstm" else {}),
    )
    layer.build(data.inputs.shape)
    layer.kernel.assign(params)

    def call(inputs, states, lengths):
        outputs, *final = layer(
            inputs, initial_state=states, sequence_lengths=lengths, training=True
        )
        return outputs, final

    return run_tensorflow(case, data, layer.kernel.value, call)


def assert_close(case: Case, results: Results, expected: Results) -> None:
    for name, values, references in zip(Results._fields, results, expected, strict=True):
        values = values if isinstance(values, tuple) else (values,)
        references = references if isinstance(references, tuple) else (references,)
        for value, reference in zip(values, references, strict=True):
            scale = max(np.abs(reference).max(), np.finfo(case.dtype).tiny)
            np.testing.assert_allclose(
                value / scale,
                reference / scale,
                rtol=0,
                atol=TOLERANCE[case.dtype],
                err_msg=name,
            )


def test_cases_cover_all_attributes():
    for mode in GATES:
        cases = [case for case in CASES if case.rnn_mode == mode]
        assert {case.num_layers for case in cases} == {1, 2, 3}
        for name in ("bidirectional", "bias", "batch_first", "dtype"):
            assert len({getattr(case, name) for case in cases}) == 2, name
        assert {case.lengths is None for case in cases} == {True, False}
    lstms = [case for case in CASES if case.rnn_mode == "lstm"]
    assert {(bool(case.num_proj), case.bidirectional) for case in lstms} == {
        (projects, both) for projects in (True, False) for both in (True, False)
    }


@pytest.mark.parametrize("run", [run_ops, run_layer])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_torch(case, run):
    module, data = make_torch_module(case), draw_data(case)
    expected = run_torch(case, module, data)
    params = opaque_buffer(
        case, {name: p.detach().numpy() for name, p in module.named_parameters()}
    )
    assert_close(case, run(case, data, params), expected)
