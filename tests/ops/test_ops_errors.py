"""Tests the ops' errors: eagerly, while a function is traced, and when it runs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fresh_process import run_program

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.ops.op_library import raw_ops

# In mode "traced", shapes are known when a function is traced; in mode "run", only when it runs.
MODES = pytest.mark.parametrize("mode", ["eager", "traced", "run"])


def call(mode: str, function: Callable, tensors: Sequence[np.ndarray]) -> Any:
    tensors = [tf.constant(tensor) for tensor in tensors]
    if mode == "eager":
        return function(*tensors)
    signature = [tf.TensorSpec(None if mode == "run" else t.shape, t.dtype) for t in tensors]
    return tf.function(function, input_signature=signature, autograph=False)(*tensors)


def error_of(mode: str) -> type[Exception]:
    """Returns the type of an op's INVALID_ARGUMENT error, which tracing makes a ValueError."""
    return ValueError if mode == "traced" else tf.errors.InvalidArgumentError


def configuration_error_of(mode: str) -> type[Exception]:
    """Returns the same for errors in attributes, which tracing finds without shapes."""
    return error_of("eager" if mode == "eager" else "traced")


def assert_raises(
    error: type[Exception] | tuple[type[Exception], ...], parts: Sequence[str], function: Callable
) -> None:
    with pytest.raises(error) as caught:
        function()
    # The node's definition, which repeats all attributes, and a function's source are cut off.
    message = str(caught.value).split(" for '{{node")[0].split("; NodeDef:")[0]
    for part in parts:
        assert part in message


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


# What is wrong with a configuration alone, test_forward_errors.py asks of RnnConfig, which has the
# same check. The arguments of a good call of Forward: a bidirectional LSTM, time-major [4, 2, 5].
SIZE = 2 * (4 * 3 * 5 + 4 * 3 * 3 + 8 * 3)
FORWARD = {
    "input": zeros(4, 2, 5),
    "input_h": zeros(2, 2, 3),
    "input_c": zeros(2, 2, 3),
    "params": zeros(SIZE),
    "sequence_lengths": zeros(0, dtype=np.int32),
    "seed": zeros(2, dtype=np.int64),
    "rnn_mode": "lstm",
    "num_units": 3,
    "direction": "bidirectional",
}


def lengths(*values: int, dtype: Any = np.int32) -> dict[str, Any]:
    return {"has_sequence_lengths": True, "sequence_lengths": np.array(values, dtype)}


def run_raw(mode: str, op: Callable, arguments: dict[str, Any]) -> Any:
    names = [name for name, value in arguments.items() if isinstance(value, np.ndarray)]
    attrs = {name: value for name, value in arguments.items() if name not in names}

    def function(*tensors):
        given = dict(zip(names, tensors, strict=True))
        lists = {name: [given[name]] if name in given else [] for name in ("seed", "resets")}
        if op is raw_ops.cudnn_rnn_tf_backward:
            name = "cell_sequences_backprop"
            lists[name] = [given[name]] if name in given else []
        return op(**given | lists, **attrs)

    return call(mode, function, [arguments[name] for name in names])


BAD_FORWARD = {
    "input_rank_2": (
        {"input": zeros(4, 5)},
        ["input of rank 3, [time, batch, input_size]", "[4,5]"],
    ),
    "input_rank_2_batch_major": (
        {"input": zeros(4, 5), "time_major": False},
        ["input of rank 3, [batch, time, input_size]", "[4,5]"],
    ),
    "resets": (
        {"resets": zeros(2, 4, dtype=bool)},
        ["resets of shape [4,2]", "received [2,4]"],
    ),
    "cells_of_another_type": ({"Tcells": [tf.float16]}, ["cell_sequences of an LSTM, of the type"]),
    "cells_of_gru": ({"rnn_mode": "gru", "Tcells": [tf.float32]}, ["cell_sequences of an LSTM"]),
    "h_size": ({"input_h": zeros(2, 2, 4)}, ["input_h of shape [2,2,3]", "received [2,2,4]"]),
    "h_without_projection": (
        {"num_proj": 2, "params": zeros(2 * (4 * 3 * 5 + 4 * 3 * 2 + 6 + 24))},
        ["input_h of shape [2,2,2]", "received [2,2,3]"],
    ),
    "c_missing": ({"input_c": zeros(0)}, ["input_c of shape [2,2,3]", "received [0]"]),
    "c_of_gru": (
        {"rnn_mode": "gru", "params": zeros(2 * 3 * (15 + 9 + 6))},
        ["input_c of shape [0]", "received [2,2,3]"],
    ),
    "params_size": ({"params": zeros(SIZE - 1)}, ["params of shape [240]", "received [239]"]),
    "lengths_count": (lengths(1, 2, 3), ["sequence_lengths of shape [2]", "received [3]"]),
    "lengths_rank": (lengths([1, 2]), ["sequence_lengths of shape [2]", "received [1,2]"]),
    "lengths_unannounced": (
        {"sequence_lengths": np.array([1, 2], np.int32)},
        ["sequence_lengths of shape [0]", "received [2]"],
    ),
    "seed_size": ({"seed": zeros(3, dtype=np.int64)}, ["seed of shape [2]", "received [3]"]),
    "dropout_1": ({"dropout": 1.0}, ["dropout must lie in [0, 1)", "received 1.0"]),
    # Sizes must be checked before they are used.
    "too_many_units": ({"num_units": 2**40}, ["num_units must fit 32 bits", "1099511627776"]),
}


