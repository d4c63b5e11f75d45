"""Converts from and to `torch.nn.LSTM`, `GRU` and `RNN`.

PyTorch holds per layer and direction `weight_ih_l0` [G * H, fan_in], `weight_hh_l0` [G * H, P],
`bias_ih_l0` and `bias_hh_l0` [G * H], and `weight_hr_l0` [P, H] with projection. The names of the
backward direction end in `_reverse`. The gates are stacked in cuDNN's order, i f g o and r z n.
"""

import math
import pathlib
import re
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from typing_extensions import Unpack

from cudnn_rnn_tf import messages
from cudnn_rnn_tf.arguments import checked
from cudnn_rnn_tf.config import DTYPES, RnnMode
from cudnn_rnn_tf.convert import file_kinds, network, untrusted
from cudnn_rnn_tf.keywords import CudnnOptions
from cudnn_rnn_tf.layers.rnn_layer import CudnnRNN
from cudnn_rnn_tf.pseudo_layers import both_biases

_FIELDS = {
    "weight_ih": "kernel",
    "weight_hh": "recurrent_kernel",
    "bias_ih": "bias",
    "bias_hh": "recurrent_bias",
    "weight_hr": "projection",
}
_SUFFIXES = ("", "_reverse")
# State dicts may be nested this deeply, which is deeper than modules are.
_MAX_DEPTH = 64
# A dictionary may be in others several times, and these again, so that a small file has many.
_MAX_ENTRIES = 1_000_000
_KEY = re.compile(rf"(?:(.*)\.)?({'|'.join(_FIELDS)})_l(\d+)(_reverse)?")
# The parameters of cells, such as torch.nn.LSTMCell, have no layer's number.
_CELL_KEY = re.compile(rf"(?:.*\.)?(?:{'|'.join(_FIELDS)})")
# A weight with weight_norm is stored as its rows' lengths g and directions v, under names of either
# of its two implementations.
_NORMED_KEYS = (
    (re.compile(r"(.*)_([gv])"), "gv"),
    (re.compile(r"((?:.*\.)?)parametrizations\.([^.]+)\.original([01])"), "01"),
)


@checked
def from_torch(
    source: Any,
    *,
    name: str | None = None,
    rnn_mode: RnnMode | None = None,
    **options: Unpack[CudnnOptions],
) -> CudnnRNN:
    """Returns a layer that computes the same as a PyTorch network.

    Args:
        source: a `torch.nn.LSTM`, `GRU` or `RNN`; a module that contains one; a state dict with
            the parameters of one, or of a cell such as `torch.nn.LSTMCell`, as tensors or arrays,
            nested or not, with or without `weight_norm`; or the path of a file that holds such a
            state dict, as PyTorch or safetensors writes it. Of PyTorch's nothing but tensors and
            plain containers is loaded, so that it cannot run code.
        name: the network's name within the source, such as "encoder.lstm", where it has several.
        rnn_mode: "rnn_tanh" or "rnn_relu", which the parameters of a `torch.nn.RNN` leave open.
            Not needed for a module.
        **options: to the layer's constructor, such as `return_state=True`. From a module come
            `dropout` and `time_major` (`not batch_first`), unless given here.

    Returns:
        A built layer of the parameters' dtype with the same parameters to the bit. `bias=False`
        becomes `bias_mode="none"`.

    Raises:
        TypeError: if the source is none of those.
        ValueError: if it has no such network, or several and no name says which, or its parameters
            do not fit together.
        ImportError: if a file's format needs a package that is not installed.
    """
    if isinstance(source, (str, pathlib.Path)):
        source = read_state_dict(pathlib.Path(source))
    if not isinstance(source, Mapping):
        module = _module(source, name)
        source, name = module.state_dict(), None
        its_mode = module.mode.lower()  # PyTorch's are "LSTM", "GRU", "RNN_TANH" and "RNN_RELU".
        if rnn_mode not in (None, its_mode):
            raise ValueError(
                f"expected rnn_mode to be {its_mode!r}, that of the module, but received "
                f"{rnn_mode!r}"
            )
        rnn_mode = its_mode
        options.setdefault("dropout", module.dropout)
        options.setdefault("time_major", not module.batch_first)
    name, parameters = network.pick(
        networks_in(source), name, "the state dict", "recurrent networks"
    )
    mode = _checked_mode(parameters, rnn_mode)
    num_dirs = _num_dirs(parameters)
    return network.make_layer(
        mode, list(_pseudo_layers(parameters, mode, num_dirs)), num_dirs, options
    )


