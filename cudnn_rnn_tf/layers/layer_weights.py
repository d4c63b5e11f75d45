"""Gives a layer's weights shapes and names, and reads, assigns, saves and loads them."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.layers import opaque_kernel

# In Keras's weight files, the state that the seeds of the dropout masks come from has this name.
_SEED_STATE = "seed_generator_state"


class HasOpaqueKernel(keras.layers.Layer):
    """A layer whose weights are one opaque buffer, `kernel`, which is None until it is built."""

    kernel: opaque_kernel.OpaqueKernel | None
    seed_generator: keras.random.SeedGenerator | None
    _config: RnnConfig

    @property
    def canonical_weight_shapes(self) -> list[tuple[int, ...]]:
        """The canonical weights' shapes. ValueError before the layer is built."""
        return self._built_config().layout.weight_shapes

    @property
    def canonical_bias_shapes(self) -> list[tuple[int, ...]]:
        """The canonical biases' shapes. ValueError before the layer is built."""
        return self._built_config().layout.bias_shapes

    def params_size(self) -> int:
        """The number of elements in the opaque buffer. ValueError before the layer is built."""
        return self._built_config().layout.size

    @checked
    def canonical_to_params(self, weights: Sequence[Any], biases: Sequence[Any]) -> tf.Tensor:
        """Packs canonical tensors into an opaque buffer.

        Args:
            weights: matrices of `canonical_weight_shapes`.
            biases: vectors of `canonical_bias_shapes`.

        Returns:
            The buffer, [params_size]; `layer.kernel.assign` takes it.

        Raises:
            ValueError: if a list's length or a shape is wrong, or the layer is not built.
        """
        config = self._built_config()
        dtype = self.variable_dtype
        return ops.canonical_to_params(
            config,
            [tf.convert_to_tensor(weight, dtype=dtype) for weight in weights],
            [tf.convert_to_tensor(bias, dtype=dtype) for bias in biases],
        )

    def params_to_canonical(self, params: Any = None) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Takes an opaque buffer, by default the layer's own, apart.

        Returns:
            weights and biases, two lists of tensors.

        Raises:
            ValueError: if the buffer's shape is wrong, or the layer is not built.
        """
        params = self._built_kernel().value if params is None else params
        return ops.params_to_canonical(self._built_config(), tf.convert_to_tensor(params))

    def _built_config(self) -> RnnConfig:
        self._built_kernel()
        return self._config

    def _built_kernel(self) -> opaque_kernel.OpaqueKernel:
        if self.kernel is None or not self.built:
            raise ValueError(
                f"layer {self.name!r} is not built yet: its input size is not known. Call it on "
                "inputs, or call build(input_shape), first"
            )
        return self.kernel

    def named_weights(self) -> dict[str, tf.Tensor]:
        """The matrices [H, fan_in] and biases [H] by name: `layer_0_forward_input_gate_kernel`.

        Raises:
            ValueError: if the layer is not built.
        """
        return self._built_kernel().canonical_tensors()

    @checked
    def assign_named_weights(self, weights: Mapping[str, Any]) -> None:
        """Assigns some or all of `named_weights`; the others stay as they are.

        Args:
            weights: by name, in the shapes that `named_weights` has.

        Raises:
            ValueError: if a name is unknown, a shape is wrong, or the layer is not built.
        """
        named = self.named_weights()
        for name in weights:
            if name not in named:
                raise ValueError(
                    f"expected the names of weights of layer {self.name!r} to be among "
                    f"{', '.join(named)}, but received {name!r}"
                )
        kernel = self._built_kernel()
        kernel.assign(kernel.params_from({**named, **weights}))

    @checked
    def set_weights(self, weights: Sequence[Any]) -> None:
        if len(weights) != len(self.weights):
            raise ValueError(
                f"expected {len(self.weights)} weights for layer {self.name!r}, as its "
                f"get_weights() has, but received {len(weights)}: "
                "cudnn_rnn_tf.convert.from_keras makes a layer of one of Keras's, and "
                "assign_named_weights takes matrices and biases by name"
            )
        super().set_weights(weights)

    def save_own_variables(self, store: Any) -> None:
        if not self.built:
            return
        for name, tensor in self._built_kernel().canonical_tensors().items():
            store[name] = tensor.numpy()
        if self.seed_generator:
            store[_SEED_STATE] = self.seed_generator.state.numpy()

    def load_own_variables(self, store: Any) -> None:
        if not self.built:
            if not store.keys():
                return
            raise ValueError(
                f"layer {self.name!r} is not built yet, so it has no variables to load into: build "
                "it, or the model, first"
            )
        # Everything is read and checked before anything is assigned, so that a file that does not
        # fit leaves the layer as it was.
        kernel = self._built_kernel()
        names = store.keys() - {_SEED_STATE}
        read = [(kernel, kernel.params_from({name: store[name] for name in names}))]
        if self.seed_generator and _SEED_STATE in store.keys():
            variable = self.seed_generator.state
            seed_state = tf.cast(store[_SEED_STATE], variable.dtype)
            ops.check_shape(f"{_SEED_STATE} of {self.name}", seed_state, variable.shape)
            read.append((variable, seed_state))
        for variable, value in read:
            variable.assign(value)
