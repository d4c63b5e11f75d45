"""What the names of targets may end in; the command line asks before it imports TensorFlow."""

import pathlib

TORCH = (".pt", ".pth", ".safetensors")
CONVERTED = (*TORCH, ".keras", ".onnx")
EXPORTED = (".onnx", ".tflite")


def check(name: str, *suffixes: str, is_folder: bool = False, argument: str = "the name") -> None:
    """Raises a ValueError if a file's name ends in none of the suffixes, as a mistyped one does.

    Or else it may be a SavedModel's folder. A number, as in "v1.2", is no suffix.
    """
    path = pathlib.Path(name)
    names_folder = path.name and (not path.suffix or path.suffix[1:].isdigit())
    if path.suffix in suffixes or (is_folder and names_folder):
        return
    wanted = [f"to end in {', '.join(suffixes)}"] if suffixes else []
    if is_folder:
        wanted.append("to name the folder of a SavedModel, which has no suffix")
    raise ValueError(f"expected {argument} {' or '.join(wanted)}, but received {name!r}")
