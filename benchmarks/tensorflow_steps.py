"""Steps of layers in TensorFlow, to be timed."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.rows import Row
from benchmarks.timing import StepFunction

# This package's layers, by mode.
LAYERS = {
    "lstm": "CudnnLSTM",
    "gru": "CudnnGRU",
    "rnn_tanh": "CudnnRNNTanh",
    "rnn_relu": "CudnnRNNRelu",
}


def step_of(
    row: Row,
    call: Callable[..., Any],
    variables: Callable[[], list[Any]],
    draws: Sequence[Any],
    jit_compile: bool = False,
) -> StepFunction:
    """Makes a step of `call(inputs, draw, training)`, which returns outputs.

    A training step is a forward and a backward pass, from a given gradient of the outputs to those
    of inputs and weights, which are added to variables.

    Args:
        row: The network and its data.
        call: What is to be timed.
        variables: Returns the weights, after a first call.
        draws: Masks or lengths, or `None`s, which take turns.
        jit_compile: Whether XLA compiles the step.
    """
    import tensorflow as tf

    dtype = tf.as_dtype(row.dtype)
    inputs = tf.cast(tf.random.normal((row.batch, row.time, row.input_size)), dtype)
    d_outputs = tf.cast(0.1 * tf.random.normal((row.batch, row.time, row.outputs)), dtype)
    call(inputs, draws[0], False)
    takers = [tf.Variable(tf.zeros_like(tensor)) for tensor in variables()]
    of_inputs = tf.Variable(tf.zeros_like(inputs))

    # A concrete function is slow to call if it has defaults.
    def infer(inputs: Any, *draw: Any) -> Any:
        return call(inputs, *(draw or (None,)), False)

    def train(inputs: Any, d_outputs: Any, *draw: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = call(inputs, *(draw or (None,)), True)
        gradient, *gradients = tape.gradient(
            outputs, [inputs, *variables()], output_gradients=d_outputs
        )
        of_inputs.assign(gradient, read_value=False)
        for taker, gradient in zip(takers, gradients, strict=True):
            taker.assign_add(gradient, read_value=False)
        return None

    # Each argument of a function takes the host tens of microseconds, and a concrete function about
    # half of what a function takes that looks for the one that fits.
    given = [inputs, d_outputs] if row.training else [inputs]
    arguments = [(*given, *([] if draw is None else [draw])) for draw in draws]
    one = tf.function(
        train if row.training else infer,
        input_signature=[*map(tf.TensorSpec.from_tensor, arguments[0])],
        jit_compile=jit_compile or None,
    ).get_concrete_function()
    return lambda index: one(*arguments[index % len(arguments)])
