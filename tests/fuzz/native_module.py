"""Calls the compiled Python module: the layout on arrays, the predictor, and the functions."""

import random
import sys
from typing import Any

import draws
import networks
import numpy as np

# The module works without TensorFlow, whose import would take long.
sys.modules["tensorflow"] = None

from cudnn_rnn_tf.native import ParamLayout, _native  # noqa: E402

EXPECTED = (ValueError, TypeError, MemoryError)
_RATES = ("dropout", "cell_clip", "zoneout", "cell_zoneout")
_SPEC = (
    *("rnn_mode", "num_layers", "num_units", "input_size", "input_mode", "direction", "bias_mode"),
    *("num_proj", *_RATES),
)
_DTYPES = (*draws.DTYPES, "int8", "int64", "uint64", "bool", "complex64", ">f4", ">f8", "O", "U3")
_FUNCTIONS = ("sigmoid", "tanh", "from_float16", "to_float16", "from_bfloat16", "to_bfloat16")
# An argument may be replaced by one of these objects that are no arrays.
_OBJECTS = {
    "none": None,
    "text": "text",
    "number": 3,
    "huge": 10**30,
    "list": [[1.0], [2.0, 3.0]],
    "nested": [[[[]]]],
    "dict": {},
    "object": object(),
    "array_of_none": np.array([None] * 3),
}
_VIEWS = ("strided", "reversed", "fortran", "unaligned", "readonly", "broadcast", "matrix")


def draw(rng: random.Random) -> dict[str, Any]:
    network = networks.draw(rng)
    what = rng.choice(("layout", "to_params", "to_canonical", "predictor", "predictor", "function"))
    case = {"what": what, "network": network, "num_threads": rng.choice((1, 2, 3))}
    case["go_backwards"], case["function"] = rng.random() < 0.3, rng.choice(_FUNCTIONS)
    changes = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        if what == "layout" or rng.random() < 0.1:
            name = rng.choice(_SPEC)
            value = (
                rng.choice(draws.STRINGS[name])
                if name in draws.STRINGS
                else draws.floating(rng)
                if name in _RATES or rng.random() < 0.1
                else draws.integer(rng)
            )
            changes.append(["", name, value])
            continue
        arrays = sorted(_arrays(case, _layout(case)))
        name, kind = rng.choice(arrays), rng.choice(("shape", "dtype", "fill", "view", "object"))
        value = {
            "shape": lambda name=name: draws.shape(
                rng, _arrays(case, _layout(case))[name]["shape"]
            ),
            "dtype": lambda: rng.choice(_DTYPES),
            "fill": lambda: draws.numbers(rng),
            "view": lambda: rng.choice(_VIEWS),
            "object": lambda: rng.choice(sorted(_OBJECTS)),
        }[kind]()
        changes.append([name, kind, value])
    return {**case, "changes": changes}


def run(case: dict[str, Any]) -> None:
    network = case["network"]
    settings = {name: value for name, key, value in case["changes"] if not name for name in (key,)}
    layout = _layout(case, **settings)
    _ = layout.weight_names, layout.bias_names, layout.weight_offsets, layout.bias_offsets
    _ = layout.pseudo_layer_tensors
    if layout.size > 10**7 or len(layout.weight_shapes) > 1000:
        return  # Filling so many arrays would take most of the time.
    specs = _arrays(case, layout)
    for name, kind, value in case["changes"]:
        if name in specs:
            specs[name][kind] = value
    arrays = {name: _make(spec) for name, spec in specs.items()}
    if case["what"] == "to_params":
        kinds = ("weights", "biases")
        layout.canonical_to_params(
            *([v for k, v in arrays.items() if k[:-4] == kind] for kind in kinds)
        )
    elif case["what"] == "to_canonical":
        layout.params_to_canonical(arrays["params"])
    elif case["what"] == "function":
        getattr(_native, case["function"])(arrays["x"])
    elif case["what"] == "predictor":
        predictor = _native.PredictorBinding(
            layout,
            arrays["params"],
            network["time_major"],
            case["go_backwards"],
            case["num_threads"],
        )
        states = [arrays[name] for name in ("h", "c") if name in arrays]
        for _ in range(2):
            outputs, finals = predictor(
                arrays["inputs"], states, arrays["lengths"], arrays.get("resets")
            )
            for array in (outputs, *finals):
                array.tobytes()


def _layout(case: dict[str, Any], **settings: Any) -> ParamLayout:
    # Older cases of the corpus do not say all rates.
    spec = {name: case["network"].get(name, 0.0) for name in _SPEC}
    return ParamLayout(**spec | settings)


def _arrays(case: dict[str, Any], layout: ParamLayout) -> dict[str, dict[str, Any]]:
    """Returns the arrays of a good call, each as a shape, a dtype and what fills it."""
    network, what = case["network"], case["what"]

    def array(*shape: int, dtype: str = network["dtype"], fill: str = "normal") -> dict[str, Any]:
        return {"shape": list(shape), "dtype": dtype, "fill": [fill, 1]}

    if what in ("layout", "function"):
        return {"x": array(3, 4, dtype="uint16" if case["function"][:4] == "from" else "float32")}
    if what == "to_params":
        return {
            f"{kind}_{index:03}": array(*shape)
            for kind, shapes in (("weights", layout.weight_shapes), ("biases", layout.bias_shapes))
            for index, shape in enumerate(shapes)
        }
    if what == "to_canonical":
        return {"params": array(layout.size)}
    time, batch, time_major = network["max_time"], network["batch_size"], network["time_major"]
    lead = (time, batch) if time_major else (batch, time)
    count = layout.num_dirs * network["num_layers"]
    states = (count, batch) if time_major else (batch, count)
    arrays = {
        "params": array(layout.size),
        "inputs": array(*lead, network["input_size"]),
        "lengths": array(batch, dtype="int64", fill="zeros"),
        "h": array(*states, layout.output_size),
    }
    if network.get("has_resets"):
        arrays["resets"] = array(*lead, dtype="bool", fill="coins")
    if network["rnn_mode"].startswith("lstm"):
        arrays["c"] = array(*states, network["num_units"])
    return arrays


def _make(spec: dict[str, Any]) -> Any:
    if "object" in spec:
        return _OBJECTS[spec["object"]]
    array = networks.fill(spec["shape"], spec["dtype"], *spec["fill"])
    view = spec.get("view")
    if view == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if view == "reversed" and array.ndim:
        return np.flip(np.flip(array).copy())
    if view == "fortran":
        return np.asfortranarray(array)
    if view == "unaligned":
        raw = np.zeros(array.nbytes + 1, np.uint8)
        if array.dtype.hasobject:
            return array
        raw[1:] = np.frombuffer(array.tobytes(), np.uint8)
        return raw[1:].view(array.dtype).reshape(array.shape)
    if view == "readonly":
        array.flags.writeable = False
    if view == "broadcast":
        return np.broadcast_to(array[..., :1], array.shape) if array.size and array.ndim else array
    if view == "matrix" and array.ndim == 2:
        return array.view(np.matrix)
    return array
