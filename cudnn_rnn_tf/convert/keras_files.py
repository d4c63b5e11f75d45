"""Reads the models and weights that Keras of any version wrote."""

import contextlib
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h5py
import keras
import numpy as np

from cudnn_rnn_tf import messages
from cudnn_rnn_tf._private_names import keras_mask
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.convert import file_kinds, keras_arrays, model_memory, untrusted
from cudnn_rnn_tf.convert.keras_configs import Translation, is_model, recurrent_in, valid_name
from cudnn_rnn_tf.keras.acceleration import check_built
from cudnn_rnn_tf.keras.copies import take_over_weights


@checked
def load_keras_model(
    path: str | os.PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = False,
) -> keras.Model:
    """Loads a whole model that Keras 1, 2 or 3, or the Keras of TensorFlow 1 or 2, wrote.

    What the layers of Keras 3 express in other words is translated: `batch_input_shape`,
    `implementation`, dtype policies, old names of classes and arguments, `hard_sigmoid`, which was
    another function before Keras 3, and initial states among a layer's inputs, beside which Keras 3
    would lose the mask. `CuDNNLSTM` and `CuDNNGRU` become the `LSTM` and `GRU` of
    `cudnn_rnn_tf.keras`, which run on CPUs as well; an LSTM's two biases are added. All other
    layers are Keras's own; `accelerate` replaces them. Nothing in a file is executed.

    Args:
        path: a `.h5`, `.hdf5` or `.keras` file, or one of these under another name.
        custom_objects: classes of layers, and functions, that the file names.
        compile: whether the model is compiled as it was. Files of Keras 1 and 2 never are.

    Returns:
        The model, with the weights of the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, holds weights alone, or has layers that Keras 3 cannot
            express: each is named with its reason. `convert` takes the recurrent networks out of
            such a file.
        TypeError: if a file of Keras 3 names a class that is not known, as in Keras.
    """
    path = pathlib.Path(path)
    with _damage_as_value_error(path):
        return _loaded(path, custom_objects, compile)


@checked
def load_keras_weights(
    model: keras.Model, path: str | os.PathLike[str], by_name: bool = False
) -> None:
    """Loads the weights of a file that Keras of any version wrote into a model.

    Weights of a `CuDNNLSTM` go into an `LSTM` of Keras's or this package's, which gets the sum of
    the two biases, and those of a `CuDNNGRU` into a `GRU`.

    Args:
        model: a built model, whose layers have the activations that the file's had: a file of
            weights alone does not say them. Before Keras 2.3, the `recurrent_activation` was
            `cudnn_rnn_tf.convert.keras_2_hard_sigmoid` unless given.
        path: a `.h5` or `.hdf5` file, with or without a model.
        by_name: whether weights go into the layer of the same name, and those of other names are
            left out. Otherwise the layers that have weights are in the same order as the file's.

    Raises:
        TypeError: if `model` is no Keras model.
        FileNotFoundError: if there is no such file.
        ValueError: if the model is not built, or if the file is damaged, has other layers or
            weights of other shapes, or has those of layers in a layer in another order, as where
            others were frozen, and under other names.
    """
    check_built(model)
    path = pathlib.Path(path)
    with _damage_as_value_error(path):
        _load_weights(model, path, by_name)


def _load_weights(model: keras.Model, path: pathlib.Path, by_name: bool) -> None:
    untrusted.stored_bytes(path)
    if not h5py.is_hdf5(path):
        raise ValueError(f"{path} is no file of weights of Keras's: no HDF5")
    untrusted.check_hdf5(path)
    with H5Model(path) as source:
        if source.is_keras_3_weights:
            with _named(path, ".weights.h5") as named:
                model.load_weights(named)
            return
        names = [name for name in source.layer_names if source.weight_names(name)]
        if by_name:
            layers = {layer.name: layer for layer in model.layers if layer.weights}
            pairs = [(name, layers[name]) for name in names if name in layers]
            if not pairs:
                raise ValueError(f"{path} has weights of none of the model's layers: {names}")
        else:
            with_weights = [layer for layer in model.layers if layer.weights]
            if len(with_weights) != len(names):
                raise ValueError(
                    f"expected {len(with_weights)} layers with weights in {path}, as in model "
                    f"{model.name!r}, but there are {len(names)}: {names}"
                )
            pairs = list(zip(names, with_weights, strict=True))
        for name, layer in pairs:
            keras_arrays.assign(layer, source.datasets(name))


