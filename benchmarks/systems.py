"""Steps of a network in this package, in Keras and in PyTorch, each called as its users call it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tensorflow_steps
from benchmarks.rows import Row, draw_lengths
from benchmarks.timing import StepFunction


def allow_tf32(row: Row) -> None:
    """Makes TensorFlow compute in TF32 where the row asks for it, and nowhere else."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")


def layer_of(row: Row) -> Any:
    """Makes this package's layer, which holds the whole stack."""
    import cudnn_rnn_tf as crnn

    make = getattr(crnn, tensorflow_steps.LAYERS[row.mode])
    of_lstm = {"num_proj": row.projection or None, "cell_clip": row.clip or None}
    return make(
        row.layers,
        row.units,
        direction="bidirectional" if row.directions == 2 else "unidirectional",
        bias_mode="double" if row.has_bias else "none",
        dtype=row.dtype,
        **(of_lstm if row.mode == "lstm" else {}),
    )


def ours(row: Row, draws: Sequence[Any]) -> StepFunction:
    """Makes a step of this package's layer, which is given lengths, or `None`s for full length."""
    allow_tf32(row)
    layer = layer_of(row)

    def run(inputs: Any, lengths: Any, training: bool) -> Any:
        return layer(inputs, training=training, sequence_lengths=lengths)

    return tensorflow_steps.step_of(row, run, lambda: layer.trainable_variables, draws)


def keras_layers(row: Row, use_cudnn: bool | str = "auto") -> list[Any]:
    """Makes Keras's layers."""
    import keras

    kinds = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU, "rnn_tanh": keras.layers.SimpleRNN}
    layers = []
    for _ in range(row.layers):
        layer = kinds[row.mode](
            row.units,
            return_sequences=True,
            recurrent_initializer="glorot_uniform",  # An orthogonal matrix takes long to make.
            use_bias=row.has_bias,
            dtype=row.dtype,
            **({} if row.mode == "rnn_tanh" else {"use_cudnn": use_cudnn}),
        )
        if row.directions == 2:
            layer = keras.layers.Bidirectional(layer, dtype=row.dtype)
        layers.append(layer)
    return layers


def of_keras(
    row: Row, draws: Sequence[Any], use_cudnn: bool | str = "auto", jit_compile: bool = False
) -> StepFunction | None:
    """Makes a step of Keras's layers, which are given masks; None if it has no such layers."""
    if row.projection or row.clip:
        return None
    allow_tf32(row)
    layers = keras_layers(row, use_cudnn)

    def run(inputs: Any, mask: Any, training: bool) -> Any:
        for layer in layers:
            inputs = layer(inputs, mask=mask, training=training)
        return inputs

    def variables() -> list[Any]:
        return [variable for layer in layers for variable in layer.trainable_variables]

    return tensorflow_steps.step_of(row, run, variables, draws, jit_compile)


def masks(row: Row) -> list[Any]:
    """Returns the masks of the row's lengths, on the device."""
    import tensorflow as tf

    return [tf.sequence_mask(lengths, row.time) for lengths in draw_lengths(row)]


def host_lengths(row: Row) -> list[Any]:
    """Returns the row's lengths in host memory, where an input pipeline leaves them."""
    import tensorflow as tf

    with tf.device("CPU"):
        return [tf.constant(lengths, tf.int32) for lengths in draw_lengths(row)]


def of_torch(row: Row, draws: Sequence[np.ndarray] | None) -> StepFunction:
    """Makes a step of PyTorch's layer, which packs its sequences in each step.

    PyTorch has no bound of cell states, so its LSTM runs without one.

    Args:
        row: The network and its data.
        draws: Lists of lengths, which take turns; None for sequences that are read to their end.
    """
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = row.type == "tf32"
    dtype = getattr(torch, row.dtype)
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}
    network = kinds[row.mode](
        *(row.input_size, row.units, row.layers),
        bias=row.has_bias,
        bidirectional=row.directions == 2,
        batch_first=True,
        **({"proj_size": row.projection} if row.projection else {}),
    )
    device = torch_device()
    network = network.to(device, dtype)
    network.flatten_parameters()
    network.train(row.training)
    shape = (row.batch, row.time)
    inputs = torch.randn(*shape, row.input_size, device=device, dtype=dtype)
    inputs.requires_grad_(row.training)
    size = row.outputs
    d_outputs = 0.1 * torch.randn(*shape, size, device=device, dtype=dtype)
    lengths = [torch.tensor(lengths) for lengths in draws or ()]

    def step(index: int) -> None:
        data, gradient = inputs, d_outputs
        if lengths:
            data = pack_padded_sequence(
                *(inputs, lengths[index % len(lengths)], True), enforce_sorted=False
            )
        with torch.set_grad_enabled(row.training):
            outputs, _ = network(data)
        if row.training:
            if lengths:
                outputs = outputs.data
                gradient = d_outputs.view(-1, size)[: outputs.shape[0]]
            outputs.backward(gradient)

    return step


def torch_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _wait_for_tensorflow() -> None:
    import tensorflow as tf

    tf.test.experimental.sync_devices()


def _wait_for_torch() -> None:
    import torch

    if torch_device() == "cuda":
        torch.cuda.synchronize()


def _tensorflow_peak() -> int | None:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    return int(peak)


def _torch_peak() -> int | None:
    import torch

    if torch_device() == "cpu":
        return None
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return int(peak)


class Framework(NamedTuple):
    """What a system runs in."""

    wait: Callable[[], None]  # For the GPU.
    libraries: tuple[str, ...]  # As `machine.environment` names them.
    # On GPUs, the most that tensors have held since the last call.
    peak_bytes: Callable[[], int | None]


TENSORFLOW = Framework(_wait_for_tensorflow, ("TensorFlow", "Keras"), _tensorflow_peak)
TORCH = Framework(_wait_for_torch, ("PyTorch",), _torch_peak)
FRAMEWORKS = {"cudnn_rnn_tf": TENSORFLOW, "keras": TENSORFLOW, "torch": TORCH}
