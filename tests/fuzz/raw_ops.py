"""Calls the ops eagerly, and in functions that know shapes when traced or only when run.

Others of these functions are compiled by XLA.
"""

import random
from typing import Any

import draws
import networks
import numpy as np
import tensorflow as tf

from cudnn_rnn_tf import native
from cudnn_rnn_tf.ops import op_library
from cudnn_rnn_tf.ops.op_library import raw_ops

EXPECTED = (
    tf.errors.InvalidArgumentError,
    tf.errors.ResourceExhaustedError,
    # This is raised if an op has no kernel for the type.
    tf.errors.NotFoundError,
    # A GPU has no kernels for some networks with some algorithms.
    tf.errors.UnimplementedError,
    ValueError,
    TypeError,
)
OPS = (
    *("forward", "backward", "params_size"),
    *("canonical_to_params", "params_to_canonical", "keras_to_params", "params_to_keras"),
    *("read_mask", "pack_steps", "unpack_steps"),
)
_SPEC = ("rnn_mode", "num_layers", "num_units", "num_proj", "input_mode", "direction", "bias_mode")
_OTHER_DTYPES = ("int32", "int64", "uint8", "bool", "complex64")


def draw(rng: random.Random) -> dict[str, Any]:
    network, op = networks.draw(rng), rng.choice(OPS)
    case = {
        "op": op,
        "network": network,
        "mode": rng.choice(("eager", "traced", "run", "compiled")),
    }
    tensors, attributes = _good(case)
    # From a mask of no elements, there may come a length for each of its sequences.
    largest = 1 << 20 if "mask" in tensors else 1 << 62
    changes = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        if tensors and rng.random() < 0.5:
            name = rng.choice(sorted(tensors))
            is_of_steps = tensors[name]["fill"][0] in ("places", "steps")
            what = rng.choice(("shape", "shape", "dtype", "fill", *("fill",) * 4 * is_of_steps))
            numbers = ["whole", rng.randrange(1000)] if is_of_steps else draws.numbers(rng)
            value = {
                "shape": lambda name=name: [
                    min(dim, largest) for dim in draws.shape(rng, tensors[name]["shape"])
                ],
                "dtype": lambda: rng.choice(draws.DTYPES + _OTHER_DTYPES),
                "fill": lambda numbers=numbers: numbers,
            }[what]()
        else:
            name, what = rng.choice(sorted(attributes)), "attribute"
            good = attributes[name]
            if isinstance(good, bool):
                value = not good
            elif isinstance(good, str):
                value = rng.choice(draws.STRINGS[name])
            elif isinstance(good, float):
                value = draws.floating(rng)
            else:
                is_count = name in ("num_weights", "num_biases")
                value = (draws.count if is_count else draws.integer)(rng)
        changes.append([name, what, value])
    return {**case, "changes": changes}


def run(case: dict[str, Any]) -> None:
    tensors, attributes = _good(case)
    for name, what, value in case["changes"]:
        if what == "attribute":
            attributes[name] = value
        elif name in tensors:
            tensors[name][what] = value
    arrays = {
        name: networks.fill(spec["shape"], spec["dtype"], *spec["fill"])
        for name, spec in tensors.items()
    }
    op = getattr(raw_ops, f"cudnn_rnn_tf_{case['op']}")
    lists = {
        "canonical_to_params": ("weights", "biases"),
        "keras_to_params": ("weights", "biases"),
        "forward": ("seed", "resets"),
        "backward": ("seed", "resets", "cell_sequences_backprop"),
    }.get(case["op"], ())

    def call(*values: tf.Tensor) -> Any:
        arguments = dict(zip(arrays, values, strict=True))
        for prefix in lists:
            names = [name for name in arguments if name.startswith(prefix)]
            arguments[prefix] = [arguments.pop(name) for name in names]
        return op(**arguments, **attributes)

    if case["mode"] == "eager":
        results = call(*map(tf.constant, arrays.values()))
    else:
        signature = [
            tf.TensorSpec(None if case["mode"] == "run" else array.shape, array.dtype)
            for array in arrays.values()
        ]
        compiles = case["mode"] == "compiled" and not op_library.no_xla
        function = tf.function(
            call, input_signature=signature, autograph=False, jit_compile=compiles or None
        )
        results = function(*map(tf.constant, arrays.values()))
    results = [result.numpy() for result in tf.nest.flatten(results)]
    if case["op"] in ("read_mask", "pack_steps", "unpack_steps"):
        _check_steps(case["op"], arrays, attributes, results)