@MODES
@pytest.mark.parametrize("rates", [{"dropout": 0.5, "num_layers": 2}, {"recurrent_dropout": 0.5}])
def test_a_seed_is_needed_where_masks_are_drawn(mode, rates):
    network = FORWARD | {"rnn_mode": "gru", "input_c": zeros(0)} | rates
    network["input_h"] = zeros(2 * network.get("num_layers", 1), 2, 3)
    config = RnnConfig("gru", network.get("num_layers", 1), 3, 5, direction="bidirectional")
    network["params"] = zeros(config.layout.size)
    del network["seed"]
    op = raw_ops.cudnn_rnn_tf_forward
    run_raw(mode, op, network | {"is_training": False})
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a seed, since dropout"):
        run_raw(mode, op, network)
    seeds = [np.zeros(2, np.int64)] * 2
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="at most one seed"):
        run_raw("eager", lambda **arguments: op(**arguments | {"seed": seeds}), network)


def test_a_node_of_an_older_graph_has_a_seed():
    """Some attributes are younger than graphs that people have saved."""
    arguments = FORWARD | {"seed": [FORWARD["seed"]], "resets": []}
    with tf.Graph().as_default() as graph:
        raw_ops.cudnn_rnn_tf_forward(**arguments, name="node")
    definition = graph.as_graph_def()
    (node,) = [node for node in definition.node if node.name == "node"]
    assert len(node.attr["Tseed"].list.type) == 1 and len(node.input) == 6
    for younger in ("Tseed", "Tresets", "Tcells", "recurrent_dropout"):
        del node.attr[younger]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(definition, name="")
        output = session.run("node:0")
    expected, *_ = raw_ops.cudnn_rnn_tf_forward(**arguments)
    np.testing.assert_array_equal(output, expected)


@MODES
@pytest.mark.parametrize("has_lengths", [False, True], ids=["full", "lengths"])
def test_good_forward(mode, has_lengths):
    """Each call below differs from this one only in the error that it tests."""
    output, h, c, *_ = run_raw(
        mode, raw_ops.cudnn_rnn_tf_forward, FORWARD | (lengths(0, 4) if has_lengths else {})
    )
    assert (output.shape, h.shape, c.shape) == ((4, 2, 6), (2, 2, 3), (2, 2, 3))


@MODES
@pytest.mark.parametrize(
    "changes, traced, run",
    [
        (
            {"input_h": zeros(2, 3, 3)},
            ["input_h of shape [2,2,3]", "received [2,3,3]"],
            ["expected inputs of batch size 3", "received 2", "drop_remainder"],
        ),
        (
            {"input": zeros(4, 2, 4)},
            ["params of shape [216]", "received [240]"],
            ["params of shape [216]", "received [240]", "inputs of size 4 in the last dim"],
        ),
    ],
)
def test_inputs_for_which_a_network_was_not_made(changes, traced, run, mode):
    arguments, op = FORWARD | changes, raw_ops.cudnn_rnn_tf_forward
    parts = traced if mode == "traced" else run
    assert_raises(error_of(mode), parts, lambda: run_raw(mode, op, arguments))


@MODES
@pytest.mark.parametrize(
    "values, part",
    [
        ((5, 1), r"sequence_lengths\[0\] must lie in \[0, 4\].* received 5"),
        ((2, -1), r"sequence_lengths\[1\] must lie in \[0, 4\].* received -1"),
    ],
)
def test_sequence_lengths_out_of_range(values, part, mode):
    """Errors in values are found when the op runs, in every mode."""
    for op, good in (
        (raw_ops.cudnn_rnn_tf_forward, FORWARD),
        (raw_ops.cudnn_rnn_tf_backward, good_backward()),
    ):
        arguments = good | lengths(*values)
        with pytest.raises(tf.errors.InvalidArgumentError, match=part):
            run_raw(mode, op, arguments)


# Backward.


