"""Tests the errors of `ops.forward`, which wraps an op, and of the configuration that it takes."""

from typing import Any

import numpy as np
import pytest
from test_ops_errors import FORWARD, assert_raises, call, zeros

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

LSTM = RnnConfig("lstm", 1, 3, 5, direction="bidirectional")


def run_wrapper(mode: str, changes: dict[str, Any], config: RnnConfig = LSTM) -> Any:
    names = ["input", "input_h", "input_c", "params"]
    arguments = {name: FORWARD[name] for name in names} | changes
    attrs = {name: arguments.pop(name) for name in ("time_major",) if name in arguments}

    def function(inputs, h, c, params, *rest):
        return ops.forward(
            config,
            inputs,
            (h, c) if config.is_lstm else (h,),
            params,
            **dict(zip(list(arguments)[4:], rest, strict=True)),
            **attrs,
        )

    return call(mode, function, list(arguments.values()))


BAD_WRAPPER = {
    "inputs_rank": (
        {"input": zeros(4, 5)},
        ["inputs of rank 3, [time, batch, input_size]", "(4, 5)"],
    ),
    "inputs_rank_batch_major": (
        {"input": zeros(4, 5), "time_major": False},
        ["inputs of rank 3, [batch, time, input_size]", "(4, 5)"],
    ),
    "h": ({"input_h": zeros(2, 3, 3)}, ["initial h of shape (2, 2, 3)", "received (2, 3, 3)"]),
    "c": ({"input_c": zeros(2, 2, 4)}, ["initial c of shape (2, 2, 3)", "received (2, 2, 4)"]),
    "params": ({"params": zeros(9)}, ["params of shape (240,)", "received (9,)"]),
    "lengths_rank": (
        {"sequence_lengths": zeros(1, 2, dtype=np.int32)},
        ["sequence_lengths of shape (2,) ([batch])", "received (1, 2)"],
    ),
    "lengths_count": (
        {"sequence_lengths": zeros(3, dtype=np.int32)},
        ["sequence_lengths of shape (2,) ([batch])", "received (3,)"],
    ),
}


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("name", BAD_WRAPPER)
def test_wrapper_checks_static_shapes(name, mode):
    changes, parts = BAD_WRAPPER[name]
    assert_raises(ValueError, parts, lambda: run_wrapper(mode, changes))


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_wrapper_checks_the_number_of_states(mode):
    for config, count in ((LSTM, 1), (RnnConfig("gru", 1, 3, 5), 2)):
        tensors = [zeros(4, 2, 5), zeros(config.layout.size), *[zeros(2, 2, 3)] * count]
        assert_raises(
            ValueError,
            [f"expected {3 - count} initial states", config.rnn_mode, f"received {count}"],
            lambda config=config, tensors=tensors: call(
                mode, lambda x, params, *states: ops.forward(config, x, states, params), tensors
            ),
        )


# The configuration.

BAD_CONFIGS = {
    "rnn_mode": ({"rnn_mode": "LSTM"}, ["rnn_mode", "'lstm', 'gru'", "'LSTM'"]),
    "direction": ({"direction": "both"}, ["direction", "'bidirectional'", "'both'"]),
    "input_mode": ({"input_mode": "skip"}, ["input_mode", "'skip_input'", "'skip'"]),
    "bias_mode": ({"bias_mode": "single"}, ["bias_mode", "'single_input'", "'single'"]),
    "num_layers": ({"num_layers": 0}, ["num_layers", "at least 1", "received 0"]),
    "num_units": ({"num_units": -3}, ["num_units", "at least 1", "received -3"]),
    "input_size": ({"input_size": 0}, ["input_size", "at least 1", "received 0"]),
    "num_proj_negative": ({"num_proj": -1}, ["num_proj", "positive", "received -1"]),
    "num_proj_too_large": (
        {"num_proj": 4},
        ["num_proj", "at most num_units", "received 4", "num_units 3"],
    ),
    "num_proj_of_gru": (
        {"rnn_mode": "gru", "num_proj": 2},
        ["num_proj is for LSTMs only", "received 2", "'gru'"],
    ),
    "skip_input": ({"input_mode": "skip_input"}, ["skip_input", "input_size 5", "num_units 3"]),
    "dropout_1": ({"dropout": 1.0}, ["dropout", "[0, 1)", "received 1.0"]),
    # This is 1 in float32, the type of attributes.
    "dropout_nearly_1": ({"dropout": 1.0 - 1e-12}, ["dropout", "[0, 1)", "received 1.0"]),
    "dropout_negative": ({"dropout": -0.25}, ["dropout", "[0, 1)", "received -0.25"]),
    "recurrent_dropout": ({"recurrent_dropout": 1.0}, ["recurrent_dropout", "[0, 1)"]),
    "dropout_nan": ({"dropout": float("nan")}, ["dropout", "[0, 1)", "received nan"]),
    "cell_clip_negative": ({"cell_clip": -1.0}, ["cell_clip", "positive", "-1.0"]),
    "cell_clip_nan": ({"cell_clip": float("nan")}, ["cell_clip", "positive", "nan"]),
    "cell_clip_infinite": ({"cell_clip": float("inf")}, ["cell_clip", "finite", "inf"]),
    "cell_clip_of_gru": (
        {"rnn_mode": "gru", "cell_clip": 1.0},
        ["is for LSTMs", "'gru'"],
    ),
    "cell_clip_denormal": ({"cell_clip": 1e-40}, ["normal float32", "received 1e-40"]),
    "cell_clip_large": ({"cell_clip": 1e39}, ["normal float32", "received 1e+39"]),
    "layers": ({"num_layers": 65536}, ["num_layers must be at most 65535", "received 65536"]),
    "units": ({"num_units": 2**31}, ["num_units must fit 32 bits", "received 2147483648"]),
    "units_of_65_bits": ({"num_units": 2**63}, ["num_units to fit 64 bits", "9223372036854775808"]),
    "inputs": ({"input_size": 2**62}, ["input_size must fit 32 bits"]),
    "too_large": ({"num_units": 2**31 - 1}, ["too large", "num_units 2147483647"]),
}


@pytest.mark.parametrize(
    "error, changes, parts",
    [
        *((ValueError, *bad) for bad in BAD_CONFIGS.values()),
        (TypeError, {"num_units": 2.5}, ["num_units", "integer", "received 2.5"]),
        (TypeError, {"num_units": True}, ["num_units", "integer", "received True"]),
        (TypeError, {"num_layers": "2"}, ["num_layers", "integer", "'2'"]),
        (TypeError, {"num_proj": None}, ["num_proj", "integer", "None"]),
        (TypeError, {"dropout": "0.5"}, ["dropout", "number", "'0.5'"]),
        (TypeError, {"cell_clip": None}, ["cell_clip", "number", "None"]),
        (TypeError, {"rnn_mode": 3}, ["rnn_mode", "string", "received 3"]),
    ],
    ids=str,
)
def test_bad_config(error, changes, parts):
    good = {"rnn_mode": "lstm", "num_layers": 1, "num_units": 3, "input_size": 5}
    RnnConfig(**good)
    assert_raises(error, parts, lambda: RnnConfig(**(good | changes)))


def test_config_takes_numpy_numbers():
    config = RnnConfig("lstm", np.int64(1), np.int32(3), np.int64(5), dropout=np.float32(0.5))
    assert config == RnnConfig("lstm", 1, 3, 5, dropout=0.5)
    assert isinstance(config.num_units, int)
    assert isinstance(config.dropout, float)