@checked
def to_torch(layer: CudnnRNN) -> Any:
    """Returns a PyTorch module that computes the same as a layer.

    Args:
        layer: a built layer.

    Returns:
        A `torch.nn.LSTM`, `GRU` or `RNN` on the CPU with the layer's parameters to the bit; in the
        single-bias modes the other side's biases are zeros. `batch_first` is `not time_major`.
        Like all of PyTorch's it returns all outputs and the final states.

    Raises:
        TypeError: if `layer` is none of this package's layers.
        ValueError: if it is not built, or PyTorch has no equivalent: skip input, cell clipping,
            `num_proj` of `num_units`, `go_backwards`, a GRU's `reset_after=False`, peepholes, other
            activations, layer normalization, zoneout, recurrent weight dropout.
        ImportError: if PyTorch is not installed.
    """
    torch = _load_torch()
    parameters = state_dict(layer)
    options = {
        "input_size": layer.input_size,
        "hidden_size": layer.num_units,
        "num_layers": layer.num_layers,
        "bias": layer.bias_mode != "none",
        "batch_first": not layer.time_major,
        # PyTorch warns of a dropout rate that has no effect.
        "dropout": layer.dropout if layer.num_layers > 1 else 0.0,
        "bidirectional": layer.num_dirs == 2,
        "dtype": getattr(torch, layer.variable_dtype),
    }
    module_class = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(layer.rnn_mode, torch.nn.RNN)
    if module_class is torch.nn.LSTM:
        options["proj_size"] = layer.num_proj or 0
    elif module_class is torch.nn.RNN:
        options["nonlinearity"] = layer.rnn_mode.removeprefix("rnn_")
    # On the device "meta", no initial values are drawn: they would be overwritten, and would
    # advance the user's random generator.
    module = module_class(**options, device="meta").to_empty(device="cpu")
    module.load_state_dict({key: _to_tensor(torch, value) for key, value in parameters.items()})
    return module


def state_dict(layer: CudnnRNN) -> dict[str, np.ndarray]:
    """Returns `to_torch`'s state dict as arrays, without PyTorch; raises as `to_torch` does."""
    target = "torch.nn"
    network.check_layer(
        *(layer, target),
        cell_clip=None,
        use_peepholes=False,
        use_layer_norm=False,
        recurrent_weight_dropout=0.0,
        go_backwards=False,
        reset_after=True,
        **network.OWN_ACTIVATIONS,
    )
    if getattr(layer, "num_proj", None) == layer.num_units:
        raise ValueError(
            f"num_proj={layer.num_units} of layer {layer.name!r} has no equivalent in {target}: "
            "expected it to be below num_units"
        )
    parameters: dict[str, np.ndarray] = {}
    for index, pseudo_layer in enumerate(network.pseudo_layers(layer)):
        biases = both_biases(pseudo_layer)
        if biases:
            pseudo_layer = pseudo_layer._replace(bias=biases[0], recurrent_bias=biases[1])
        number, direction = divmod(index, layer.num_dirs)
        for kind, field in _FIELDS.items():
            if (value := getattr(pseudo_layer, field)) is not None:
                parameters[f"{kind}_l{number}{_SUFFIXES[direction]}"] = value
    return parameters