@functools.cache
def good_backward() -> dict[str, Any]:
    output, h, c, reserve_space, _ = run_raw("eager", raw_ops.cudnn_rnn_tf_forward, FORWARD)
    return FORWARD | {
        "output": output.numpy(),
        "output_h": h.numpy(),
        "output_c": c.numpy(),
        "output_backprop": zeros(4, 2, 6),
        "output_h_backprop": zeros(2, 2, 3),
        "output_c_backprop": zeros(2, 2, 3),
        "reserve_space": reserve_space.numpy(),
    }


BAD_BACKWARD = {
    "output": ({"output": zeros(4, 2, 3)}, ["output of shape [4,2,6]", "received [4,2,3]"]),
    "output_h": ({"output_h": zeros(2, 2, 4)}, ["output_h of shape [2,2,3]", "received [2,2,4]"]),
    "output_c": ({"output_c": zeros(0)}, ["output_c of shape [2,2,3]", "received [0]"]),
    "output_backprop": (
        {"output_backprop": zeros(3, 2, 6)},
        ["output_backprop of shape [4,2,6]", "received [3,2,6]"],
    ),
    "output_h_backprop": (
        {"output_h_backprop": zeros(2, 3)},
        ["output_h_backprop of shape [2,2,3]", "received [2,3]"],
    ),
    "output_c_backprop": (
        {"output_c_backprop": zeros(2, 1, 3)},
        ["output_c_backprop of shape [2,2,3]", "received [2,1,3]"],
    ),
    "reserve_space_rank": (
        {"reserve_space": zeros(2, 2, dtype=np.uint8)},
        ["reserve_space of shape [", "received [2,2]"],
    ),
    "resets": (
        {"resets": zeros(4, dtype=bool)},
        ["resets of shape [4,2]", "received [4]"],
    ),
    "cell_sequences_backprop": (
        {"resets": zeros(4, 2, dtype=bool), "cell_sequences_backprop": zeros(4, 2, 3)},
        ["cell_sequences_backprop of shape [4,2,6]", "received [4,2,3]"],
    ),
    "input": ({"input": zeros(4, 5)}, ["input of rank 3", "[4,5]"]),
    "params": ({"params": zeros(SIZE + 1)}, ["params of shape [240]", "received [241]"]),
    "dropout": ({"dropout": 2.0}, ["dropout must lie in [0, 1)", "received 2.0"]),
}


@MODES
def test_good_backward(mode):
    gradients = run_raw(mode, raw_ops.cudnn_rnn_tf_backward, good_backward())
    assert [g.shape for g in gradients] == [(4, 2, 5), (2, 2, 3), (2, 2, 3), (SIZE,)]


@MODES
@pytest.mark.parametrize(
    "is_backward, name",
    [(bad is BAD_BACKWARD, name) for bad in (BAD_FORWARD, BAD_BACKWARD) for name in bad],
)
def test_bad_tensors_and_attributes(is_backward, name, mode):
    changes, parts = (BAD_BACKWARD if is_backward else BAD_FORWARD)[name]
    op = raw_ops.cudnn_rnn_tf_backward if is_backward else raw_ops.cudnn_rnn_tf_forward
    arguments = (good_backward() if is_backward else FORWARD) | changes
    is_configuration = name.startswith(("cells_", "dropout", "too_"))
    error = (configuration_error_of if is_configuration else error_of)(mode)
    assert_raises(error, parts, lambda: run_raw(mode, op, arguments))


