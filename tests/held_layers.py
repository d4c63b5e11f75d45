"""Layers that hold more than variables, and the ways to copy a model with one of them."""

import contextlib
import inspect
import io
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import h5py
import keras
import numpy as np
import onnxruntime
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__

layers = keras.layers
registered = keras.saving.register_keras_serializable("held")
NUMBERS = np.random.default_rng(0).normal(3.0, 2.0, (6, 3)).astype("float32")
TEXTS = np.array(["b a", "a c", "a b b", "d", "é a", "ende"]).reshape(6, 1)
# Keras's files of vocabularies have a line for each word, and the last ones are of two lines.
WORDS = np.array([*"abbc", "two\nlines", "x\u2028y"]).reshape(6, 1)


class _WithWeight(layers.Layer):
    """A layer whose output is its inputs times something that is made of its weight."""

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(shape[-1],), initializer="ones")
        self._derive()

    def _derive(self) -> None:
        self.factor = keras.ops.convert_to_tensor(self.weight) ** 2

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor

    def settle(self) -> None:
        """Gives the built layer the state that a copy must have."""
        self.weight.assign(0.7 + np.arange(3) / 3)
        self._derive()


@registered
class Derived(_WithWeight):
    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        self._derive()


@registered
class OwnFormat(_WithWeight):
    """Saves no variable, but what is made of it."""

    def save_own_variables(self, store: Any) -> None:
        store["both"] = np.stack([self.weight, self.factor])

    def load_own_variables(self, store: Any) -> None:
        self.weight.assign(store["both"][0])
        self.factor = keras.ops.convert_to_tensor(store["both"][1])


@registered
class WithAsset(_WithWeight):
    def save_assets(self, folder: str) -> None:
        np.save(pathlib.Path(folder, "factor.npy"), self.factor)

    def load_assets(self, folder: str) -> None:
        self.factor = keras.ops.convert_to_tensor(np.load(pathlib.Path(folder, "factor.npy")))


@registered
class WithTensorFlowsVariable(_WithWeight):
    def _derive(self) -> None:
        if not hasattr(self, "factor"):
            self.factor = tf.Variable(tf.ones(3), trainable=False)
        self.factor.assign(self.weight**2)


@registered
class Composite(layers.Layer):
    """A layer whose parts hold something."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm, self.derived = layers.Normalization(), Derived()

    def build(self, shape: Any) -> None:
        self.norm.build(shape)
        self.derived.build(shape)

    def call(self, inputs: Any) -> Any:
        return self.derived(self.norm(inputs))

    def settle(self) -> None:
        self.norm.adapt(NUMBERS)
        self.derived.settle()


def hard_sigmoid(x: Any) -> Any:
    """Is another function than Keras's, which has this name as well."""
    return keras.ops.clip(0.3 * x + 0.4, 0.0, 1.0)


SHIFT = 2.0


def shifted(x: Any) -> Any:
    return x + SHIFT


Kind = Callable[[], tuple[keras.Model, Any]]


def _around(make: Callable[[], Any], inputs: np.ndarray) -> Kind:
    """Returns what makes a model of a layer, which is adapted to the inputs or settled."""

    def model() -> tuple[keras.Model, np.ndarray]:
        layer = make()
        source = keras.Input(inputs.shape[1:], dtype="string" if inputs.dtype.kind == "U" else None)
        if hasattr(layer, "adapt") and not isinstance(layer, layers.Normalization):
            layer.adapt(inputs)  # What these know gives their outputs the shape.
        x = layers.Rescaling(0.3)(layers.Flatten()(layer(source)))
        made = keras.Model(source, layers.LSTM(3)(layers.RepeatVector(5)(x)))
        if isinstance(layer, layers.Normalization):
            layer.adapt(inputs)
        getattr(layer, "settle", lambda: None)()
        return made, tf.constant(inputs) if inputs.dtype.kind == "U" else inputs

    return model