def read_state_dict(path: pathlib.Path) -> Mapping[str, Any]:
    """Reads a file that PyTorch wrote, or one of safetensors; what is in it says which.

    Raises:
        ValueError: if the file holds something else, or tensors that are much larger than the file.
        OSError: if it cannot be read.
        ImportError: if the format needs a package that is not installed.
    """
    stored = untrusted.stored_bytes(path)
    kind = file_kinds.kind_of(path)
    if kind not in ("torch", "safetensors"):
        raise ValueError(f"expected {path} to be a state dict, but it is a file of {kind}")
    loaded = _read_safetensors(path) if kind == "safetensors" else _read_pickled(path)
    tensors = [value for _, value in _flatten(loaded) if hasattr(value, "dtype")]
    # PyTorch's sparse tensors have no nbytes.
    received = sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)
    untrusted.check_growth(f"the tensors of {path} have", received, stored)
    return loaded


def _read_safetensors(path: pathlib.Path) -> Mapping[str, Any]:
    safetensors = _load_safetensors()
    try:
        # Unlike `load`, `load_file` knows bfloat16.
        return safetensors.numpy.load_file(path)
    except OSError:
        raise
    except Exception as error:  # SafetensorError, and KeyError for a type NumPy lacks.
        raise ValueError(
            f"{path} is no safetensors file of types that NumPy has: {messages.reason(error)}"
        ) from error


