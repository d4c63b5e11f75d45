"""The base class of the Keras layers."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import Unpack

from cudnn_rnn_tf import _private_names, ops
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import Algorithm, BiasMode, Direction, HasConfig, InputMode, RnnConfig
from cudnn_rnn_tf.keras.registration import signed
from cudnn_rnn_tf.keywords import WEIGHT_OPTIONS, LayerOptions
from cudnn_rnn_tf.layers import buffer_parts, opaque_kernel, reading_order, tf_keras
from cudnn_rnn_tf.layers.foreign_arguments import ChecksForeignArguments
from cudnn_rnn_tf.layers.layer_states import HasStates
from cudnn_rnn_tf.layers.layer_weights import HasOpaqueKernel
from cudnn_rnn_tf.lengths_and_masks import HOW_TO_MAKE_RAGGED, mask_from_lengths, to_ragged
from cudnn_rnn_tf.mask_packing import Packing, first_mask
from cudnn_rnn_tf.ops import seeds
from cudnn_rnn_tf.xla import CompiledByXla


class CudnnRNN(HasConfig, ChecksForeignArguments, HasOpaqueKernel, HasStates, CompiledByXla):
    """The base class of the four layers; it cannot be used on its own.

    All matrices and biases are one variable, `kernel`, so that AdamW cannot exclude the biases from
    weight decay, `clipnorm` clips one norm, Lamb has one trust ratio, Adafactor and Muon see no
    matrices. The layers of `cudnn_rnn_tf.keras` have Keras's weights.

    Args:
        num_layers: layers in the stack, L.
        num_units: units per layer and direction, H.
        input_mode: "linear_input"; "skip_input", in which the first layer adds its inputs to every
            gate as they are, so that their size must be `num_units`; or "auto_select", which is
            the latter where the sizes agree.
        direction: "unidirectional" or "bidirectional" (D = 1 or 2). A bidirectional layer's output
            is the forward and the backward output side by side.
        dropout: rate at which the outputs of all layers of the stack but the last are dropped in
            training, in [0, 1).
        seed: integer seed of the dropout masks; None for a random one.
        dtype: a dtype or Keras dtype policy.
        kernel_initializer: of the input-side matrices, each on its own.
        bias_initializer: of the biases.
        name: name of the layer.
        recurrent_initializer: of the recurrent matrices and the projection; None for
            `kernel_initializer`.
        bias_mode: "double" (an input-side and a recurrent-side bias per gate), "single_input",
            "single_recurrent" or "none".
        return_sequences: whether to return the outputs of all time steps, or of each sequence's
            last one (a backward direction's last step is the sequence's first).
        return_state: whether to return the final states as well.
        go_backwards: whether to read each sequence from its end. Outputs come in the order of
            reading; past a sequence's end they are zeros. With a mask, these zeros come first, as
            `keras.layers.Bidirectional` wants them and Keras's own layers have them.
        stateful: whether each batch starts from the states the last one ended with. The batch
            size must be static.
        time_major: whether inputs, outputs, masks and states have time (states: L * D) before
            batch.
        algorithm: on a GPU, what runs the network: "persistent", this package's kernels; "cudnn",
            or one of cuDNN's algorithms by name ("standard", "persist_static",
            "persist_static_small_h"); or, for what a rule takes for the fastest, "auto". Where the
            one that is named cannot run a network, calls raise `tf.errors.UnimplementedError`.
        kernel_regularizer: of the input-side matrices, stacked as in Keras: [fan_in, G * H] per
            pseudo-layer.
        recurrent_regularizer: likewise of the recurrent matrices and projections.
        bias_regularizer: likewise of the biases, [G * H].
        kernel_constraint: as `kernel_regularizer`.
        recurrent_constraint: as `recurrent_regularizer`.
        bias_constraint: as `bias_regularizer`.
        recurrent_weight_dropout: rate at which numbers of the recurrent matrices are dropped in
            training, in [0, 1): R' = M∘R / (1 − rate), with one mask M a call for all sequences and
            steps. It is the DropConnect of AWD-LSTMs (Merity et al., "Regularizing and Optimizing
            LSTM Language Models", 2017).
        zoneout: rate at which units of h stay what they were before a step, in [0, 1), in training
            drawn anew for each unit, step and sequence: h' = M∘h + (1 − M)∘ĥ, where ĥ is what the
            layer computes without it (Krueger et al., "Zoneout: Regularizing RNNs by Randomly
            Preserving Hidden Activations", 2017). In inference, M is the rate.
        **kwargs: to `keras.layers.Layer`.

    Call arguments:
        inputs: [B, T, I] ([T, B, I] time-major), or a `tf.RaggedTensor` [B, (T), I].
        initial_state: h [B, L * D, P], for an LSTM a list of h and c [B, L * D, H] (time-major:
            L * D first). P is `num_proj` where set, else H. Zeros, or the stateful layer's
            states, by default.
        sequence_lengths: integers [B], each in [0, T]: steps past a sequence's end are not read,
            outputs there are zero, and the final state is the state at the end. Layers and losses
            that take the outputs see a Keras mask that says as much.
        mask: boolean [B, T] or [1, T] ([T, B] or [T, 1] time-major), true for each step that is to
            be read, in place of `sequence_lengths`. Masked steps may be anywhere; outputs there
            are zero. With `go_backwards`, outputs are those of the whole time axis in reverse, so
            that padding comes first, and with `sequence_lengths` last. A mask that comes with the
            inputs is ignored if there are `sequence_lengths`.
        training: whether dropout acts.
        inputs_mask: the mask that Keras hands on from the layer that made the inputs, where there
            are initial states as well; `mask` and `sequence_lengths` take precedence.
        resets: boolean, of the mask's shape or ragged as the inputs: true where a new segment of a
            sequence begins, such as an episode. No state passes between segments: before its first
            step h and c are zeros, also in place of initial states; a direction that reads
            backwards starts anew at a segment's last step. A reset at a masked step acts at the
            next step that is read.

    Returns:
        outputs [B, T, D * P] ([T, B, D * P] time-major; of ragged inputs, ragged [B, (T), D * P]),
        or [B, D * P] without `return_sequences`; with `return_state`, a tuple of that and the
        final states, each as its initial state. An LSTM's `return_cell_sequences` comes before
        the states.

    Raises:
        TypeError: if inputs or states are tensors of another Keras than this one, `tf_keras`,
            inputs are no real numbers, `sequence_lengths` no integers, or `resets` not boolean.
        ValueError: if an argument is out of range or a shape does not fit.
        tf.errors.InvalidArgumentError: if a sequence length is out of range. For lengths in a
            GPU's memory, this package's own kernels for GPUs raise no error, but return NaN as all
            outputs, states and gradients that depend on that sequence.
    """

    rnn_mode: str
    return_cell_sequences = False
    # In Keras's layers this is an option. Here, outputs past a sequence's end are always zeros.
    zero_output_for_mask = True

    @checked
    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dropout: float = 0.0,
        seed: int | None = None,
        dtype: Any = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        name: str | None = None,
        *,
        recurrent_initializer: Any = None,
        bias_mode: BiasMode = "double",
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        time_major: bool = False,
        algorithm: Algorithm = "auto",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        recurrent_weight_dropout: float = 0.0,
        zoneout: float = 0.0,
        **kwargs: Unpack[LayerOptions],
    ):
        if not hasattr(self, "rnn_mode"):
            raise TypeError("CudnnRNN is only a base class: make a CudnnLSTM, CudnnGRU or the like")
        super().__init__(dtype=dtype, name=name, **kwargs)
        ops.check_dtype("dtype", self.compute_dtype)
        self._config_arguments = {
            "num_layers": num_layers,
            "num_units": num_units,
            "input_mode": input_mode,
            "direction": direction,
            "dropout": dropout,
            "bias_mode": bias_mode,
            "zoneout": zoneout,
            **self._own_config(),
        }
        # RnnConfig checks the arguments before the input size is known. num_units stands in for the
        # input size, since it fits all input modes.
        self._config = RnnConfig(
            rnn_mode=self.rnn_mode, input_size=num_units, **self._config_arguments
        )
        if self.dropout and num_layers == 1:
            warnings.warn(
                f"dropout={self.dropout} of {type(self).__name__} with num_layers=1 has no effect: "
                "it acts between layers; a keras.layers.Dropout acts on the outputs",
                # Layers with arguments of their own have constructors of their own.
                stacklevel=5 if self._own_config() else 3,
            )
        if not 0.0 <= recurrent_weight_dropout < 1.0:
            raise ValueError(
                "expected recurrent_weight_dropout to lie in [0, 1), but received "
                f"{recurrent_weight_dropout!r}"
            )
        self.recurrent_weight_dropout = recurrent_weight_dropout
        if algorithm not in ops.ALGORITHMS:
            raise ValueError(
                f"expected algorithm to be one of {', '.join(map(repr, ops.ALGORITHMS))}, but "
                f"received {algorithm!r}"
            )
        self.algorithm = algorithm
        self.seed = None if seed is None else int(seed)
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.time_major = time_major
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.recurrent_regularizer = keras.regularizers.get(recurrent_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.recurrent_constraint = keras.constraints.get(recurrent_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        draws_masks = self.dropout or recurrent_weight_dropout or self._config.has_zoneout
        self.seed_generator = (
            seeds.SeedGenerator(self.seed, name="seed_generator") if draws_masks else None
        )
        self.kernel: opaque_kernel.OpaqueKernel | None = None
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "zero_output_for_mask":
            return super().__setattr__(name, value)
        if not value and self.return_sequences:
            raise ValueError(
                f"expected zero_output_for_mask of layer {self.name!r} to be True, but received "
                f"{value!r}: outputs of masked steps are zero; the layers of "
                "cudnn_rnn_tf.keras repeat the last one"
            )
        if self.return_cell_sequences:
            raise ValueError(
                f"layer {self.name!r} cannot return cell sequences in keras.layers.Bidirectional, "
                "which takes them for states: expected return_cell_sequences=False, or "
                "direction='bidirectional' instead of the wrapper"
            )
        # Keras's Bidirectional sets this attribute; nothing else tells that the layer is in one.
        if self.time_major:
            raise ValueError(
                f"layer {self.name!r} cannot be time-major in keras.layers.Bidirectional, which "
                "takes the second dimension for time: expected time_major=False, or "
                "direction='bidirectional' instead of the wrapper"
            )

    def _own_config(self) -> dict[str, Any]:
        """Returns what a subclass adds to the network's configuration."""
        return {}

    # The configuration.

    @property
    def input_mode(self) -> InputMode:
        """The input mode as given; "auto_select" is resolved when the layer is built."""
        return self._config.input_mode if self.built else self._config_arguments["input_mode"]

    @property
    def dropout(self) -> float:
        return self._config.dropout

    @property
    def zoneout(self) -> float:
        return self._config.zoneout

    @property
    def bias_mode(self) -> BiasMode:
        return self._config.bias_mode

    @property
    def input_size(self) -> int:
        """The size of the inputs' last dimension.

        Raises:
            ValueError: if the layer is not built.
        """
        return self._built_config().input_size

    # Building.

    def build(self, input_shape: Sequence[int | None]) -> None:
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(
                f"expected the input shape of layer {self.name!r} to have 3 dimensions, the last "
                f"one known, but received {tuple(input_shape)}; {HOW_TO_MAKE_RAGGED}"
            )
        config = RnnConfig(
            rnn_mode=self.rnn_mode, input_size=input_shape[-1], **self._config_arguments
        )
        self._config = config
        kernel = opaque_kernel.OpaqueKernel(
            config,
            initializer=buffer_parts.make_initializer(
                config,
                self.kernel_initializer,
                self.recurrent_initializer or self.kernel_initializer,
                self.bias_initializer,
                getattr(self, "peephole_initializer", None) or self.kernel_initializer,
            ),
            dtype=self.variable_dtype,
            name="opaque_kernel",
        )
        kernel.regularizer = buffer_parts.make_regularizer(
            config, self.kernel_regularizer, self.recurrent_regularizer, self.bias_regularizer
        )
        kernel.constraint = buffer_parts.make_constraint(
            config, self.kernel_constraint, self.recurrent_constraint, self.bias_constraint
        )
        self.kernel = kernel
        # This is done last, as in Keras, because the layer may be unfrozen later.
        kernel.trainable = self.trainable
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: config.input_size})
        if self.stateful:
            self._create_states(input_shape[1 if self.time_major else 0])

    # Calling.

    def call(
        self,
        inputs: tf.Tensor,
        initial_state: Any = None,
        sequence_lengths: Any = None,
        mask: Any = None,
        training: bool | None = None,
        inputs_mask: Any = None,
        resets: Any = None,
    ) -> Any:
        tf_keras.check_tensors(inputs, initial_state)
        if sequence_lengths is None:
            mask = inputs_mask if mask is None else mask
        elif mask is _private_names.keras_mask(inputs):
            # Keras passes on the inputs' own mask itself.
            mask = None
        given = inputs if isinstance(inputs, tf.RaggedTensor) else tf.convert_to_tensor(inputs)
        ops.check_are_real(f"inputs of layer {self.name!r}", given.dtype)
        if not given.dtype.is_floating or isinstance(inputs, np.ndarray):
            # Keras itself casts only floating-point inputs, and none of `stateless_call`.
            given = tf.cast(given, self.compute_dtype)
        owner = f"layer {self.name!r}"
        inputs, lengths, packing, resets = reading_order.in_order_of_reading(
            given, sequence_lengths, mask, resets, owner, self.time_major, self.go_backwards
        )
        outputs, states, *cells = ops.forward(
            self._config,
            inputs,
            self._initial_states(inputs, initial_state),
            self._params(training),
            sequence_lengths=lengths,
            resets=resets,
            seed=self._seed_of_masks() if training else None,
            time_major=self.time_major,
            is_training=bool(training),
            algorithm=self.algorithm,
            # A cast would make a new tensor in each call, so keeping it would be of no use.
            may_keep_params=self.compute_dtype == self.variable_dtype,
            return_cell_sequences=self.return_cell_sequences,
        )
        if self.stateful:
            for variable, state in zip(self.states, states, strict=True):
                variable.assign(state)
        if self.return_sequences:
            outputs = self._all_outputs(outputs, given, lengths, packing)
        else:
            outputs = self._last_outputs(states[0])
        results = [outputs, *(self._all_outputs(c, given, lengths, packing) for c in cells)]
        results += states if self.return_state else ()
        return tuple(results) if len(results) > 1 else outputs

    if TYPE_CHECKING:  # That of Keras's layers takes anything.

        def __call__(
            self,
            inputs: Any,
            initial_state: Any = None,
            sequence_lengths: Any = None,
            mask: Any = None,
            training: bool | None = None,
            inputs_mask: Any = None,
            resets: Any = None,
        ) -> tf.Tensor | Any: ...

    def _seed_of_masks(self) -> tf.Tensor | None:
        has_masks = self.dropout > 0 or self._config.has_zoneout
        return seeds.next_seed(self.seed_generator) if has_masks else None

    def _params(self, training: bool | None) -> tf.Tensor:
        """Returns the buffer as the op reads it."""
        rate = self.recurrent_weight_dropout
        if not training or not rate:
            return tf.convert_to_tensor(self.kernel)
        seed = seeds.next_seed(self.seed_generator)
        # The variable's own type keeps the digits that a scaled number of a half type would lose.
        with _private_names.AutocastScope(None):
            params = tf.convert_to_tensor(self.kernel)
        dropped = buffer_parts.drop_recurrent_weights(self._config, params, rate, seed)
        return tf.cast(dropped, self.compute_dtype)

    def _all_outputs(
        self,
        outputs: tf.Tensor,
        inputs: tf.Tensor | tf.RaggedTensor,
        lengths: tf.Tensor | None,
        packing: Packing | None,
    ) -> tf.Tensor | tf.RaggedTensor:
        """Returns the outputs of all steps, ragged as the inputs are, or with Keras's mask."""
        if packing:
            # Keras passes the mask on.
            outputs = packing.unpack(outputs)
        if isinstance(inputs, tf.RaggedTensor):
            return to_ragged(outputs, inputs, self.time_major)
        if not packing and lengths is not None:
            # For lengths, layers and losses downstream get this mask.
            valid = mask_from_lengths(lengths, outputs, self.time_major)
            _private_names.set_keras_mask(outputs, valid)
        return outputs

    def _last_outputs(self, h: tf.Tensor) -> tf.Tensor:
        # The final states of the top layer are its outputs at each sequence's last step.
        if self.time_major:
            return tf.concat(tf.unstack(h[-self.num_dirs :]), axis=-1)
        top = h if self.num_layers == 1 else h[:, -self.num_dirs :]
        return tf.reshape(top, (-1, self.num_dirs * self._config.layout.output_size))

    def compute_output_spec(
        self, inputs: Any, initial_state: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        # Symbolic tensors must be checked here, since `call` runs later or not at all.
        tf_keras.check_tensors(inputs, initial_state)
        if initial_state is not None:
            states = initial_state if isinstance(initial_state, (list, tuple)) else [initial_state]
            batch_size = inputs.shape[1 if self.time_major else 0]
            ops.check_states(self._config, states, batch_size, self.time_major)
        return super().compute_output_spec(inputs, initial_state, *args, **kwargs)

    def compute_output_shape(self, input_shape: Sequence[int | None], *_: Any, **__: Any) -> Any:
        batch_axis = 1 if self.time_major else 0
        steps = tuple(input_shape[:2])
        features = self.num_dirs * self._config.layout.output_size
        shapes = [(*steps, features) if self.return_sequences else (steps[batch_axis], features)]
        shapes += [(*steps, self.num_dirs * self.num_units)] * self.return_cell_sequences
        if self.return_state:
            shapes += self.state_shape(steps[batch_axis])
        return tuple(shapes) if len(shapes) > 1 else shapes[0]

    def compute_mask(self, _: Any, mask: Any) -> Any:
        mask = first_mask(mask)
        if mask is not None and self.go_backwards:
            mask = keras.ops.flip(
                keras.ops.convert_to_tensor(mask), axis=0 if self.time_major else 1
            )
        masks = [mask if self.return_sequences else None] + [mask] * self.return_cell_sequences
        if self.return_state:
            masks += [None] * len(self._config.state_sizes())
        return masks if len(masks) > 1 else masks[0]

    # Saving.

    def get_build_config(self) -> dict[str, Any] | None:
        return signed(super().get_build_config())

    def get_config(self) -> dict[str, Any]:
        config = {
            **super().get_config(),
            **self._config_arguments,
            "algorithm": self.algorithm,
            "seed": self.seed,
            **{
                key: keras.saving.serialize_keras_object(getattr(self, key))
                for key in WEIGHT_OPTIONS
            },
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "time_major": self.time_major,
            "recurrent_weight_dropout": self.recurrent_weight_dropout,
        }
        return without_later(config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CudnnRNN":
        # A file may name kernels that there are no longer. As in stored graphs, "auto" runs.
        is_gone = config.get("algorithm") == "resident"
        return super().from_config({**config, "algorithm": "auto"} if is_gone else config)


# Arguments that the first versions, which can read other files, do not know, and their defaults.
_LATER = {"algorithm": "auto", "reset_after": True, "use_peepholes": False}
_LATER |= {"recurrent_weight_dropout": 0.0, "peephole_initializer": None}
_LATER |= {"use_layer_norm": False, "layer_norm_epsilon": None}
_LATER |= {"return_cell_sequences": False, "zoneout": 0.0, "cell_zoneout": 0.0}


def without_later(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config without later arguments that have their defaults."""
    return {key: each for key, each in config.items() if key not in _LATER or each != _LATER[key]}


def what_to_pass(value: Any) -> str:
    """Returns text for an error: what to pass in place of a model, or of one of Keras's layers."""
    if isinstance(value, keras.Model):
        found = [i for i, part in enumerate(value.layers) if isinstance(part, CudnnRNN)]
        return f": pass one of its layers, such as model.layers[{found[0]}]" if found else ""
    if isinstance(value, (keras.layers.RNN, keras.layers.Bidirectional)):
        return ": pass what cudnn_rnn_tf.convert.from_keras returns for it"
    return ""