@MODES
# On a GPU, the size modulo 256 names the algorithm: 100 stands for none, and 4 for one without a
# backward pass.
@pytest.mark.parametrize("remainder", [None, 0, 4, 100])
def test_reserve_space_of_wrong_size(remainder, mode):
    """The backend decides the size, so only a kernel can check it."""
    size = good_backward()["reserve_space"].size
    received = 0 if remainder is None else (size // 256 + 1) * 256 + remainder
    changed = good_backward() | {"reserve_space": zeros(received, dtype=np.uint8)}
    assert_raises(
        tf.errors.InvalidArgumentError,
        [f"reserve_space of shape [{size}]", f"received [{received}]"],
        lambda: run_raw(mode, raw_ops.cudnn_rnn_tf_backward, changed),
    )


# The conversions. An rnn_tanh of 3 units over 2 inputs: W [3, 2], R [3, 3], b_W [3], b_R [3].

SMALL = RnnConfig("rnn_tanh", 1, 3, 2)
SMALL_ATTRS = {"rnn_mode": "rnn_tanh", "num_units": 3, "input_size": 2}
SMALL_TENSORS = [zeros(3, 2), zeros(3, 3), zeros(3), zeros(3)]


def pack(*tensors: tf.Tensor, num_weights: int = 2, **attrs: Any) -> tf.Tensor:
    return raw_ops.cudnn_rnn_tf_canonical_to_params(
        weights=tensors[:num_weights], biases=tensors[num_weights:], **(SMALL_ATTRS | attrs)
    )


def unpack(params: tf.Tensor, num_weights: int = 2, num_biases: int = 2, **attrs: Any) -> Any:
    return raw_ops.cudnn_rnn_tf_params_to_canonical(
        params=params, num_weights=num_weights, num_biases=num_biases, **(SMALL_ATTRS | attrs)
    )


@MODES
@pytest.mark.parametrize(
    "index, shape, parts",
    [
        (0, (2, 3), ["shape [3,2]", "kernel", "received [2,3]"]),
        (1, (3, 2), ["shape [3,3]", "recurrent_kernel", "received [3,2]"]),
        (2, (3, 1), ["shape [3]", "bias", "received [3,1]"]),
        (3, (4,), ["shape [3]", "recurrent_bias", "received [4]"]),
    ],
)
def test_canonical_tensor_of_wrong_shape(index, shape, parts, mode):
    tensors = list(SMALL_TENSORS)
    tensors[index] = zeros(*shape)
    name = SMALL.canonical_names[index]
    assert_raises(error_of(mode), [*parts, name], lambda: call(mode, pack, tensors))
    # The wrapper checks static shapes. It names the same things before the op is called.
    error = tf.errors.InvalidArgumentError if mode == "run" else ValueError
    assert_raises(
        error,
        [name, str(tensors[index].shape) if mode != "run" else parts[-1]],
        lambda: call(mode, lambda *t: ops.canonical_to_params(SMALL, t[:2], t[2:]), tensors),
    )


@MODES
def test_canonical_tensors_of_wrong_number(mode):
    tensors = [*SMALL_TENSORS, zeros(3)]
    for split, argument in ((3, "weights"), (2, "biases")):
        for error, function in (
            (configuration_error_of(mode), functools.partial(pack, num_weights=split)),
            (
                ValueError,
                lambda *t, split=split: ops.canonical_to_params(SMALL, t[:split], t[split:]),
            ),
        ):
            with pytest.raises(error, match=f"expected 2 {argument}.* but received 3"):
                call(mode, function, tensors)


@MODES
def test_params_to_canonical_of_wrong_size(mode):
    parts = ["params of shape [21]", "received [20]"]
    assert_raises(error_of(mode), parts, lambda: call(mode, unpack, [zeros(20)]))
    assert_raises(
        tf.errors.InvalidArgumentError if mode == "run" else ValueError,
        parts if mode == "run" else ["params of shape (21,)", "received (20,)"],
        lambda: call(mode, lambda params: ops.params_to_canonical(SMALL, params), [zeros(20)]),
    )


@MODES
@pytest.mark.parametrize("argument", ["num_weights", "num_biases"])
def test_params_to_canonical_of_wrong_number(argument, mode):
    assert_raises(
        configuration_error_of(mode),
        [f"expected 2 {argument.removeprefix('num_')}", "received 5"],
        lambda: call(mode, functools.partial(unpack, **{argument: 5}), [zeros(21)]),
    )


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_conversions_check_the_configuration(mode):
    parts = ["num_proj is for LSTMs only", "received 2", "'rnn_tanh'"]
    error = error_of(mode)
    assert_raises(error, parts, lambda: call(mode, lambda *t: pack(*t, num_proj=2), SMALL_TENSORS))
    assert_raises(error, parts, lambda: call(mode, lambda p: unpack(p, num_proj=2), [zeros(21)]))
    assert_raises(
        error,
        parts,
        lambda: call(mode, lambda: raw_ops.cudnn_rnn_tf_params_size(**SMALL_ATTRS, num_proj=2), []),
    )


# The wrapper.


WARNINGS_OF_AUTOGRAPH = """
import logging
import tensorflow as tf
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

warnings = logging.StreamHandler(open("/dev/stdout", "w"))
tf.get_logger().addHandler(warnings)
config = RnnConfig("rnn_tanh", 1, 2, 3)

@tf.function
def call():
    params = ops.canonical_to_params(config, *ops.params_to_canonical(config, tf.ones([14])))
    return ops.forward(config, tf.ones([4, 1, 3]), [tf.ones([1, 1, 2])], params)

call()
"""


def test_functions_of_users_call_ops_without_a_warning(tmp_path):
    # AutoGraph looks for a function's source in its file.
    path = tmp_path / "program.py"
    path.write_text(WARNINGS_OF_AUTOGRAPH)
    assert run_program(f"import sys; sys.path.append({str(tmp_path)!r}); import program") == ""
