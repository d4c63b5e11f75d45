"""Gives a layer states, which it keeps from batch to batch if it is stateful."""

from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig


class _Untracked:
    """Hides variables from Keras, which would otherwise take them for the layer's weights."""

    def __init__(self, *variables: keras.Variable):
        self.variables = variables


class HasStates(keras.layers.Layer):
    """A layer with initial states and, if it is stateful, variables that hold the last ones."""

    stateful: bool
    time_major: bool
    _config: RnnConfig
    _states = _Untracked()

    def state_shape(self, batch_size: int | None) -> tuple[tuple[int | None, ...], ...]:
        """Returns the shapes of the states: of h, and of an LSTM's c."""
        return self._config.state_shapes(batch_size, self.time_major)

    def _create_states(self, batch_size: int | None) -> None:
        if batch_size is None:
            raise ValueError(
                f"layer {self.name!r} is stateful, so its batch size must be static: pass "
                "batch_size to keras.Input"
            )
        self._states = _Untracked(
            *(
                keras.Variable(
                    initializer="zeros",
                    shape=shape,
                    dtype=self.compute_dtype,
                    trainable=False,
                    autocast=False,
                    name=f"state_{name}",
                )
                for name, shape in zip(("h", "c"), self.state_shape(batch_size), strict=False)
            )
        )

    @property
    def states(self) -> tuple[keras.Variable, ...]:
        """A stateful layer's states, h and an LSTM's c; they are not among its weights."""
        return self._states.variables

    def reset_state(self) -> None:
        """Sets a stateful layer's states to zero."""
        for state in self.states:
            state.assign(tf.zeros_like(state.value))

    def reset_states(self) -> None:
        """The old name of `reset_state`."""
        self.reset_state()

    def _initial_states(self, inputs: tf.Tensor, initial_state: Any) -> list[tf.Tensor]:
        batch_axis = 1 if self.time_major else 0
        if initial_state is None:
            if self.stateful:
                expected, received = self.states[0].shape[batch_axis], inputs.shape[batch_axis]
                if received not in (None, expected):
                    raise ValueError(
                        f"expected inputs of stateful layer {self.name!r} to have batch size "
                        f"{expected}, as when it was built, but received {received}; a last "
                        "batch that is short can be left out (drop_remainder=True) or padded with "
                        "sequences of length 0"
                    )
                states = [tf.convert_to_tensor(state.value) for state in self.states]
                return ops.kept_states(states, received, batch_axis)
            batch_size = inputs.shape[batch_axis]
            if batch_size is None:
                batch_size = tf.shape(inputs)[batch_axis]
            return ops.zero_states(self._config, batch_size, inputs.dtype, self.time_major)
        if not isinstance(initial_state, (list, tuple)):
            initial_state = [initial_state]
        return [tf.convert_to_tensor(state, dtype=inputs.dtype) for state in initial_state]

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        # TensorFlow calls this to find the objects to save. A SavedModel needs the states that its
        # functions use. A checkpoint with states could not be restored into a model with another
        # batch size.
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            children.update({state.name: state for state in self.states})
        return children
