"""What `tf.layers.Layer` gave to the layers and cells of TensorFlow 1."""

import collections
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_v1 = tf.compat.v1
# How many layers of a name there are in each graph.
_counts: weakref.WeakKeyDictionary[tf.Graph, collections.Counter[str]]
_counts = weakref.WeakKeyDictionary()


def unique_name(name: str) -> str:
    """A layer's name in the current graph: the second `cudnn_lstm` is `cudnn_lstm_1`."""
    counts = _counts.setdefault(_v1.get_default_graph(), collections.Counter())
    counts[name] += 1
    return f"{name}_{counts[name] - 1}" if counts[name] > 1 else name


class BaseLayer:
    """The attributes that programs ask layers and cells for; a derived class has `variables`.

    Attributes:
        built: whether the variables are there.
        trainable: whether `trainable_variables` has those variables that can be trained.
        input_spec: what inputs must be like, a `keras.layers.InputSpec`; None where that is open.
    """

    built = False
    trainable = True
    input_spec: Any = None

    @property
    def variables(self) -> list[tf.Variable]:
        raise NotImplementedError

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        return [variable for variable in self.variables if self.trainable and variable.trainable]

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        trainable = {variable.ref() for variable in self.trainable_variables}
        return [variable for variable in self.variables if variable.ref() not in trainable]

    @property
    def weights(self) -> list[tf.Variable]:
        return self.variables

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        return self.trainable_variables

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        return self.non_trainable_variables

    @property
    def losses(self) -> list[tf.Tensor]:
        """Always empty: a variable scope's regularizer adds to its collection instead."""
        return []

    @property
    def updates(self) -> list[tf.Operation]:
        """Always empty."""
        return []

    def get_weights(self) -> list[np.ndarray]:
        """The variables' values; in a graph, those in the default session."""
        if tf.executing_eagerly():
            return [variable.numpy() for variable in self.variables]
        return [variable.eval() for variable in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assigns the variables; in a graph, in the default session.

        Raises:
            ValueError: if the number of weights or a shape is wrong.
        """
        shapes = [np.shape(weight) for weight in weights]
        expected = [tuple(variable.shape.as_list()) for variable in self.variables]
        if shapes != expected:
            raise ValueError(f"expected weights of the shapes {expected}, but received {shapes}")
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.load(weight)

    def count_params(self) -> int:
        """How many numbers the variables hold.

        Raises:
            ValueError: if the layer is not built.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} is not built yet, so its parameters cannot be counted: "
                "call it on inputs first"
            )
        return sum(math.prod(variable.shape.as_list()) for variable in self.variables)