def _read_pickled(path: pathlib.Path) -> Mapping[str, Any]:
    torch = _load_torch()
    if _is_archive(path):
        untrusted.check_archive(path)
        if reader := _reader_of_code(path):
            raise ValueError(
                f"{path} is {reader[0]}, which holds code: {reader[1]} reads one that you trust, "
                "and torch.save(module.state_dict(), path) its tensors alone"
            )
    try:
        _check_pickle(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # The unpickler may raise anything for a damaged file.
        raise ValueError(
            f"{path} is no file of tensors alone, such as torch.save(module.state_dict(), path) "
            f"writes: {_reason(error)}"
        ) from error
    if not isinstance(loaded, Mapping):
        raise ValueError(f"expected {path} to hold a state dict, but it holds {type(loaded)}")
    return loaded


def _is_archive(path: pathlib.Path) -> bool:
    """Tells whether PyTorch reads a file as an archive; a pickle may end as an archive does."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _reader_of_code(path: pathlib.Path) -> tuple[str, str] | None:
    """Returns what an archive that holds code is, and what reads it; None for others."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("/.data/extern_modules") for name in names):
        return "a package of torch.package", "torch.package.PackageImporter(path)"
    if any(name.endswith("constants.pkl") for name in names):
        return "a TorchScript archive", "torch.jit.load(path)"
    return None


def _check_pickle(path: pathlib.Path) -> None:
    """Refuses a pickle that makes byte arrays, which have any size that it names, full of zeros."""
    if _is_archive(path):
        with zipfile.ZipFile(path) as archive:
            # Several members may have one name.
            members = [each for each in archive.infolist() if each.filename.endswith("data.pkl")]
            pickled = b"".join(map(archive.read, members))
    else:  # It has the form of PyTorch's files before 1.6.
        pickled = path.read_bytes()
    if re.search(rb"c(__builtin__|builtins)\nbytearray\n", pickled):
        raise ValueError("it has byte arrays")


def _reason(error: Exception) -> str:
    """Returns what is wrong with a file, for which PyTorch's messages first say what to do."""
    if what := re.search(r"Unsupported global: GLOBAL (\S+) was not an allowed", str(error)):
        return (
            f"it holds an object of {what[1]}, whose code would run; torch.load(path, "
            "weights_only=False) reads one that you trust"
        )
    found = re.search(r"WeightsUnpickler error: (.*?)(?= Please use|\n|$)", str(error))
    return found[1] if found else messages.reason(error)


def write_state_dict(parameters: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Writes a `.pt`, `.pth` or `.safetensors` file: the inverse of `read_state_dict`."""
    if path.suffix == ".safetensors":
        safetensors = _load_safetensors()
        try:
            safetensors.numpy.save_file(dict(parameters), path)
        except Exception as error:  # Of a full disk, it raises an error of its own class.
            raise OSError(messages.reason(error)) from error
        return
    torch = _load_torch()
    torch.save({key: _to_tensor(torch, value) for key, value in parameters.items()}, path)


def networks_in(state_dict: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the parameters of each recurrent network in a state dict, by the network's name."""
    networks: dict[str, dict[str, np.ndarray]] = {}
    for key, value in _parameters(state_dict):
        if match := _KEY.fullmatch(key):
            parameters = networks.setdefault(match[1] or "", {})
            parameters[key.rpartition(".")[2]] = value
    return networks


def why_not(parameters: Mapping[str, np.ndarray]) -> str:
    """Returns why a network's parameters make no layer, or not without a mode; "" if they do."""
    try:
        rnn_mode = _checked_mode(parameters, None)
        list(_pseudo_layers(parameters, rnn_mode, _num_dirs(parameters)))
    except ValueError as error:
        return str(error)
    return ""


def _parameters(state_dict: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what may be parameters of recurrent networks, under the names of such networks."""
    normed: dict[str, dict[str, np.ndarray]] = {}
    for key, value in _flatten(state_dict):
        *owner, part = _normed(key) or (key, None)
        name = _numbered("".join(owner))
        if _KEY.fullmatch(name):
            if part is None:
                yield name, _to_numpy(key, value)
            else:
                normed.setdefault(name, {})[part] = _to_numpy(key, value)
    for name, parts in normed.items():
        if parts.keys() == {"g", "v"}:
            yield name, _with_lengths(**parts)


def _normed(key: str) -> tuple[str, str] | None:
    """Returns the name of a weight with weight_norm, and which part of it a key names."""
    for pattern, parts in _NORMED_KEYS:
        if match := pattern.fullmatch(key):
            *owner, part = match.groups()
            return "".join(owner), "gv"[parts.index(part)]
    return None


def _numbered(name: str) -> str:
    return f"{name}_l0" if _CELL_KEY.fullmatch(name) else name


def _with_lengths(g: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns the weight whose slices have the directions v and the lengths g."""
    axes = tuple(axis for axis in range(v.ndim) if g.ndim != v.ndim or g.shape[axis] == 1)
    lengths = np.sqrt(np.sum(np.square(v, dtype=np.float64), axis=axes, keepdims=True))
    # As in PyTorch, a slice without a length becomes NaN.
    with np.errstate(invalid="ignore"):
        return (g * (v / lengths)).astype(v.dtype)


def _load_torch() -> types.ModuleType:
    return messages.load_package("torch", "torch")


def _load_safetensors() -> types.ModuleType:
    messages.load_package("safetensors.numpy", "'cudnn_rnn_tf[safetensors]'")
    return messages.load_package("safetensors", "'cudnn_rnn_tf[safetensors]'")


def _module(source: Any, name: str | None) -> Any:
    """Returns the recurrent module to convert: the source, or one within it."""
    # A caller that has a module has imported PyTorch.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(source, torch.nn.Module):
        raise TypeError(
            "expected a torch.nn module, a state dict or a file's path, but received "
            f"{type(source).__name__}"
        )
    modules = {
        key: module
        for key, module in source.named_modules()
        if isinstance(module, (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN))
    }
    kind = type(source).__name__
    return network.pick(modules, name, f"the module {kind}", "torch.nn.LSTM, GRU or RNN")[1]


def _flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    waiting: list[tuple[str, int, Any]] = [("", 0, tree)]
    count = 0
    while waiting:
        name, depth, value = waiting.pop()
        count += 1
        if depth > _MAX_DEPTH or count > _MAX_ENTRIES:
            raise ValueError(
                f"the state dict is nested more than {_MAX_DEPTH} levels deep, contains itself or "
                f"has more than {_MAX_ENTRIES:,} entries"
            )
        if isinstance(value, Mapping):
            prefix = f"{name}." if depth else ""
            entries = [(f"{prefix}{key}", depth + 1, entry) for key, entry in value.items()]
            waiting += reversed(entries)
        else:
            yield name, value


def _checked_mode(parameters: Mapping[str, np.ndarray], rnn_mode: str | None) -> str:
    """Returns the mode that the parameters' shapes imply, or `rnn_mode` if they leave it open."""
    for key in ("weight_ih_l0", "weight_hh_l0"):
        if key not in parameters or parameters[key].ndim != 2:
            raise ValueError(f"expected a matrix {key} in the state dict")
    rows, outputs = parameters["weight_hh_l0"].shape
    if "weight_hr_l0" in parameters:
        found = {"lstm"} if rows % network.NUM_GATES["lstm"] == 0 else set()
    else:
        # PyTorch has no GRU whose reset gate acts before the product.
        found = {mode for mode in network.LAYERS if rows == network.NUM_GATES[mode] * outputs}
    if not found:
        raise ValueError(
            "expected weight_hh_l0 of shape [G * H, H] with 4, 3 or 1 gates, or with projection "
            f"[4 * H, P], but received {rows, outputs}"
        )
    if rnn_mode is None and len(found) > 1:
        raise ValueError(
            "a torch.nn.RNN's parameters do not say its nonlinearity: pass rnn_mode 'rnn_tanh' or "
            "'rnn_relu'"
        )
    if rnn_mode is not None and rnn_mode not in found:
        raise ValueError(
            f"the parameters' shapes are those of {' or '.join(sorted(found))}, but rnn_mode is "
            f"{rnn_mode!r}"
        )
    return rnn_mode or found.pop()


def _num_dirs(parameters: Mapping[str, np.ndarray]) -> int:
    return 2 if any(key.endswith("_reverse") for key in parameters) else 1


def _pseudo_layers(
    parameters: Mapping[str, np.ndarray], rnn_mode: str, num_dirs: int
) -> Iterator[network.PseudoLayer]:
    matches = filter(None, map(_KEY.fullmatch, parameters))
    num_layers = 1 + max(int(match[3]) for match in matches)
    projection = parameters.get("weight_hr_l0")
    rows, outputs = parameters["weight_hh_l0"].shape
    units = rows // network.NUM_GATES[rnn_mode]
    has_bias = "bias_ih_l0" in parameters
    unused = set(parameters)
    for layer in range(num_layers):
        fan_in = num_dirs * outputs if layer else parameters["weight_ih_l0"].shape[1]
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, fan_in),
            "weight_hh": (rows, outputs),
        }
        if has_bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if projection is not None:
            shapes["weight_hr"] = (outputs, units)
        for suffix in _SUFFIXES[:num_dirs]:
            fields = {}
            for kind, shape in shapes.items():
                key = f"{kind}_l{layer}{suffix}"
                received = parameters[key].shape if key in parameters else "none"
                if received != shape:
                    raise ValueError(f"expected {key} of shape {shape}, but received {received}")
                fields[_FIELDS[kind]] = parameters[key]
                unused.remove(key)
            yield network.PseudoLayer(**fields)
    if unused:
        raise ValueError(f"the state dict has {sorted(unused)}, but not all that belongs to them")


def _to_numpy(key: str, value: Any) -> np.ndarray:
    if not hasattr(value, "detach"):
        return np.asarray(value)
    torch = _load_torch()
    if str(value.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"expected {key} of a floating-point type, but received {value.dtype}")
    if value.layout != torch.strided or value.is_meta:
        kind = f"{value.layout} tensor on device {value.device}"
        raise ValueError(f"expected {key} to be dense and to have values, but received a {kind}")
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:  # NumPy itself lacks this type.
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def _to_tensor(torch: types.ModuleType, value: np.ndarray) -> Any:
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)
