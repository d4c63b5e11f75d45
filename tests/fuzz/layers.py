"""Compares layers with Keras's own and with `reference`, with masks and data of all kinds."""

import random
from collections.abc import Iterator
from typing import Any

import keras
import layer_reference
import numpy as np
import random_layers
import tensorflow as tf

from cudnn_rnn_tf import keras as drop_ins

# `run` checks the errors that must come.
EXPECTED = ()
_CLASSES = ("LSTM", "GRU", "SimpleRNN")
_MASKS = ("plain", "shared", "column", "list", "floating")
_PADDING = ("nan", "inf", "-inf", "1e30")
_CALL = ("mask", "padding", "states", "mode", "wrong mask", "wrong states", "training")
# What stacks refuse, and what Bidirectional gives another meaning to.
_NOT_IN_STACKS = ("return_state", "go_backwards", "unroll", "dropout", "stateful")
_NOT_IN_BOTH = ("go_backwards", "unroll")


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws a layer's sizes, and changes, each of which sets an option of it or of its call."""
    numbers = rng.randrange(2**31)
    toss = lambda: rng.random() < 0.5  # noqa: E731
    sizes = [rng.randrange(1, 8) for _ in range(4)]
    family = rng.choice((*_CLASSES, *_CLASSES, *layer_reference.LAYERS, "gru_reset_before"))
    call = {
        "mask": rng.choice(_MASKS) if rng.random() < 0.8 else None,
        "padding": rng.choice(_PADDING) if toss() else None,
        "states": toss(),
        "mode": rng.choice((None, "graph", "unknown shapes")),
        "dtype": rng.choice(("float64", "float32")),
        "stateful": rng.random() < 0.2,
    }
    if rng.random() < 0.15:
        call["wrong mask"] = [rng.randrange(5) for _ in range(rng.randrange(5))]
    elif rng.random() < 0.05:
        call["wrong states"] = [rng.randrange(5) for _ in range(rng.randrange(4))]
    if family in _CLASSES:
        options = random_layers.draw_options(np.random.default_rng(numbers), family)
        for name in ("units", "dtype", "bias_initializer"):
            del options[name]
        options["wrap"] = rng.choice((None, None, "concat", "sum", "mul", "ave", "none"))
        options["stack"] = rng.randrange(2, 4) if rng.random() < 0.2 else None
        options["training"] = toss()
        if family == "GRU":
            options["reset_after"] = toss()
    else:
        options = {
            "num_layers": rng.randrange(1, 4),
            "direction": rng.choice(("unidirectional", "bidirectional")),
            "go_backwards": toss(),
            "time_major": toss(),
            "return_sequences": toss(),
            "bias_mode": rng.choice(("double", "single_input", "single_recurrent", "none")),
        }
        if family == "lstm":
            options["num_proj"] = rng.randrange(1, sizes[3] + 1) if toss() else None
        if options.get("num_proj") is None:
            options["zoneout"] = 0.4 if toss() else None
            options["cell_zoneout"] = 0.6 if toss() and family == "lstm" else None
    changes = [[name, value] for name, value in {**options, **call}.items() if value is not None]
    return {"family": family, "sizes": sizes, "numbers": numbers, "changes": changes}


def run(case: dict[str, Any]) -> str:
    options = {"dtype": "float64", **dict(case["changes"])}
    call = {name: options.pop(name, None) for name in _CALL}
    tf.config.experimental.enable_tensor_float_32_execution(False)
    numbers = np.random.default_rng(case["numbers"])
    batch, time, size, units = case["sizes"]
    if "relu" in (options.get("activation"), case["family"].removeprefix("rnn_")):
        # In float32, rounding would move some numbers over the kink.
        options["dtype"] = "float64"
    if call["mode"] == "unknown shapes" or options.get("wrap"):
        options.pop("unroll", None)
    mask = random_layers.draw_mask(numbers, batch, time)
    if call["mask"] is None:
        mask[:] = True
    elif call["mask"] == "shared":
        mask[1:] = mask[:1]
    inputs = numbers.standard_normal((batch, time, size))
    make = _DropIn if case["family"] in _CLASSES else _Own
    comparison = make(case["family"], units, options, call, inputs, mask, numbers)
    return comparison.run(call)


