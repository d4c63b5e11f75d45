"""Calls of handlers as XLA keeps them in compiled programs, whole and damaged."""

import functools
import re
import subprocess
from collections.abc import Callable
from typing import Any

import cxx
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from test_xla import draw, draw_mask, pytestmark, with_gradients  # noqa: F401

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import keras as drop_ins


def call_of_a_kept_module(
    target: str, config: str, operands: list[tuple[str, str]], results: list[tuple[str, str]]
) -> list[tf.Tensor]:
    """Has XLA compile a call of a handler as it stands in a module that was stored."""
    dtypes = {"f32": tf.float32, "s64": tf.int64, "u8": tf.uint8, "pred": tf.bool}

    def shape(sizes: str) -> list[int]:
        return [int(size) for size in sizes.split(",") if size]

    def types(tensors: list[tuple[str, str]]) -> str:
        names = {"f32": "f32", "s64": "i64", "u8": "ui8", "pred": "i1"}
        return ", ".join(f"tensor<{n.replace(',', 'x')}x{names[d]}>" for d, n in tensors)

    count, numbers = len(results), range(len(operands))
    given = [tf.cast(tf.ones(shape(sizes), tf.uint8), dtypes[dtype]) for dtype, sizes in operands]
    module = f"""module @kept {{
      func.func public @main({", ".join(f"%{i}: {types([operands[i]])}" for i in numbers)})
          -> ({types(results)}) {{
        %all:{count} = "stablehlo.custom_call"({", ".join(f"%{i}" for i in numbers)}) {{
          call_target_name = "{target}", api_version = 4 : i32, backend_config = {config}
        }} : ({types(operands)}) -> ({types(results)})
        return {", ".join(f"%all#{i}" for i in range(count))} : {types(results)}
      }}
    }}"""
    call = functools.partial(
        gen_xla_ops.xla_call_module,
        version=9,
        module=module,
        platforms=["CPU"],
        Sout=[shape(sizes) for _, sizes in results],
        Tout=[dtypes[dtype] for dtype, _ in results],
    )
    return tf.function(call, jit_compile=True, autograph=False)(given)


Call = tuple[str, str, list[tuple[str, str]], list[tuple[str, str]]]


def calls_of(run: Callable[..., Any], *inputs: tf.Tensor) -> list[Call]:
    """Returns a compiled function's calls of handlers, as `call_of_a_kept_module` takes them."""
    text = tf.function(run, jit_compile=True).experimental_get_compiler_ir(*inputs)(stage="hlo")
    form = r"= (.*) custom-call\((.*?)\), .*_target=\"(.*?)\".*config=(.*)"
    calls = []
    for *tensors, target, config in re.findall(form, text):
        results, operands = (re.findall(r"(\w+)\[([\d,]+)\]", each) for each in tensors)
        calls.append((target, config, operands, results))
    return calls


def test_memory_for_another_cpu_is_an_error():
    layer, inputs = crnn.CudnnLSTM(1, 4), draw(9, 3, 3)
    layer.build(inputs.shape)
    calls = calls_of(with_gradients(layer, training=True), inputs)
    assert len(calls) == 2
    for target, config, operands, results in calls:
        call_of_a_kept_module(target, config, operands, results)
        for i, (dtype, size) in enumerate(results):
            if dtype != "u8":
                continue
            less = [*results[:i], (dtype, str(int(size) - 1)), *results[i + 1 :]]
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"{size}.*{int(size) - 1}"):
                call_of_a_kept_module(target, config, operands, less)


def test_a_damaged_call_is_an_error():
    layer = drop_ins.LSTM(4, return_sequences=True)
    inputs, mask = draw(9, 3, 3), draw_mask(9, 3)
    layer.build(inputs.shape)
    # How many numbers of a call decide its format or the sizes of its buffers, at least.
    deciding = {"forward": 13, "backward": 13, "keras_tensors": 8, "read_mask": 4, "move_steps": 5}
    calls = calls_of(with_gradients(layer, mask=mask), inputs)
    assert {call[0].removeprefix("cudnn_rnn_tf_") for call in calls} == set(deciding)
    for target, config, *buffers in calls:
        call_of_a_kept_module(target, config, *buffers)
        numbers = [int(number) for number in re.findall(r"\d+", config.split(":")[1])]
        errors = 0
        for i, number in enumerate(numbers):
            for wrong in (number + 1, 1 << 62):
                damaged = [*numbers[:i], wrong, *numbers[i + 1 :]]
                config = f"{{call = array<i64: {str(damaged)[1:-1]}>}}"
                try:
                    call_of_a_kept_module(target, config, *buffers)
                except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
                    assert ("XLA" if i > 0 else "another version") in str(error)
                    errors += wrong == number + 1
                else:
                    assert wrong == number + 1, (target, i)
        assert errors >= deciding[target.removeprefix("cudnn_rnn_tf_")], target


def test_xla_is_told_which_error_a_handler_met(tmp_path):
    headers = f"-isystem{tf.sysconfig.get_include()}"
    program = cxx.compiled(tmp_path, "errors_in_xla", [], headers)
    assert subprocess.run([program], check=True, capture_output=True).stdout == b"well\n"