def _loaded(
    path: pathlib.Path, custom_objects: Mapping[str, Any] | None, compile: bool
) -> keras.Model:
    if not (path / "saved_model.pb").is_file():
        untrusted.stored_bytes(path)
    kind = file_kinds.kind_of(path)
    if kind == "keras":
        untrusted.check_archive(path)
        version = _archived_version(path)
        with zipfile.ZipFile(path) as archive:
            config = untrusted.parsed(archive.read("config.json"), path)
        if version.startswith("2"):
            return _archived_model(path, version, config, custom_objects)
        model_memory.check_model(path, config, custom_objects)
        with _named(path, ".keras") as named:
            return keras.saving.load_model(named, custom_objects=custom_objects, compile=compile)
    if kind != "hdf5":
        raise ValueError(
            f"{path} is no file of Keras's with a model, but {file_kinds.NAMES[kind]}: convert "
            "takes networks from it"
        )
    untrusted.check_hdf5(path)
    with H5Model(path) as source:
        if source.config is None:
            raise ValueError(
                f"{path} holds weights alone and no model: make the model, and load them with "
                "cudnn_rnn_tf.load_keras_weights(model, path)"
            )
        if source.version.startswith("3"):
            if not isinstance(source.config, dict):
                raise ValueError(f"{path} has no model's config")
            # The outermost config is without what tells where its class is.
            kind = source.config["class_name"].replace("Functional", "Model")
            place = {"module": "keras", "class_name": kind, "registered_name": kind}
            model_memory.check_model(path, {**source.config, **place}, custom_objects)
            with _named(path, ".h5") as named:
                return keras.saving.load_model(
                    named, custom_objects=custom_objects, compile=compile
                )
        return source.model(custom_objects)


def _archived_version(path: pathlib.Path) -> str:
    """Returns the version of the Keras that wrote a `.keras` file: 3 if the file does not say it.

    Keras 3 itself never reads what says it.
    """
    with zipfile.ZipFile(path) as archive:
        try:
            metadata = json.loads(archive.read("metadata.json"))
        except (KeyError, ValueError):
            metadata = None
    return str(metadata.get("keras_version", "3")) if isinstance(metadata, dict) else "3"


@contextlib.contextmanager
def _damage_as_value_error(path: pathlib.Path) -> Iterator[None]:
    """Names the file in what libraries raise for a damaged one, which may be of any class."""
    try:
        yield
    except (ImportError, TypeError, ValueError):
        raise
    except Exception as error:
        # An OSError of HDF5's has no file name; it is about what is in the file.
        if isinstance(error, OSError) and (error.filename is not None or not path.exists()):
            raise
        raise messages.of_file(path, "load", error) from error


def is_weights(path: pathlib.Path) -> bool:
    """Returns whether a file of HDF5 holds weights alone."""
    untrusted.check_hdf5(path)
    with H5Model(path) as source:
        return source.config is None


