"""Compiles C++ programs of tests, with sources of the package."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A program that uses the compiler of kernels also needs the files that the compiler may include.
COMPILER = [
    *("kernels/gpu/compiler.cc", "kernels/gpu/compiled_code_cache.cc"),
    "kernels/gpu/device_limits.cc",
]
# The sources of the GPU backend and of everything that it uses in passes.
GPU_BACKEND = [
    *(
        source
        for source in sorted((ROOT / "kernels" / "gpu").rglob("*.cc"))
        if source.name not in ("keras_tensors.cc", "masked_steps.cc")
    ),
    *("kernels/rnn_backend.cc", "kernels/keras_layout.cc", "kernels/param_layout.cc"),
    "kernels/rnn_spec.cc",
]


def include_folders() -> list[pathlib.Path]:
    """Returns the folders of CUDA's and cuDNN's headers: TensorFlow's, or this machine's."""
    of_tensorflow = pathlib.Path(tf.sysconfig.get_include(), "third_party", "gpus")
    homes = [
        pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")),
        pathlib.Path(os.environ.get("CUDNN_HOME", "/usr/local/cuda")),
    ]
    for folders in ([of_tensorflow / "cuda", of_tensorflow / "cudnn"], homes):
        includes = [folder / "include" for folder in folders]
        if (includes[0] / "cuda.h").exists() and (includes[1] / "cudnn.h").exists():
            return includes
    pytest.skip("there are no headers of CUDA and cuDNN")


def _shared(directory: pathlib.Path) -> pathlib.Path:
    """Returns a folder for all tests of a run, of whose temporary folders `directory` is one.

    With `pytest --basetemp`, tests share none.
    """
    of_run = [path for path in directory.parents if path.name.startswith("pytest-")]
    folder = (of_run[0] if of_run else directory) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def _made_once(path: pathlib.Path) -> Iterator[bool]:
    """Says whether a file is to be made; meanwhile, other processes wait for it."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not path.exists()


def embedded_sources(directory: pathlib.Path) -> pathlib.Path:
    """Returns the device's sources, embedded by the build's own script."""
    gpu = ROOT / "kernels" / "gpu"
    embedded = _shared(directory) / "embedded_sources.cc"
    files = [
        path for end in ("arguments.h", "shape.h", ".cu", ".cuh") for path in gpu.rglob(f"*{end}")
    ]
    files += (ROOT / "kernels" / "cells").glob("*.h")
    with _made_once(embedded) as is_missing:
        if is_missing:
            subprocess.run([sys.executable, gpu / "embed_sources.py", embedded, *files], check=True)
    return embedded


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([*map(str, parts)]).encode()).hexdigest()[:16]


def _object(source: pathlib.Path, flags: list[str], folder: pathlib.Path) -> pathlib.Path:
    """Compiles a source, unless a test of this run has done so with the same flags."""
    path = folder / f"{source.stem}-{_hash(source, *flags)}.o"
    with _made_once(path) as is_missing:
        if is_missing:
            made = path.with_suffix(".made")
            subprocess.run(["g++", *flags, "-c", source, "-o", made], check=True)
            made.rename(path)
    return path


# How a library of kernels for the fake device is compiled.
KERNEL_FLAGS = ["-std=c++17", "-Og", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Wextra"]
KERNEL_FLAGS += [f"-I{ROOT / folder}" for folder in (".", "kernels/cells", "kernels/gpu")]
KERNEL_FLAGS += [f"-I{ROOT / 'kernels/gpu/persistent'}"]


def activation_macros(config: Any) -> list[str]:
    """Returns the compiler's options that name activations other than the cell's own."""
    names = "tanh sigmoid relu linear softsign elu hard_sigmoid keras_2_hard_sigmoid".split()
    return [
        f"-D{which.upper()}={1 + names.index(getattr(config, which))}"
        for which in ("activation", "recurrent_activation")
        if getattr(config, which, "")
    ]


def cell_macro(rnn_mode: str, has_zoneout: bool = False) -> str:
    """Returns the compiler's option that says which kind of cell kernels are for."""
    cell = rnn_mode.title().replace("_", "")
    return f"-DCELL={f'Zoneout<{cell}>' if has_zoneout else cell}"


def standard_headers(directory: pathlib.Path) -> list[str]:
    """Returns options by which kernels for the fake device share its standard headers, compiled."""
    device = (ROOT / "tests" / "programs" / "fake_device.h").read_text()
    text = "\n".join(re.findall("^#(?:undef|include <).*", device, re.MULTILINE))
    return _shared_headers(directory, text, KERNEL_FLAGS)


def compile_for_fake_device(
    program: str, path: pathlib.Path, directory: pathlib.Path, *options: str
) -> None:
    """Compiles a program in tests/programs, which includes kernels, to a library at the path."""
    command = [
        *("g++", *KERNEL_FLAGS, "-shared", *standard_headers(directory)),
        *("-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-parameter"),
        *(*options, ROOT / "tests" / "programs" / f"{program}.cc", "-o", path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _shared_headers(directory: pathlib.Path, text: str, flags: list[Any]) -> list[str]:
    """Returns options by which what is compiled with these flags shares headers, compiled.

    Standard headers would take almost half of the compiler's time.
    """
    header = _shared(directory) / f"headers-{_hash(text, *flags)}.h"
    with _made_once(header) as is_missing:
        if is_missing:
            made = header.with_suffix(".made")
            made.write_text(text)
            command = ["g++", *flags, "-x", "c++-header", made, "-o", f"{header}.gch"]
            subprocess.run(command, check=True)
            made.rename(header)
    return ["-Winvalid-pch", "-include", str(header)]


def objects_of(
    directory: pathlib.Path, sources: list[str | pathlib.Path], *options: str
) -> list[pathlib.Path]:
    """Compiles sources. Tests of a run share those that they compile with the same options."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile the program with")
    if any(str(source).endswith(COMPILER[0]) for source in sources):
        sources = [*sources, embedded_sources(directory)]
    flags = [
        *("-std=c++17", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}"),
        *(part for folder in include_folders() for part in ("-isystem", folder)),
        *options,
    ]
    if not options:  # As most sources are compiled.
        names = "algorithm atomic cstdio cstring functional map memory mutex string vector"
        text = "".join(f"#include <{name}>\n" for name in names.split())
        flags = [*_shared_headers(directory, text, flags), *flags]
    return [_object(ROOT / source, flags, _shared(directory)) for source in sources]


def compiled(
    directory: pathlib.Path, program: str, sources: list[str | pathlib.Path], *options: str
) -> pathlib.Path:
    """Compiles a program in tests/programs with sources, and returns the executable.

    `directory` is a temporary one of pytest's, in which the program finds headers that its test
    made.
    """
    objects = objects_of(directory, sources, *options)
    includes = [f"-I{directory}"] if any(directory.glob("*.h")) else []
    objects += objects_of(directory, [f"tests/programs/{program}.cc"], *options, *includes)
    executable = directory / program
    subprocess.run(["g++", "-pthread", *options, *objects, "-ldl", "-o", executable], check=True)
    return executable
