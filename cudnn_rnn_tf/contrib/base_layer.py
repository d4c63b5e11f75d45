"""Stands in for `tf.layers.Layer`, the base of TensorFlow 1's layers and cells."""

import collections
import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_v1 = tf.compat.v1
# The number of layers of each name in each graph.
_counts: weakref.WeakKeyDictionary[tf.Graph, collections.Counter[str]]
_counts = weakref.WeakKeyDictionary()


def unique_name(name: str) -> str:
    """Returns a layer's name in the current graph: the second `cudnn_lstm` is `cudnn_lstm_1`."""
    counts = _counts.setdefault(_v1.get_default_graph(), collections.Counter())
    counts[name] += 1
    return f"{name}_{counts[name] - 1}" if counts[name] > 1 else name


class _Additions:
    """Holds lists outside of a layer, because TensorFlow saves lists that are its attributes."""

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.updates: list[Any] = []


def _listed(given: Any) -> list[Any]:
    each = given if isinstance(given, (list, tuple)) else [given]
    return [one for one in each if one is not None]


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
        """The losses of `add_loss`. Those of a scope's regularizer are in its collection only."""
        return [loss() if callable(loss) else loss for loss in self._additions.losses]

    @property
    def updates(self) -> list[Any]:
        """The operations that `add_update` was given."""
        return list(self._additions.updates)

    def add_loss(self, losses: Any, inputs: Any = None) -> None:
        """Adds to `losses` and, in a graph, to the collection of the regularization losses.

        Args:
            losses: a scalar tensor, a function without arguments that returns one, or a list of
                them; what is None is left out.
            inputs: what they depend on, for the sake of old programs.
        """
        del inputs
        for loss in _listed(losses):
            self._additions.losses.append(loss)
            if not tf.executing_eagerly():
                value = loss() if callable(loss) else loss
                _v1.add_to_collection(_v1.GraphKeys.REGULARIZATION_LOSSES, value)

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Adds to `updates` and, in a graph, to the collection of the update operations.

        Args:
            updates: an operation or a tensor, or a list of them; what is None is left out.
            inputs: what they depend on, for the sake of old programs.
        """
        del inputs
        for update in _listed(updates):
            self._additions.updates.append(update)
            if not tf.executing_eagerly():
                _v1.add_to_collection(_v1.GraphKeys.UPDATE_OPS, update)

    @property
    def inbound_nodes(self) -> list[Any]:
        """Always empty, since only Keras's layers that are called on Keras's tensors have nodes."""
        return []

    @property
    def outbound_nodes(self) -> list[Any]:
        """Always empty."""
        return []

    @functools.cached_property
    def _additions(self) -> "_Additions":
        return _Additions()

    def get_weights(self) -> list[np.ndarray]:
        """Returns the variables' values; in a graph, those in the default session."""
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
        """Returns how many numbers the variables hold.

        Raises:
            ValueError: if the layer is not built.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} is not built yet, so its parameters cannot be counted: "
                "call it on inputs first"
            )
        return sum(math.prod(variable.shape.as_list()) for variable in self.variables)