def _flushed(numbers: Any) -> Any:
    """Returns the numbers with zeros for denormal ones, as arithmetic in TensorFlow's threads."""
    tiny = np.finfo("float64" if numbers.dtype == "float64" else "float32").tiny
    return np.where(np.abs(numbers.astype("float64")) < tiny, 0.0, numbers.astype("float64"))


def _check_steps(op: str, arrays: dict[str, Any], attributes: Any, results: list[Any]) -> None:
    """Checks the results of an op for masks, which are known even if its places are garbage."""
    values = arrays["values"]
    if attributes["time_major"]:
        values = values.swapaxes(0, 1)
    batch, time, _ = values.shape
    order = slice(None, None, -1 if attributes["go_backwards"] else 1)
    if op == "read_mask":
        mask = arrays["mask"].reshape(arrays["mask"].shape[:2])
        mask = mask.swapaxes(0, 1) if attributes["time_major"] else mask
        mask = np.broadcast_to(mask, (batch, time))[:, order]
        for received, expected in zip(
            results, (mask.sum(axis=1), *networks.read_mask(mask)), strict=True
        ):
            assert np.array_equal(received, expected), "ReadMask finds other steps"
        return
    (moved,) = results
    moved = moved.swapaxes(0, 1) if attributes["time_major"] else moved
    packs, repeats = op == "pack_steps", attributes["repeat_masked"]
    if packs:
        values = values[:, order]
    else:
        moved = moved[:, order]
    places, steps = arrays["places"], arrays["steps"]
    for b in range(batch):
        for at in range(time):
            source = (steps if packs else places)[b, at]
            if source < 0 and repeats and not packs:
                source = -2 - source
            last = source
            if packs and repeats:
                is_last = at + 1 == time or steps[b, at + 1] < 0
                last = time - 1 if is_last else min(steps[b, at + 1], time) - 1
            if not 0 <= source < time:
                # Packing may leave here what was here, unless it adds.
                is_right = (packs and not repeats) or not np.any(moved[b, at])
            elif last == source:
                flush = _flushed if packs and repeats else np.asarray  # Packing then adds.
                is_right = np.array_equal(
                    flush(moved[b, at]), flush(values[b, source]), equal_nan=True
                )
            else:
                total = values[b, source : last + 1].astype("float64").sum(axis=0)
                with np.errstate(all="ignore"):
                    is_right = np.allclose(moved[b, at].astype("float64"), total, 0.1, 0.1, True)
            assert is_right, "a step is moved to another place"


