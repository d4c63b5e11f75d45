"""Lists the recurrent layers in Keras's files by their configs, without making a model."""

import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import keras

from cudnn_rnn_tf import constants, messages
from cudnn_rnn_tf.convert import keras_format, named_arrays, network, untrusted
from cudnn_rnn_tf.convert.keras_configs import Translation, is_model
from cudnn_rnn_tf.convert.keras_files import H5Model
from cudnn_rnn_tf.convert.network import Network
from cudnn_rnn_tf.keras.configs import without_builds

_STOCK_MODES = {"LSTM": "lstm", "GRU": "gru"}
_OTHERS = ("RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
_MOST_NETWORKS = 300
_OWN_MODES = {layer.__name__: mode for mode, layer in network.LAYERS.items()}


def _own_mode(kind: str, config: dict[str, Any]) -> str:
    """Returns the mode of a layer of this package."""
    mode = _OWN_MODES[kind]
    if config.get("reset_after") is False:
        return constants.GRU_RESET_BEFORE
    if config.get("use_peepholes") is True:
        return constants.LSTM_PEEPHOLE
    return f"{mode}_layer_norm" if config.get("use_layer_norm") is True else mode


def in_archive(path: pathlib.Path) -> Iterator[Network]:
    """Yields the recurrent layers in a `.keras` file."""
    untrusted.check_archive(path)
    with zipfile.ZipFile(path) as archive:
        model = untrusted.parsed(archive.read("config.json"), path)
    # The outermost model's name is left out, since it would begin the name of every network.
    yield from _in_model(model["config"], path)


def in_hdf5(path: pathlib.Path) -> Iterator[Network]:
    """Yields the recurrent layers in a `.h5` file, with a model or with weights alone."""
    untrusted.check_hdf5(path)
    with H5Model(path) as source:
        if not is_model(source.config):
            yield from of_arrays(named_arrays.networks_in(source.all_datasets()))
            return
        translation = Translation(source.version, makes_layers=False)
        model = translation.model(source.config)
        input_sizes: dict[str, int] = {}
        for name, dataset in source.all_datasets().items():
            if len(dataset.shape) == 2 and not name.endswith("recurrent_kernel:0"):
                for part in name.split("/"):
                    input_sizes.setdefault(part, dataset.shape[0])
        for found in _in_model(model["config"], path):
            layer = found.name.rpartition("/")[2]
            problem = translation.problems.get(layer)
            yield found._replace(
                input_size=found.input_size or input_sizes.get(layer),
                convert=f"no: {problem}" if problem else found.convert,
            )


def of_arrays(networks: dict[str, named_arrays.StoredNetwork]) -> Iterator[Network]:
    """Yields the networks of a file that holds weights alone."""
    for name, stored in networks.items():
        refusal = stored.not_converted
        yield Network(
            name,
            f"Bidirectional of {stored.kind}" if stored.num_dirs == 2 else stored.kind,
            stored.rnn_mode,
            len(stored.cells) // stored.num_dirs,
            network.direction(stored.num_dirs == 2),
            stored.input_size,
            stored.num_units,
            stored.dtype,
            f"no: {refusal}" if refusal else "yes",
        )


def _in_model(config: Any, path: pathlib.Path) -> Iterator[Network]:
    """Yields the recurrent layers in a model's config; to look at each takes milliseconds."""
    for number, found in enumerate(_in_config(config, "")):
        if number == _MOST_NETWORKS:
            raise ValueError(f"the model in {path} has more than {_MOST_NETWORKS} recurrent layers")
        yield found


def _in_config(config: Any, scope: str) -> Iterator[Network]:
    if isinstance(config, list):
        for item in config:
            yield from _in_config(item, scope)
    if not isinstance(config, dict):
        return
    kind, inner = config.get("class_name"), config.get("config")
    if isinstance(kind, str) and isinstance(inner, dict):
        name = f"{scope}{inner.get('name')}"
        shape = (config.get("build_config") or {}).get("input_shape") or [None]
        if kind in _OWN_MODES:
            yield Network(
                name,
                kind,
                _own_mode(kind, inner),
                inner.get("num_layers"),
                inner.get("direction"),
                shape[-1],
                inner.get("num_units"),
                _dtype_of(inner),
            )
            return
        if config.get("registered_name") == "cudnn_rnn_tf>Stack":
            yield from _in_stack(inner["layers"], shape[-1], scope)
            return
        wrapped = inner["layer"] if kind == "Bidirectional" else config
        if wrapped.get("class_name") in (*_STOCK_MODES, "SimpleRNN", *_OTHERS):
            yield _of_stock(config, wrapped, name, shape[-1])
            return
        if "layers" in inner:
            scope = f"{name}/"
    for value in config.values():
        yield from _in_config(value, scope)


def _in_stack(layers: list[Any], input_size: int | None, scope: str) -> Iterator[Network]:
    """Yields the layers of a stack, which are written without their input sizes."""
    for layer in layers:
        for found in _in_config({**layer, "build_config": {"input_shape": [input_size]}}, scope):
            yield found
            input_size = (found.num_units or 0) * (1 + (found.direction == "bidirectional"))


def _of_stock(
    config: dict[str, Any], wrapped: dict[str, Any], name: str, input_size: int | None
) -> Network:
    inner, kind = wrapped["config"], wrapped["class_name"]
    wraps = wrapped is not config
    mode = _STOCK_MODES.get(kind)
    if kind == "GRU" and not inner.get("reset_after", True):
        mode = constants.GRU_RESET_BEFORE
    if kind == "SimpleRNN":
        mode = f"rnn_{inner.get('activation')}"
    refusal = f"convert takes no layers of class {kind}" if kind in _OTHERS else _refusal(config)
    return Network(
        name,
        f"Bidirectional of {kind}" if wraps else kind,
        mode,
        1,
        network.direction(wraps),
        input_size,
        units if isinstance(units := inner.get("units"), int) else None,
        _dtype_of(inner),
        f"no: {refusal}" if refusal else "yes",
    )


def _refusal(config: dict[str, Any]) -> str:
    """Returns why `from_keras` does not take the layer of a config; "" if it does."""
    if odd := next(_odd_arguments(config), None):
        return f"its {odd} is neither a number nor a name nor an object such as an initializer"
    try:
        layer = keras.saving.deserialize_keras_object(without_builds(config), safe_mode=True)
    except Exception as error:  # The config is a stranger's, so any class may raise anything.
        return messages.reason(error)
    return keras_format.why_not(layer)


def _odd_arguments(config: dict[str, Any]) -> Iterator[str]:
    """Yields the names of a layer's arguments of which objects are not made, as they may be large.

    A layer without weights is made of the others.
    """
    for name, value in config["config"].items():
        if name in ("layer", "backward_layer") and isinstance(value, dict):
            is_known = value.get("class_name") in (*_STOCK_MODES, "SimpleRNN")
            if not is_known or not isinstance(value.get("config"), dict):
                yield name
            else:
                yield from _odd_arguments(value)
        elif not _is_plain(value):
            yield name


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        inner = value.get("config")
        parts = inner.values() if isinstance(inner, dict) else ()
        return untrusted.is_argument(value) and all(map(_is_plain, parts))
    return not isinstance(value, list) or all(map(_is_plain, value))


def _dtype_of(config: dict[str, Any]) -> str | None:
    dtype = config.get("dtype")
    return dtype["config"].get("name") if isinstance(dtype, dict) else dtype