def weights_in(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns all weights of a file of HDF5, by name."""
    with H5Model(path) as source:
        return {name: np.asarray(dataset) for name, dataset in source.all_datasets().items()}


def recurrent_layers(path: pathlib.Path) -> dict[str, keras.layers.Layer]:
    """Returns the recurrent layers of a model in HDF5, of which Keras 3 may not know the others."""
    if not h5py.is_hdf5(path):
        return {}
    weights = weights_in(path)
    found: dict[str, keras.layers.Layer] = {}
    with H5Model(path) as source:
        if not is_model(source.config):
            return {}
        translation = Translation(source.version)
        config = model_memory.without_weights(
            lambda: translation.model(source.config), source.config
        )
        for name, layer_config in recurrent_in(config):
            last = name.rpartition("/")[2]
            own = {key: each for key, each in weights.items() if last in key.split("/")}
            if last in translation.problems or not own:
                continue

            size = next(iter(own.values())).shape[0]

            def make(layer_config: Any = layer_config, size: int = size) -> Any:
                layer = keras.saving.deserialize_keras_object(layer_config, safe_mode=True)
                layer.build((None, None, size))
                return layer

            model_memory.check_layer(path, model_memory.without_weights(make, layer_config))
            found[name] = make()
            keras_arrays.assign(found[name], own)
    return found


class H5Model:
    """A file of HDF5 that Keras wrote, open for reading: a context.

    Attributes:
        config: the model's config; None in a file of weights alone.
        version: of the Keras that wrote it; "1" if the file does not say it.
        layer_names: of the layers that have a place in it.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._file = h5py.File(path, "r")
        has_model = "model_weights" in self._file
        self._weights = untrusted.h5_item(self._file, "model_weights") if has_model else self._file
        text = _text(self._file.attrs.get("model_config"))
        self.config: Any = None if text is None else untrusted.parsed(text, path)
        versions = (owner.attrs.get("keras_version") for owner in (self._weights, self._file))
        self.version = next(filter(None, map(_text, versions)), "1")
        self.layer_names = _texts(self._weights, "layer_names")

    def __enter__(self) -> "H5Model":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def is_keras_3_weights(self) -> bool:
        """Tells whether the weights lie as in the `.weights.h5` files of Keras 3."""
        return "layer_names" not in self._weights.attrs and "layers" in self._weights

    def weight_names(self, layer: str) -> list[str]:
        return _texts(untrusted.h5_item(self._weights, layer), "weight_names")

    def datasets(self, layer: str) -> dict[str, h5py.Dataset]:
        """Returns the weights of a layer by name, in the order of the layer's weights."""
        group = untrusted.h5_item(self._weights, layer)
        return {name: untrusted.h5_item(group, name) for name in self.weight_names(layer)}

    def all_datasets(self) -> dict[str, h5py.Dataset]:
        """Returns all weights of the file by name, those of a layer after each other."""
        if self.is_keras_3_weights:
            found: list[str] = []
            self._weights.visititems(
                lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None
            )
            return {name: untrusted.h5_item(self._weights, name) for name in found}
        return {
            name if name.startswith(f"{layer}/") else f"{layer}/{name}": dataset
            for layer in self.layer_names
            for name, dataset in self.datasets(layer).items()
        }

    def model(self, custom_objects: Mapping[str, Any] | None) -> keras.Model:
        """Returns the model with its weights, as `load_keras_model` does."""
        names = {valid_name(name): name for name in self.layer_names}

        def load_weights(model: keras.Model) -> None:
            for layer in model.layers:
                if layer.weights:
                    if layer.name not in names:
                        raise ValueError(f"{self._path} has no weights of layer {layer.name!r}")
                    keras_arrays.assign(layer, self.datasets(names[layer.name]))

        return _made(self._path, self.version, self.config, custom_objects, load_weights)


def _archived_model(
    path: pathlib.Path, version: str, config: Any, custom_objects: Mapping[str, Any] | None
) -> keras.Model:
    """Returns the model of a `.keras` file of Keras 2, whose weights lie as in those of Keras 3."""
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(path) as archive:
            weights = archive.extract("model.weights.h5", directory)
            has_assets = any(name.startswith("assets/") for name in archive.namelist())

        def load_weights(model: keras.Model) -> None:
            model.load_weights(weights)
            if has_assets:
                # Keras reads them, such as vocabularies, only together with a model of its own.
                whole = pathlib.Path(directory, "whole.keras")
                with zipfile.ZipFile(path) as source, zipfile.ZipFile(whole, "w") as target:
                    target.writestr("config.json", model.to_json())
                    for name in {*source.namelist()} - {"config.json"}:
                        target.writestr(name, source.read(name))
                take_over_weights(keras.saving.load_model(whole, custom_objects), model)

        return _made(path, version, config, custom_objects, load_weights)


def _made(
    path: pathlib.Path,
    version: str,
    config: Any,
    custom_objects: Mapping[str, Any] | None,
    load_weights: Callable[[keras.Model], None],
) -> keras.Model:
    """Returns the model that a config of Keras 1 or 2 describes, with the file's weights."""
    if not is_model(config):
        kind = config.get("class_name") if isinstance(config, dict) else None
        raise ValueError(
            f"{path} holds a {kind}, whose layers only its own code says, not its config"
        )
    translation = Translation(version, custom_objects)
    translated = model_memory.without_weights(
        lambda: translation.model(config), config, custom_objects
    )
    if translation.problems:
        problems = "; ".join(f"{k!r}: {v}" for k, v in translation.problems.items())
        raise ValueError(
            f"Keras 3 cannot express {len(translation.problems)} of the layers in {path} "
            f"({problems}); cudnn-rnn-tf inspect lists its recurrent networks, and convert takes "
            "one out of it"
        )
    model_memory.check_model(path, translated, custom_objects)
    model = keras.saving.deserialize_keras_object(
        translated, custom_objects=custom_objects, safe_mode=True
    )
    if not model.built:
        raise ValueError(
            f"{path} does not say the shape of the model's inputs: make the model, and load the "
            "weights with cudnn_rnn_tf.load_keras_weights(model, path)"
        )
    load_weights(model)
    if translation.has_initial_states:
        with keras.saving.custom_object_scope(dict(custom_objects or {})):
            model = _with_masks(model)
    return model


def _with_masks(model: keras.Model) -> keras.Model:
    """Returns a copy in which masks also reach layers with initial states.

    Keras 3 hands a mask on only to a layer that has no other inputs, unless the call names it. The
    copy's layers may have another order, so each gets its weights by itself.
    """
    copies: list[tuple[keras.layers.Layer, keras.layers.Layer]] = []

    def copy(layer: keras.Operation) -> keras.Operation:
        if hasattr(layer, "operations") or isinstance(layer, keras.Sequential):
            return _with_masks(layer)
        its_copy = layer.__class__.from_config(layer.get_config())
        if isinstance(layer, keras.layers.Layer):
            copies.append((layer, its_copy))
        return its_copy

    def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        is_recurrent = isinstance(layer, (keras.layers.RNN, keras.layers.Bidirectional))
        has_states = kwargs.get("initial_state") is not None
        if is_recurrent and has_states and kwargs.get("mask") is None:
            kwargs["mask"] = keras_mask(args[0])
        return layer(*args, **kwargs)

    options = {} if isinstance(model, keras.Sequential) else {"call_function": call}
    copied = keras.models.clone_model(model, clone_function=copy, **options)
    for layer, its_copy in copies:
        take_over_weights(layer, its_copy)
    return copied


@contextlib.contextmanager
def _named(path: pathlib.Path, suffix: str) -> Iterator[str]:
    """Gives a file a name by which Keras knows its format."""
    if path.name.endswith(suffix):
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as directory:
        link = pathlib.Path(directory, f"model{suffix}")
        link.symlink_to(path.absolute())
        yield str(link)


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _texts(group: Any, name: str) -> list[str]:
    """Returns a list of texts in a group's attributes. A long one is in several of them."""
    parts = [group.attrs[name]] if name in group.attrs else []
    while f"{name}{len(parts)}" in group.attrs:
        parts.append(group.attrs[f"{name}{len(parts)}"])
    texts = (str(_text(each)) for part in parts for each in np.asarray(part).tolist())
    return list(dict.fromkeys(texts))