def _good(case: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Returns a good call's tensors, each as a shape, a dtype and its content, and attributes."""
    network = case["network"]
    attributes = {name: network[name] for name in _SPEC}
    layout = native.ParamLayout(**attributes, input_size=network["input_size"])
    if case["op"] == "params_size":
        return {}, {**attributes, "input_size": network["input_size"]}

    def tensor(*shape: int, dtype: str = network["dtype"], fill: str = "normal") -> dict[str, Any]:
        return {"shape": list(shape), "dtype": dtype, "fill": [fill, 1]}

    time, batch, time_major = network["max_time"], network["batch_size"], network["time_major"]
    lead = (time, batch) if time_major else (batch, time)
    if "mask" in case["op"] or case["op"].endswith("pack_steps"):
        attributes = {"time_major": time_major}
        attributes["go_backwards"] = network["direction"] == "bidirectional"
        values = tensor(*lead, network["input_size"])
        if case["op"] == "read_mask":
            mask = tensor(*lead, dtype="bool", fill="coins")
            return {"mask": mask, "values": values}, {**attributes, "owner": "layer 'a'"}
        found = {
            name: tensor(batch, time, dtype="int64", fill=name) for name in ("places", "steps")
        }
        return {"values": values, **found}, {**attributes, "repeat_masked": network["dropout"] > 0}
    if case["op"].endswith(("_to_params", "_to_canonical", "_to_keras")):
        attributes["input_size"] = network["input_size"]
        weights, biases = layout.weight_shapes, layout.bias_shapes
        if "keras" in case["op"]:
            weights, biases = _keras_shapes(layout, network["bias_mode"])
        if case["op"].startswith("params"):
            counts = {"num_weights": len(weights), "num_biases": len(biases)}
            return {"params": tensor(layout.size)}, attributes | counts
        if case["op"] == "keras_to_params":
            attributes["may_keep_params"] = True
        tensors = {
            f"{kind}_{index:03}": tensor(*shape)
            for kind, shapes in (("weights", weights), ("biases", biases))
            for index, shape in enumerate(shapes)
        }
        return tensors, attributes
    count = network["num_layers"] * layout.num_dirs
    states = (count, batch) if time_major else (batch, count)
    is_lstm = network["rnn_mode"].startswith("lstm")
    c = tensor(*states, network["num_units"]) if is_lstm else tensor(0)
    h = tensor(*states, layout.output_size)
    outputs = tensor(*lead, layout.num_dirs * layout.output_size)
    tensors = {
        "input": tensor(*lead, network["input_size"]),
        "input_h": h,
        "input_c": c,
        "params": tensor(layout.size),
        "sequence_lengths": tensor(batch, dtype="int32", fill="zeros"),
        "seed": tensor(2, dtype="int64", fill="zeros"),
    }
    has_cells = is_lstm and batch % 2 > 0
    for name in ("dropout", "cell_clip", "time_major"):
        attributes[name] = network[name]
    # Older cases of the corpus do not say these.
    for name in ("recurrent_dropout", "zoneout", "cell_zoneout"):
        attributes[name] = network.get(name, 0.0)
    attributes |= {"activation": "", "recurrent_activation": ""}
    if network.get("has_resets"):
        tensors["resets"] = tensor(*lead, dtype="bool", fill="coins")
    attributes["has_sequence_lengths"] = True
    if case["op"] == "forward":
        chosen = {"is_training": True, "algorithm": "auto", "may_keep_params": False}
        chosen["Tcells"] = [network["dtype"]] * has_cells
        return tensors, {**attributes, **chosen}
    for suffix in ("", "_backprop"):
        tensors |= {f"output{suffix}": {**outputs}, f"output_h{suffix}": {**h}}
        tensors[f"output_c{suffix}"] = {**c}
    if has_cells:
        tensors["cell_sequences_backprop"] = tensor(*lead, layout.num_dirs * network["num_units"])
    tensors["reserve_space"] = tensor(_reserve_space(case), dtype="uint8", fill="zeros")
    return tensors, attributes


def _keras_shapes(layout: native.ParamLayout, bias_mode: str) -> tuple[list[Any], list[Any]]:
    """Returns the shapes of the weights and of the biases that Keras's layers would hold."""
    shapes = [shape for *_, shape in layout.pseudo_layer_tensors]
    weights = [shape[::-1] for shape in shapes if len(shape) == 2]
    biases = [shape for shape in shapes if len(shape) == 1]
    if bias_mode == "double":
        biases = [(2, *shape) for shape in biases[::2]]
    return weights, biases


def _reserve_space(case: dict[str, Any]) -> int:
    """Returns the size in bytes of the reserve space that the good call's forward pass leaves.

    It is 0 if the device refuses the network, as GPUs refuse some that the CPU runs.
    """
    tensors, attributes = _good({**case, "op": "forward"})
    arrays = {
        name: networks.fill(spec["shape"], spec["dtype"], *spec["fill"])
        for name, spec in tensors.items()
    }
    for name in ("seed", "resets"):
        arrays[name] = [arrays[name]] if name in arrays else []
    try:
        return raw_ops.cudnn_rnn_tf_forward(**arrays, **attributes)[3].shape[0]
    except tf.errors.UnimplementedError:
        return 0
