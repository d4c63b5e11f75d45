"""Initializers that Keras does not have."""

import math
from typing import Any

import keras

from cudnn_rnn_tf.arguments import checked, of_keras


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class TorchUniform(keras.initializers.RandomUniform):
    """Draws uniformly from [-1/√H, 1/√H], as `torch.nn.LSTM`, `GRU` and `RNN` do, biases included.

    Args:
        num_units: units of the layer, H; PyTorch's `hidden_size`.
        seed: as of `keras.initializers.RandomUniform`.

    Raises:
        TypeError: if `num_units` is no integer.
        ValueError: if it is not positive.
    """

    @checked
    def __init__(self, num_units: int, seed: Any = None):
        if num_units < 1:
            raise ValueError(f"expected num_units to be positive, but received {num_units!r}")
        self.num_units = num_units
        bound = 1.0 / math.sqrt(num_units)
        super().__init__(-bound, bound, seed)

    def get_config(self) -> dict[str, Any]:
        return {"num_units": self.num_units, "seed": super().get_config()["seed"]}


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class AllGates(keras.initializers.Initializer):
    """An initializer that sees the matrices of all gates side by side, as in Keras's layers.

    It is called with [fan_in, G * H], so that Glorot's limits are those in Keras, and an orthogonal
    initializer makes the whole matrix orthogonal. Without `AllGates`, an initializer is called once
    for each gate, with [fan_in, H].

    Args:
        initializer: what Keras knows as an initializer.

    Example:
        ```python
        layer = cudnn_rnn_tf.CudnnLSTM(
            1,
            32,
            kernel_initializer=cudnn_rnn_tf.AllGates("glorot_uniform"),
            recurrent_initializer=cudnn_rnn_tf.AllGates("orthogonal"),
            bias_initializer=cudnn_rnn_tf.PerGate(forget_gate="ones"),
        )  # begins as keras.layers.LSTM(32)
        ```
    """

    def __init__(self, initializer: Any):
        self.initializer = of_keras("initializer", "initializer", initializer)

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Returns a tensor of the shape, made by the initializer."""
        return self.initializer(shape, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"initializer": keras.initializers.serialize(self.initializer)}


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class PerGate(keras.initializers.Initializer):
    """Initializers that differ from gate to gate.

    If a gate has two biases, which are added, `default` initializes the one of the recurrent side.
    With layer normalization, `default` initializes all biases, which norms take the constant part
    from, and the gates that are named have their initializers for β.

    Args:
        default: of the gates that are not named.
        **gates: by their names; an LSTM's are `input_gate`, `forget_gate`, `cell_candidate` and
            `output_gate`, a GRU's `reset_gate`, `update_gate` and `candidate`. A layer that does
            not have one of them raises ValueError when it is built.

    Example:
        ```python
        layer = cudnn_rnn_tf.CudnnLSTM(
            1, 32, bias_initializer=cudnn_rnn_tf.PerGate(forget_gate="ones")
        )
        ```
    """

    def __init__(self, default: Any = "zeros", **gates: Any):
        self.default = of_keras("initializer", "default", default)
        self.gates = {name: of_keras("initializer", name, each) for name, each in gates.items()}

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Returns a tensor of the shape, made by the default initializer."""
        return self.default(shape, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            name: keras.initializers.serialize(each)
            for name, each in {"default": self.default, **self.gates}.items()
        }
