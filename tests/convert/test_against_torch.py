"""The ops against `torch.nn.LSTM`, `GRU` and `RNN`, over random networks."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import random_configs
import reference
from random_configs import Case, Data, Results

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


def as_torch_has_it(case: Case) -> Case:
    """Returns a case without what PyTorch lacks: empty sequences, for example."""
    config, lengths = case.config, case.sequence_lengths
    config = dataclasses.replace(
        config,
        rnn_mode={"gru_reset_before": "gru", "lstm_peephole": "lstm"}.get(*[config.rnn_mode] * 2),
        input_mode="linear_input",
        bias_mode="none" if config.bias_mode == "none" else "double",
        num_proj=min(config.num_proj, config.num_units - 1),
        dropout=0.0,
        cell_clip=0.0,
        activation="",
        recurrent_activation="",
    )
    lengths = None if lengths is None else tuple(max(1, length) for length in lengths)
    return dataclasses.replace(case, config=config, sequence_lengths=lengths, is_training=True)


CASES = [as_torch_has_it(case) for case in random_configs.random_cases(100, seed=7)]


def make_torch_module(case: Case, dtype: str) -> Any:
    torch.manual_seed(case.index)
    config = case.config
    options = {
        "input_size": config.input_size,
        "hidden_size": config.num_units,
        "num_layers": config.num_layers,
        "bias": config.bias_mode == "double",
        "batch_first": not case.time_major,
        "bidirectional": config.direction == "bidirectional",
        "dtype": getattr(torch, dtype),
    }
    if config.rnn_mode == "lstm":
        return torch.nn.LSTM(proj_size=config.num_proj, **options)
    if config.rnn_mode == "gru":
        return torch.nn.GRU(**options)
    return torch.nn.RNN(nonlinearity=config.rnn_mode.removeprefix("rnn_"), **options)


def opaque_buffer(case: Case, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """Returns PyTorch's parameters, or their gradients, in the order of the opaque buffer.

    PyTorch stacks the gates in cuDNN's order, i f g o and r z n.
    """
    gates = reference.NUM_GATES[case.config.rnn_mode]

    def canonical(kinds: tuple[str, ...]) -> Iterator[np.ndarray]:
        for layer in range(case.config.num_layers):
            for suffix in ("", "_reverse")[: reference.num_dirs(case.config)]:
                for kind in kinds:
                    stacked = parameters.get(f"{kind}_l{layer}{suffix}")
                    if stacked is not None:
                        yield from np.split(stacked, 1 if kind == "weight_hr" else gates)

    weights = canonical(("weight_ih", "weight_hh", "weight_hr"))
    biases = canonical(("bias_ih", "bias_hh"))
    return np.concatenate([tensor.ravel() for tensor in (*weights, *biases)])


def run_torch(case: Case, module: Any, data: Data) -> Results:
    def relaid(state: np.ndarray) -> np.ndarray:
        return state if case.time_major else state.swapaxes(0, 1)

    inputs = torch.tensor(data.inputs, requires_grad=True)
    states = [torch.tensor(relaid(state), requires_grad=True) for state in data.states]
    sequences = inputs
    if case.sequence_lengths:
        sequences = torch.nn.utils.rnn.pack_padded_sequence(
            *(inputs, case.sequence_lengths, module.batch_first), enforce_sorted=False
        )
    is_lstm = case.config.rnn_mode == "lstm"
    outputs, final = module(sequences, tuple(states) if is_lstm else states[0])
    if case.sequence_lengths:
        outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(
            outputs, module.batch_first, total_length=case.max_time
        )
    final = final if is_lstm else (final,)
    upstream = [data.d_outputs, *map(relaid, data.d_states)]
    torch.autograd.backward([outputs, *final], list(map(torch.tensor, upstream)))
    return Results(
        outputs.detach().numpy(),
        tuple(relaid(state.detach().numpy()) for state in final),
        inputs.grad.numpy(),
        tuple(relaid(state.grad.numpy()) for state in states),
        opaque_buffer(case, {name: p.grad.numpy() for name, p in module.named_parameters()}),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_torch(case):
    # In float32, rounding moves a number over a ReLU's kink now and then.
    is_exact = case.config.rnn_mode == "rnn_relu" or case.index % 2 == 0
    dtype = "float64" if is_exact else "float32"
    module, data = make_torch_module(case, dtype), random_configs.draw_data(case, dtype)
    named = {name: p.detach().numpy() for name, p in module.named_parameters()}
    data = data._replace(params=opaque_buffer(case, named))
    expected = run_torch(case, module, data)
    errors = random_configs.errors(random_configs.run_ops(case, data), expected, dtype)
    assert max(errors.values()) < TOLERANCE[dtype], errors
