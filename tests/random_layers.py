"""Draws layers, masks and data, and runs layers, to compare them with Keras and `reference`."""

from typing import Any

import layer_reference
import numpy as np
import reference
import tensorflow as tf

# The largest errors, as parts of the largest magnitude in a tensor. Two programs that add up a few
# hundred products in different orders agree in 13 digits in float64 and in 6 in float32; steps and
# layers cost one more.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
KINDS = ("behind", "in front", "any", "none", "all")


def draw_mask(random: np.random.Generator, batch: int, time: int) -> np.ndarray:
    """Draws a mask [B, T] whose sequences are padded in ways of their own."""
    mask = np.zeros((batch, time), bool)
    for row in mask:
        kind, length = random.choice(KINDS), random.integers(time + 1)
        if kind == "behind":
            row[:length] = True
        elif kind == "in front":
            row[time - length :] = True
        elif kind == "any":
            row[:] = random.random(time) < 0.6
        else:
            row[:] = kind == "none"
    return mask


def swapped(array: np.ndarray, time_major: bool) -> np.ndarray:
    return np.asarray(array).swapaxes(0, 1) if time_major else np.asarray(array)


def expected_of(layer, inputs, mask, states, d_outputs, d_states):
    """Runs the reference on each sequence alone, without the steps that are masked.

    All arrays are batch-major. Returns outputs, final states and gradients of inputs, states and
    weights.
    """
    config = layer_reference.config_of(layer)
    weights = reference.split_params(config, layer.kernel.numpy())
    batch, time = mask.shape
    outputs = np.zeros((batch, time, d_outputs.shape[-1]))
    final = [np.zeros(state.shape) for state in states]
    d_inputs, d_first, d_params = np.zeros(inputs.shape), [np.zeros(s.shape) for s in states], 0.0
    for b in range(batch):
        read = np.flatnonzero(mask[b])
        # Outputs are in the order of reading.
        places = read
        if layer.go_backwards:
            read = read[::-1]
            places = time - 1 - read
        rows = slice(b, b + 1)
        run = reference.forward(
            config,
            inputs[rows, read],
            [state[rows] for state in states],
            *weights,
            time_major=False,
        )
        outputs[b, places] = run.outputs[0]
        of_outputs = d_outputs[rows, places]
        gradients = reference.backward(run, of_outputs, [d[rows] for d in d_states])
        d_inputs[b, read] = gradients.inputs[0]
        d_params = d_params + gradients.params
        for index in range(len(states)):
            final[index][b] = run.states[index][0]
            d_first[index][b] = gradients.states[index][0]
    return [outputs, *final], [d_inputs, *d_first, d_params]


def draw_options(random: np.random.Generator, class_name: str) -> dict[str, Any]:
    """Draws arguments of layers that the ops can run, also in training."""

    def toss() -> bool:
        return bool(random.integers(2))

    options = {
        "units": int(random.integers(1, 9)),
        "use_bias": toss(),
        "return_sequences": toss(),
        "return_state": True,
        "go_backwards": toss(),
        "unroll": bool(random.random() < 0.2),
        "dropout": float(random.choice([0.0, 0.0, 0.4])),
        "bias_initializer": {"class_name": "RandomNormal", "config": {"seed": 1}},
        "seed": int(random.integers(100)),
        "dtype": str(random.choice(["float64", "float32"])),
    }
    if class_name == "LSTM":
        options["unit_forget_bias"] = toss()
    if class_name == "SimpleRNN":
        options["activation"] = str(random.choice(["tanh", "relu"]))
    # If a layer is unrolled and reads backwards, Keras masks the wrong outputs.
    if not (options["unroll"] and options["go_backwards"]):
        options["zero_output_for_mask"] = toss()
    return options


def without_cudnn(layer: Any) -> None:
    """Keeps one of Keras's layers from calling cuDNN on a GPU.

    With cuDNN, Keras refuses masks with holes, and gradients of padding can be arbitrary numbers.
    """
    layer.use_cudnn = False


def run(layer: Any, inputs: Any, in_graph: bool, **arguments: Any) -> dict[str, np.ndarray]:
    """Returns outputs, states and the gradients of everything that can have one."""
    states = arguments.pop("initial_state", None)

    def step() -> Any:
        with tf.GradientTape() as tape:
            watched = [inputs, *(states or [])]
            tape.watch(watched)
            given = arguments if states is None else {**arguments, "initial_state": states}
            results = tf.nest.flatten(layer(inputs, **given))
            # All elements have different weights, so that none can be confused with another.
            loss = tf.add_n(
                [
                    tf.reduce_sum(
                        r * tf.reshape(tf.linspace(one, 2 * one, tf.size(r)), tf.shape(r))
                    )
                    for r in results
                    for one in [tf.ones([], r.dtype)]
                ]
            )
        variables = [variable.value for variable in layer.trainable_variables]
        return results, tape.gradient(loss, watched + variables)

    results, gradients = tf.function(step)() if in_graph else step()
    named = {f"result {i}": result for i, result in enumerate(results)}
    named |= {f"gradient {i}": gradient for i, gradient in enumerate(gradients)}
    return {name: np.asarray(tensor) for name, tensor in named.items() if tensor is not None}


def check_equal(
    received: dict[str, np.ndarray], expected: dict[str, np.ndarray], factor: float = 1.0
) -> None:
    """Checks that all tensors agree, to within `factor` times the tolerance."""
    assert received.keys() == expected.keys(), received.keys()
    for name, tensor in expected.items():
        assert received[name].shape == tensor.shape, f"the shape of {name}"
        scale = max(np.abs(tensor).max(), 1e-3)
        difference = np.abs(received[name] - tensor).max() / scale
        assert difference <= factor * TOLERANCE[tensor.dtype.name], (
            f"{name}\ndiffers by {difference}"
        )
