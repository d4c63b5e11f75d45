"""Says in one line what an error of another library says, or what to install."""

import importlib
import os
import re
import types

_LONGEST_REASON = 400


def load_package(name: str, install: str) -> types.ModuleType:
    """Imports an optional package.

    Raises:
        ImportError: if it is not installed; it says how to.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name.partition('.')[0]} is needed for this, but cannot be imported ({error}): "
            f"pip install {install}"
        ) from error


def of_file(path: str | os.PathLike[str], verb: str, error: Exception) -> ValueError:
    """Returns an error that names the file that another library found wrong."""
    what = reason(error)
    return ValueError(what if str(path) in what else f"cannot {verb} {path}: {what}")


def reason(error: Exception) -> str:
    """Returns what an error says first, in one line, or the error's class if it has no message."""
    text = str(error)
    # Keras names a layer's call first, and puts what happened in it in bold letters.
    if in_call := re.match(
        r"Exception encountered when calling .*?\n\n\x1b\[1m(.*?)\x1b", text, re.S
    ):
        text = in_call[1]
    # TensorFlow shows the code that a function is made of.
    text = re.sub(r"^in user code:\n.*?\n\n +(?=\w+: )", "", text, flags=re.S)
    # It shows the config that it could not make an object of before it says why.
    text = text.rpartition("Exception encountered: ")[2]
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
    # A paragraph that ends with a colon introduces the next one.
    paragraph = re.match(r"(?:.+?:\n\s*\n)*.+?(?=\n\s*\n|$)", text, re.S)
    line = " ".join(paragraph[0].split()).rstrip(" :") if paragraph else type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]} …"
