"""Initializers that Keras does not have."""

import math
from typing import Any

import keras


@keras.saving.register_keras_serializable("cudnn_rnn_tf")
class TorchUniform(keras.initializers.RandomUniform):
    """Uniform in [-1/√H, 1/√H]: how `torch.nn.LSTM`, `GRU` and `RNN` begin, biases included.

    Args:
        num_units: units of the layer, H; PyTorch's `hidden_size`.
        seed: as of `keras.initializers.RandomUniform`.

    Raises:
        ValueError: if `num_units` is not positive.
    """

    def __init__(self, num_units: int, seed: Any = None):
        if num_units < 1:
            raise ValueError(f"expected num_units to be positive, but received {num_units!r}")
        self.num_units = num_units
        bound = 1.0 / math.sqrt(num_units)
        super().__init__(-bound, bound, seed)

    def get_config(self) -> dict[str, Any]:
        return {"num_units": self.num_units, "seed": super().get_config()["seed"]}