class _Comparison:
    """A layer, what it is called with, and what must come of that.

    Subclasses set `layer`, `states`, `shapes`, those of states, `time_major` and `dtype`, and
    return the expected results.
    """

    def expected(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _asked(self, call: dict[str, Any], **replaced: Any) -> dict[str, np.ndarray]:
        """Calls the layer as it is asked to be called, with some arguments replaced."""
        inputs = np.where(self.mask[:, :, np.newaxis], self.inputs, float(call["padding"] or 0))
        inputs = tf.constant(self.swap(inputs), self.dtype)
        arguments = {**self.arguments, "mask": self._form_of_mask(call["mask"]), **replaced}
        hides = call["mode"] == "unknown shapes" and not getattr(self.layer, "stateful", False)

        def called(inputs: tf.Tensor, mask: Any = None, **given: Any) -> Any:
            if hides:
                inputs = _hidden(inputs, [None, None, inputs.shape[2]])
                mask = None if mask is None else _hidden(tf.constant(mask), [None] * np.ndim(mask))
            return self.layer(inputs, mask=mask, **given)

        called.trainable_variables = self.layer.trainable_variables
        return random_layers.run(called, inputs, call["mode"] is not None, **arguments)

    def run(self, call: dict[str, Any]) -> str:
        for replaced, shape in self._wrong(call):
            try:
                self._asked(call, **replaced)
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                known = [str(tuple(shape)), str(shape).replace(" ", ""), str((None,) * len(shape))]
                assert any(text in str(error) for text in known), f"does not say {known}: {error}"
                return "refused"
            raise AssertionError("a wrong shape is taken")
        assert self.layer.runs_fused if hasattr(self.layer, "runs_fused") else True
        for _ in range(1 + bool(getattr(self.layer, "stateful", False))):
            # A stateful layer begins where it has ended.
            expected = self.expected()
            # Stacks round more often than the single layers that the tolerance is for.
            random_layers.check_equal(self._asked(call), expected, factor=10.0)
        return type(self.layer).__name__

    def swap(self, array: np.ndarray) -> np.ndarray:
        return random_layers.swapped(array, self.time_major)

    def _form_of_mask(self, form: str | None) -> Any:
        mask = self.swap(self.mask[:1] if form == "shared" else self.mask)
        return {
            None: lambda: None,
            "plain": lambda: mask,
            "shared": lambda: mask,
            "column": lambda: mask[:, :, np.newaxis],
            "list": mask.tolist,
            "floating": lambda: mask.astype("float32"),
        }[form]()

    def _wrong(self, call: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Yields arguments of wrong shapes that the call is to have, and the shapes."""
        shape = call["wrong mask"]
        if shape is not None:
            sizes = shape[:2][::-1] if self.time_major else shape[:2]
            batch, time = self.mask.shape
            has_rank = len(shape) == 2 or (len(shape) == 3 and shape[2] == 1)
            if not (has_rank and sizes[0] in (1, batch) and sizes[1] == time):
                yield {"mask": np.ones(shape, bool)}, shape
        shape = call["wrong states"]
        if shape is not None and self.shapes and tuple(shape) != tuple(self.shapes[0]):
            states = [np.zeros(each) for each in (shape, *self.shapes[1:])]
            yield {"initial_state": [tf.constant(state, self.dtype) for state in states]}, shape


def _hidden(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """Returns a tensor of which a graph knows this shape alone."""
    return tf.compat.v1.placeholder_with_default(tensor, shape)


class _DropIn(_Comparison):
    """A drop-in, with Keras's layer."""

    time_major = False

    def __init__(self, name: str, units: int, options, call, inputs, mask, numbers):
        wrap, count = options.pop("wrap", None), options.pop("stack", 1)
        for option in _NOT_IN_STACKS * (count > 1) + _NOT_IN_BOTH * (wrap is not None):
            options.pop(option, None)
        if wrap is not None and options.get("return_state"):
            # Keras's own wrapper raises a TypeError if its layer is stateful as well.
            options.pop("stateful", None)
        bias = {"class_name": "RandomNormal", "config": {"seed": 1}}
        options |= {"units": units, "bias_initializer": bias}
        self.dtype, self.mask = options["dtype"], mask
        # Where inputs are not finite, Keras's gradients are not either.
        self.inputs = np.where(mask[:, :, np.newaxis], inputs, 0.0)
        self.arguments = {"training": bool(call["training"])}
        self.shapes = [(len(inputs), units)] * (1 + (name == "LSTM")) * (1 + (wrap is not None))
        if count > 1:
            self.shapes = []
        elif call["states"]:
            self.arguments["initial_state"] = [
                tf.constant(numbers.standard_normal(shape), self.dtype) for shape in self.shapes
            ]

        def make(module: Any) -> Any:
            layers = []
            for index in range(count):
                # In Keras, a copied SimpleRNN forgets its seed, so the global seed is set.
                keras.utils.set_random_seed(index)
                sequences = {"return_sequences": True} if index < count - 1 else {}
                layer = getattr(module, name)(**options | sequences)
                if module is keras.layers:
                    random_layers.without_cudnn(layer)
                if wrap is not None:
                    merge = "concat" if count > 1 else None if wrap == "none" else wrap
                    layer = module.Bidirectional(layer, merge_mode=merge, dtype=self.dtype)
                layers.append(layer)
            if count > 1:
                layer = (_Chain if module is keras.layers else drop_ins.Stack)(layers)
            layer.build(inputs.shape)
            return layer

        self._stock, self.layer = make(keras.layers), make(drop_ins)
        self.layer.set_weights(self._stock.get_weights())

    def expected(self) -> dict[str, np.ndarray]:
        inputs = tf.constant(self.inputs, self.dtype)
        return random_layers.run(self._stock, inputs, False, mask=self.mask, **self.arguments)


class _Chain(keras.layers.Layer):
    """Layers that run one after the other, each with the mask."""

    def __init__(self, layers: list[keras.layers.Layer]):
        super().__init__(dtype=layers[0].dtype_policy)
        self._chain = layers

    def build(self, shape: tuple[int | None, ...]) -> None:
        for layer in self._chain:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, inputs: tf.Tensor, mask: Any = None, training: bool = False) -> tf.Tensor:
        for layer in self._chain:
            inputs = layer(inputs, mask=mask, training=training)
        return inputs


class _Own(_Comparison):
    """One of this package's own layers, with the reference."""

    def __init__(self, mode: str, units: int, options, call, inputs, mask, numbers):
        self.time_major, self.dtype = options.get("time_major", False), options["dtype"]
        self.inputs, self.mask = inputs, mask
        num_layers = options.pop("num_layers", 1)
        self.layer = layer_reference.make(mode, num_layers, units, return_state=True, **options)
        self.layer.build(self.swap(inputs).shape)
        self.layer.kernel.assign(0.4 * numbers.standard_normal(self.layer.params_size()))
        config = layer_reference.config_of(self.layer)
        self.shapes = config.state_shapes(len(inputs), self.time_major)
        shapes = config.state_shapes(len(inputs), False)
        self.arguments, self._states = {}, [np.zeros(shape) for shape in shapes]
        if call["states"]:
            self._states = [numbers.standard_normal(shape) for shape in shapes]
            states = [tf.constant(self.swap(state), self.dtype) for state in self._states]
            self.arguments["initial_state"] = states

    def expected(self) -> dict[str, np.ndarray]:
        layer, top = self.layer, self.layer.num_dirs
        batch, time = self.mask.shape
        out = self._states[0].shape[-1]
        shape = self.swap(np.zeros((batch, time, top * out))).shape
        shapes = [shape if layer.return_sequences else (batch, top * out)]
        shapes += [self.swap(state).shape for state in self._states]
        # These are the gradients of the loss of `random_layers.run`.
        d_all, *d_states = [np.linspace(1, 2, np.prod(s)).reshape(s) for s in shapes]
        d_states = [self.swap(d) for d in d_states]
        if layer.return_sequences:
            d_outputs = self.swap(d_all)
        else:
            # The last outputs are the top layer's final states.
            d_outputs = np.zeros((batch, time, top * out))
            d_states[0][:, -top:] += d_all.reshape(batch, top, out)
        inputs = np.where(self.mask[:, :, np.newaxis], self.inputs, 0.0)
        (outputs, *final), (d_inputs, *d_first, d_params) = random_layers.expected_of(
            layer, inputs, self.mask, self._states, d_outputs, d_states
        )
        if not layer.return_sequences:
            outputs = final[0][:, -top:].reshape(batch, -1)
        else:
            outputs = self.swap(outputs)
        is_given = "initial_state" in self.arguments
        gradients = [self.swap(d_inputs), *(map(self.swap, d_first) if is_given else ()), d_params]
        results = [outputs, *map(self.swap, final)]
        if layer.stateful and not is_given:
            self._states = final
        named = {f"result {i}": value for i, value in enumerate(results)}
        named |= {f"gradient {i}": value for i, value in enumerate(gradients)}
        return {name: value.astype(self.dtype) for name, value in named.items()}