@registered
class WithLora(layers.Dense):
    """Is one of Keras's own layers in all but this method."""

    def settle(self) -> None:
        self.enable_lora(2)
        for index, each in enumerate(self.weights):
            each.assign(np.cos(index + np.arange(np.size(each))).reshape(each.shape))


def _features() -> tuple[keras.Model, Any]:
    kinds = {"a": "float_normalized", "b": "float_discretized", "c": "string_categorical"}
    space = keras.utils.FeatureSpace(kinds)
    inputs = {"a": NUMBERS[:, :1], "b": NUMBERS[:, 1:2], "c": TEXTS}
    space.adapt(tf.data.Dataset.from_tensor_slices(inputs))
    encoded = layers.RepeatVector(5)(space.get_encoded_features())
    inputs = {name: tf.constant(each) for name, each in inputs.items()}
    return keras.Model(space.get_inputs(), layers.LSTM(3)(encoded)), inputs


def _image(name: str) -> Kind:
    values = {"height": 4, "width": 4}
    values |= {"factor": 4} if name == "RandomPosterization" else {}
    kind = getattr(layers, name)
    needed = [
        each.name
        for each in inspect.signature(kind).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    images = 20 * np.tile(np.abs(NUMBERS), 8).reshape(6, 2, 4, 3)
    return _around(lambda: kind(**{each: values.get(each, 0.1) for each in needed}), images)


INTEGERS = np.array([[7, 9, 7], [9, 7, 8], [1, 7, 9]])
# Layers of which a model's weights tell all that they hold.
IN_WEIGHTS: dict[str, Kind] = {
    "Normalization": _around(layers.Normalization, NUMBERS),
    "Normalization inverted": _around(lambda: layers.Normalization(None, invert=True), NUMBERS),
    "Normalization in halves": _around(lambda: layers.Normalization(dtype="float16"), NUMBERS),
    "LoRA": _around(lambda: WithLora(3), NUMBERS),
    "Derived": _around(Derived, NUMBERS),
    "Composite": _around(Composite, NUMBERS),
}
NUMERIC: dict[str, Kind] = {
    **IN_WEIGHTS,
    "OwnFormat": _around(OwnFormat, NUMBERS),
    "WithAsset": _around(WithAsset, NUMBERS),
    "WithTensorFlowsVariable": _around(WithTensorFlowsVariable, NUMBERS),
    "own hard_sigmoid": _around(lambda: layers.Dense(3, activation=hard_sigmoid), NUMBERS),
    "own lambda": _around(lambda: layers.Dense(3, activation=lambda x: x * SHIFT), NUMBERS),
    "Lambda": _around(lambda: layers.Lambda(lambda x: x * SHIFT), NUMBERS),
    "Lambda of a function": _around(lambda: layers.Lambda(shifted), NUMBERS),
    "Rescaling": _around(lambda: layers.Rescaling([0.1, 0.2, 0.3], 0.5), NUMBERS),
}
IMAGES: dict[str, Kind] = {
    name: _image(name)
    for name in dir(layers)
    if (name.startswith("Random") and name != "RandomCrop")
    or name in ("AugMix", "AutoContrast", "CenterCrop", "CutMix", "Equalization", "MixUp")
    or name in ("RandAugment", "Resizing", "Solarization")
}
KINDS: dict[str, Kind] = {
    **NUMERIC,
    "Discretization": _around(lambda: layers.Discretization(num_bins=3), NUMBERS),
    "CategoryEncoding": _around(lambda: layers.CategoryEncoding(10), INTEGERS),
    "Hashing": _around(lambda: layers.Hashing(5, salt=7), TEXTS),
    "FeatureSpace": _features,
    "Pipeline": _around(
        lambda: layers.Pipeline([layers.Rescaling(0.1), layers.CenterCrop(1, 2)]),
        np.tile(NUMBERS, 8).reshape(6, 2, 4, 3),
    ),
    "IntegerLookup": _around(layers.IntegerLookup, INTEGERS),
    "IntegerLookup tf_idf": _around(
        lambda: layers.IntegerLookup(output_mode="tf_idf", num_oov_indices=2), INTEGERS
    ),
    "StringLookup": _around(layers.StringLookup, WORDS),
    "StringLookup count": _around(
        lambda: layers.StringLookup(num_oov_indices=0, mask_token="a", output_mode="count"), WORDS
    ),
    "MelSpectrogram": _around(
        lambda: layers.MelSpectrogram(8, 4, num_mel_bins=3, sampling_rate=100), np.tile(NUMBERS, 8)
    ),
    **{
        f"TextVectorization {mode}": _around(
            lambda mode=mode: layers.TextVectorization(
                output_mode=mode,
                max_tokens=20,
                pad_to_max_tokens=mode != "int",
                output_sequence_length=4 if mode == "int" else None,
                ngrams=2,
            ),
            TEXTS,
        )
        for mode in ("int", "multi_hot", "count", "tf_idf")
    },
    **IMAGES,
}


def _through_command(model: keras.Model, folder: pathlib.Path) -> keras.Model:
    model.save(folder / "m.keras")
    with contextlib.redirect_stdout(io.StringIO()):
        __main__.main(["accelerate", str(folder / "m.keras"), str(folder / "fast.keras")])
    return keras.saving.load_model(folder / "fast.keras")


def _through_weights(model: keras.Model, folder: pathlib.Path) -> keras.Model:
    """Has `load_keras_weights` read a file in the layout of Keras 2."""
    model.save(folder / "m.h5")
    with h5py.File(folder / "m.h5", "r+") as file:
        del file.attrs["model_config"]
    copy = keras.models.clone_model(model)
    crnn.load_keras_weights(copy, folder / "m.h5")
    return copy


def _through_onnx(model: keras.Model, folder: pathlib.Path) -> Callable[..., Any]:
    crnn.export_onnx(model, folder / "m.onnx")
    session = onnxruntime.InferenceSession(folder / "m.onnx")
    return lambda inputs, **_: session.run(None, {session.get_inputs()[0].name: inputs})[0]


def _through_litert(model: keras.Model, folder: pathlib.Path) -> Callable[..., Any]:
    crnn.export_litert(model, folder / "m.tflite", batch_size=len(NUMBERS))
    run = tf.lite.Interpreter(str(folder / "m.tflite")).get_signature_runner()
    (name,) = run.get_input_details()
    return lambda inputs, **_: next(iter(run(**{name: inputs}).values()))


DOORS: dict[str, tuple[dict[str, Kind], Callable[[keras.Model, pathlib.Path], Any]]] = {
    "accelerate": (KINDS, lambda model, _: crnn.accelerate(model)),
    "to_stock": (KINDS, lambda model, _: crnn.to_stock(crnn.accelerate(model))),
    "load_keras_weights": (IN_WEIGHTS, _through_weights),
    "command": (
        # A file has no functions, and Keras's way to write the others loses what they hold.
        {n: kind for n, kind in KINDS.items() if not re.match("own|Lambda|WithT|StringL|.* tf", n)},
        _through_command,
    ),
    "export_onnx": (NUMERIC, _through_onnx),
    # LiteRT subtracts no halves.
    "export_litert": ({n: k for n, k in NUMERIC.items() if "halves" not in n}, _through_litert),
}


def check(kind: str, door: str) -> None:
    """Raises AssertionError if a copy of a kind of model computes something else."""
    kinds, copied = DOORS[door]
    with tempfile.TemporaryDirectory() as folder:
        model, inputs = kinds[kind]()
        expected = model(inputs, training=False)
        received = copied(model, pathlib.Path(folder))(inputs, training=False)
        # Numbers of float16 have 11 bits.
        atol = 5e-3 if "halves" in kind else 1e-5
        assert np.allclose(received, expected, atol=atol), f"{kind} through {door} differs"
