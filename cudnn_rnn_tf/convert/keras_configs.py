"""Translates the configs of layers and models that Keras 1 and 2 wrote to those of Keras 3.

The results are in the format of Keras 3's own files, so that Keras makes the layers of them. What
has no equivalent is collected by the name of its layer.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import keras
import tensorflow as tf

from cudnn_rnn_tf import messages
from cudnn_rnn_tf.convert import model_memory
from cudnn_rnn_tf.keras.bidirectional import Bidirectional
from cudnn_rnn_tf.keras.layers import GRU, LSTM

_RENAMED = {
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "UnifiedLSTM": "LSTM",
    "UnifiedGRU": "GRU",
    "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D",
    "Convolution3D": "Conv3D",
    "TimeDistributedDense": "Dense",
}
# These layers run on cuDNN alone in Keras 2, and everywhere here.
_FUSED: dict[str, type] = {"CuDNNLSTM": LSTM, "CuDNNGRU": GRU}
_RECURRENT = ("LSTM", "GRU", "SimpleRNN", "Bidirectional", *_FUSED)
# The arguments of wrappers that are layers.
_WRAPPED = ("layer", "backward_layer", "cell")
_WITH_VOCABULARY = (
    keras.layers.TextVectorization,
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
)
# Arguments that Keras 3 lacks, with the values at which they say nothing; None for all values.
_GONE: dict[str, tuple[Any, ...] | None] = {
    "implementation": None,
    "consume_less": None,
    "input_dim": None,
    "input_length": None,
    "input_dtype": None,
    "batch_input_shape": None,
    "fused": None,
    "time_major": (False, None),
    "ragged": (False, None),
    "renorm": (False, None),
    "groups": (1,),
    "kernel_initializer": None,
    "trainable": None,
    "init": None,
    "inner_init": None,
    "forget_bias_init": None,
    "weights": (None,),
    "activity_regularizer": (None,),
}
# Keras 1's names of arguments.
_OLD_NAMES = {
    "inner_activation": "recurrent_activation",
    "dropout_W": "dropout",
    "dropout_U": "recurrent_dropout",
    "W_regularizer": "kernel_regularizer",
    "U_regularizer": "recurrent_regularizer",
    "b_regularizer": "bias_regularizer",
    "W_constraint": "kernel_constraint",
    "b_constraint": "bias_constraint",
    "bias": "use_bias",
    "p": "rate",
    "nb_filter": "filters",
    "filter_length": "kernel_size",
    "subsample_length": "strides",
    "subsample": "strides",
    "border_mode": "padding",
    "pool_length": "pool_size",
    "stride": "strides",
}
_MERGE_MODES = {
    "concat": "Concatenate",
    "sum": "Add",
    "mul": "Multiply",
    "ave": "Average",
    "max": "Maximum",
}


class Translation:
    """The translation of one file's configs.

    `version` is that of Keras, as the file has it. With `makes_layers`, each layer is made, to see
    whether Keras can; then the translation is to take place where no memory is taken for weights.

    Attributes:
        problems: why a layer has no equivalent, by its name.
        has_initial_states: whether a recurrent layer is called with initial states.
    """

    def __init__(
        self,
        version: str,
        custom_objects: Mapping[str, Any] | None = None,
        makes_layers: bool = True,
    ):
        self._is_keras_1 = version == "1" or version.startswith(("0.", "1."))
        self._is_keras_3 = version.startswith("3")
        self._custom_objects = dict(custom_objects or {})
        self._makes_layers = makes_layers
        self.problems: dict[str, str] = {}
        self.has_initial_states = False

    def model(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of a sequential or functional model."""
        kind, inner = config["class_name"], config["config"]
        if kind == "Sequential":
            layers = inner if isinstance(inner, list) else inner["layers"]
            options = {} if isinstance(inner, list) else {"name": inner["name"]}
            name = options.get("name") or config.get("name") or "sequential"
            return _of_keras("Sequential", {"name": name, "layers": self._sequence(layers)})
        layers = [self._placed(layer) for layer in inner["layers"]]
        ends = {key: _ends(inner[key]) for key in ("input_layers", "output_layers")}
        functional = {"name": inner.get("name", "model"), "layers": layers, **ends}
        _count_calls_from_zero(functional)
        # In a model's outputs, and there alone, Keras 3 counts calls of a functional model from 1.
        inner_models = {layer["name"] for layer in layers if layer["class_name"] == "Model"}
        for place in _places(functional["output_layers"]):
            place[1] += place[0] in inner_models
        return _of_keras("Model", functional)

    def layer(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of a layer, of which Keras makes it or `problems` says why not."""
        kind, inner = config["class_name"], config["config"]
        if is_model(config):
            return self.model(config)
        registered = config.get("registered_name")
        if not self._is_keras_3 and registered and "module" in config:
            kind = registered  # In a .keras file, the class's name lacks its package.
        name = str(inner.get("name") or config.get("name") or kind)
        if keras.saving.get_registered_object(kind, self._custom_objects) is not None:
            if kind.startswith("cudnn_rnn_tf>"):
                inner = {
                    key: self.layer(value) if key in _WRAPPED and value else value
                    for key, value in inner.items()
                }
            short = kind.rpartition(">")[2]
            return {"module": None, "class_name": short, "config": inner, "registered_name": kind}
        try:
            translated = self._known(kind, dict(inner), name)
            if self._makes_layers:
                keras.saving.deserialize_keras_object(
                    model_memory.light(translated),
                    custom_objects=self._custom_objects,
                    safe_mode=True,
                )
        except Exception as error:  # The config is a stranger's, so any class may raise anything.
            # What is in a wrapper was reported already, under a name of its own.
            self.problems.setdefault(name, f"{kind}: {messages.reason(error)}")
            return config
        return translated

    def _sequence(self, layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the layers of a sequential model, of which the first says the shape of inputs."""
        first = layers[0]
        inner = first["config"]
        shape = inner.get("batch_input_shape") if isinstance(inner, dict) else None
        translated = [self.layer(layer) for layer in layers]
        if shape is None or first["class_name"] == "InputLayer":
            return translated
        dtype = inner.get("input_dtype") or _dtype(inner.get("dtype")) or "float32"
        dtype = dtype if dtype in tf.dtypes.__dict__ else "float32"
        options = {
            "batch_shape": shape,
            "dtype": dtype,
            "name": valid_name(f"{inner['name']}_input"),
        }
        return [_of_keras("InputLayer", options), *translated]

    def _placed(self, layer: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of a layer of a functional model, with its calls."""
        is_recurrent = layer["class_name"] in _RECURRENT
        nodes = [_node(node, is_recurrent) for node in layer["inbound_nodes"]]
        has_states = any("initial_state" in node["kwargs"] for node in nodes)
        self.has_initial_states |= is_recurrent and has_states
        name = valid_name(layer["name"])
        return {**self.layer(layer), "name": name, "inbound_nodes": nodes}

    def _known(self, kind: str, inner: dict[str, Any], name: str) -> dict[str, Any]:
        """Returns the config of a layer of Keras's own, which `inner` configures."""
        if kind in ("Lambda", "TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"):
            return self._function(kind, inner)
        if kind == "Merge":
            kind, inner = self._merge(inner)
        kind = _RENAMED.get(kind, kind)
        for key in _WRAPPED:
            if isinstance(inner.get(key), dict):
                inner[key] = self.layer(inner[key])
        forward = inner.get("layer") or {}
        if kind == "Bidirectional" and forward["config"].get("go_backwards"):
            # Keras 3 has both directions read backwards, if it makes the second one.
            backward = {**forward, "config": {**forward["config"], "go_backwards": False}}
            inner["backward_layer"] = inner.get("backward_layer") or backward
        if isinstance(inner.get("cells"), list):
            inner["cells"] = [self.layer(cell) for cell in inner["cells"]]
        if kind == "LeakyReLU" and "alpha" in inner:
            inner["negative_slope"] = inner.pop("alpha")
        if kind == "InputLayer":
            inner["batch_shape"] = inner.get("batch_input_shape") or inner.get("batch_shape")
        owner = _FUSED.get(kind) or getattr(keras.layers, kind, None)
        if not (isinstance(owner, type) and issubclass(owner, keras.layers.Layer)):
            raise ValueError("Keras 3 has no such layer; pass the class in custom_objects")
        wrapped = inner.get("layer") or {}
        if kind == "Bidirectional" and (wrapped.get("registered_name") or "").startswith(
            "cudnn_rnn_tf>"
        ):
            owner = Bidirectional
        if self._is_keras_1:
            inner = self._of_keras_1(kind, inner)
        if kind in ("GRU", "GRUCell"):
            inner.setdefault("reset_after", False)
        for key, value in inner.items():
            if key.endswith("activation") and not self._is_keras_3:
                inner[key] = _activation(value)
            elif key.endswith("_initializer"):
                inner[key] = _initializer(value)
        if isinstance(inner.get("axis"), list) and len(inner["axis"]) == 1:
            (inner["axis"],) = inner["axis"]
        inner["dtype"] = _dtype(inner.get("dtype")) or "float32"
        if kind not in ("InputLayer",) and inner["dtype"].startswith(("int", "uint", "bool")):
            # A first layer's type was that of its inputs.
            inner["dtype"] = "float32"
        return _registered(owner, self._arguments(owner, inner, name))

    def _arguments(self, owner: type, inner: dict[str, Any], name: str) -> dict[str, Any]:
        """Returns the arguments of a layer's class, without those that Keras 3 lacks."""
        accepted = _parameters(owner)
        kept: dict[str, Any] = {}
        for key, value in inner.items():
            if key in accepted:
                kept[key] = value
            elif key not in _GONE:
                if value not in (None, False):
                    raise ValueError(f"Keras 3 has no {key}={value!r}")
            elif (silent := _GONE[key]) is not None and value not in silent:
                raise ValueError(f"Keras 3 has no {key}={value!r}")
        return {**kept, "name": valid_name(name)}

    def _function(self, kind: str, inner: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of a layer that calls a function, if the caller has passed it."""
        function = inner.get("function")
        if kind == "Lambda" and isinstance(function, str) and function in self._custom_objects:
            config = {"class_name": "function", "config": function, "registered_name": function}
            options: dict[str, Any] = {
                key: inner[key] for key in ("name", "arguments") if key in inner
            }
            return _of_keras("Lambda", {**options, "function": {**config, "module": "builtins"}})
        if kind == "Lambda" and not isinstance(function, str):
            raise ValueError(
                "it holds the bytecode of a Python function, which is never executed; save the "
                "model with a layer of a class of your own in its place"
            )
        raise ValueError(
            f"it calls the function {function!r}, which the file does not hold; save the model "
            "with a layer of a class of your own in its place"
        )

    def _merge(self, inner: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        mode = inner.get("mode")
        if mode not in _MERGE_MODES or inner.get("layers"):
            raise ValueError(f"Keras 3 has no Merge of mode={mode!r}")
        options = {"axis": inner.get("concat_axis", -1)} if mode == "concat" else {}
        return _MERGE_MODES[mode], {"name": inner.get("name"), **options}

    def _of_keras_1(self, kind: str, inner: dict[str, Any]) -> dict[str, Any]:
        inner = {_OLD_NAMES.get(key, key): value for key, value in inner.items()}
        if kind in (*_RECURRENT, "Dense") and "output_dim" in inner:
            inner["units"] = inner.pop("output_dim")
        if kind == "Embedding":
            # In Keras 1, it is the name that differs, and the two sizes have their names of today.
            if inner.pop("dropout", 0):
                raise ValueError("Keras 3 has no dropout in an Embedding")
            return {k: v for k, v in inner.items() if k != "input_length"}
        inner.pop("input_dim", None)
        return inner


def valid_name(name: str) -> str:
    """Returns the name of a layer, in which Keras 3 wants no slash."""
    return name.replace("/", "_")


def is_model(config: Any) -> TypeGuard[dict[str, Any]]:
    """Returns whether a config is that of a sequential or functional model."""
    if not isinstance(config, dict):
        return False
    inner = config.get("config")
    if config.get("class_name") == "Sequential":
        return isinstance(inner, list) or (isinstance(inner, dict) and "layers" in inner)
    return isinstance(inner, dict) and "output_layers" in inner and "layers" in inner


def recurrent_in(config: Any, scope: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the configs of the recurrent layers in a model's translated config, by name."""
    for layer in config["config"]["layers"]:
        name = f"{scope}{layer['config'].get('name')}"
        if is_model(layer):
            yield from recurrent_in(layer, f"{name}/")
        elif layer["class_name"] in _RECURRENT:
            yield name, layer


def _of_keras(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    module = "keras" if kind in ("Sequential", "Model") else "keras.layers"
    return {"module": module, "class_name": kind, "config": config, "registered_name": None}


def _registered(owner: type, config: dict[str, Any]) -> dict[str, Any]:
    name = keras.saving.get_registered_name(owner)
    if ">" not in name:
        return _of_keras(owner.__name__, config)
    return {
        "module": owner.__module__,
        "class_name": owner.__name__,
        "config": config,
        "registered_name": name,
    }


def _parameters(owner: type) -> set[str]:
    """Returns the arguments of a class's constructor, and of those that it passes others to."""
    found: set[str] = set()
    for base in owner.__mro__:
        if base is keras.layers.Layer:
            found |= {"name", "dtype", "trainable"}
            break
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters
        found |= parameters.keys()
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            break
    if issubclass(owner, _WITH_VOCABULARY):
        # These are not in the signatures.
        found |= {"vocabulary_size", "has_input_vocabulary"}
    return found - {"self", "args", "kwargs"}


def _activation(value: Any) -> Any:
    if value != "hard_sigmoid":
        return value
    return {
        "module": "builtins",
        "class_name": "function",
        "config": "keras_2_hard_sigmoid",
        "registered_name": "cudnn_rnn_tf>keras_2_hard_sigmoid",
    }


def _initializer(value: Any) -> Any:
    """Returns an initializer's config, in which some names have changed."""
    if not isinstance(value, dict):
        return value
    inner = dict(value.get("config") or {})
    if inner.get("distribution") == "normal":
        inner["distribution"] = "truncated_normal"
    # Keras 2 of TensorFlow has a type in it, which Keras 3 takes from the layer.
    inner.pop("dtype", None)
    return _of_keras(str(value.get("class_name")), inner) | {"module": "keras.initializers"}


def _dtype(value: Any) -> str | None:
    """Returns the name of a type or of a dtype policy; None if the config leaves it open."""
    if isinstance(value, dict):
        value = (value.get("config") or {}).get("name")
    return value if isinstance(value, str) and value not in ("_infer", "infer") else None


def _tensor(place: Any) -> dict[str, Any]:
    # Keras looks the tensor up by its history alone.
    history = [valid_name(place[0]), *place[1:3]]
    inner = {"shape": [None], "dtype": "float32", "keras_history": history}
    return {"class_name": "__keras_tensor__", "config": inner}


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and all(type(index) is int for index in value[1:3])
    )


def _with_tensors(value: Any) -> Any:
    if _is_place(value):
        return _tensor(value)
    if isinstance(value, list):
        return [_with_tensors(each) for each in value]
    return value


def _node(node: Any, is_recurrent: bool) -> dict[str, Any]:
    """Returns the config of a layer's call on the outputs of others."""
    places = [node] if _is_place(node) else list(node)
    tensors: list[Any] = [_tensor(place) for place in places]
    kwargs = {key: _with_tensors(value) for key, value in _kwargs_of(places).items()}
    if is_recurrent and len(tensors) > 1:
        # Keras 2 has initial states among a recurrent layer's inputs, and names no constants.
        if kwargs.get("constants") is None:
            kwargs.pop("constants", None)
        return {"args": tensors[:1], "kwargs": {**kwargs, "initial_state": tensors[1:]}}
    return {"args": tensors if len(tensors) == 1 else [tensors], "kwargs": kwargs}


def _kwargs_of(places: list[Any]) -> dict[str, Any]:
    return dict(places[0][3] or {}) if places and len(places[0]) == 4 else {}


def _ends(ends: Any) -> Any:
    """Returns the inputs or outputs of a model as Keras 3 has them."""
    if _is_place(ends):
        return [valid_name(ends[0]), *ends[1:3]]
    if isinstance(ends, dict):
        return {key: _ends(value) for key, value in ends.items()}
    return _ends(ends[0]) if len(ends) == 1 else [_ends(each) for each in ends]


def _places(value: Any) -> Iterator[list[Any]]:
    """Yields the places of outputs in a model's config: a layer's name and two indices."""
    if _is_place(value):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _places(each)


def _count_calls_from_zero(functional: dict[str, Any]) -> None:
    """Counts the calls of each layer from 0: Keras 2 counts those of a model from 1."""
    calls = [layer["inbound_nodes"] for layer in functional["layers"]]
    places = list(_places([calls, functional["input_layers"], functional["output_layers"]]))
    first: dict[str, int] = {}
    for name, call, _ in places:
        first[name] = min(call, first.get(name, call))
    for place in places:
        place[1] -= first[place[0]]
