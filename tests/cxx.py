"""Compiles C++ programs of tests, with sources of the package."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A program that uses the compiler of kernels also needs the files that the compiler may include.
COMPILER = [
    *("kernels/gpu/compiler.cc", "kernels/gpu/compiled_code_cache.cc"),
    "kernels/gpu/device_limits.cc",
]
# The sources of the cuDNN backend and of everything that it uses.
CUDNN_BACKEND = [
    *sorted((ROOT / "kernels" / "gpu" / "cudnn").glob("*.cc")),
    *sorted((ROOT / "kernels" / "gpu" / "resident").glob("*.cc")),
    *COMPILER,
    *(
        f"kernels/gpu/{name}.cc"
        for name in (
            *("algorithm_rule", "call_addresses", "captured_graph"),
            *("libraries", "ptx", "replay"),
        )
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


def embedded_sources(directory: pathlib.Path) -> pathlib.Path:
    """Returns the device's sources, embedded by the build's own script."""
    gpu = ROOT / "kernels" / "gpu"
    embedded = directory / "embedded_sources.cc"
    files = [path for end in ("arguments.h", ".cu", ".cuh") for path in gpu.rglob(f"*{end}")]
    subprocess.run([sys.executable, gpu / "embed_sources.py", embedded, *files], check=True)
    return embedded


def compiled(
    directory: pathlib.Path, program: str, sources: list[str | pathlib.Path], *options: str
) -> pathlib.Path:
    """Compiles a program in tests/programs with sources, and returns the executable."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile the program with")
    if COMPILER[0] in sources:
        sources = [*sources, embedded_sources(directory)]
    subprocess.run(
        [
            *("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}"),
            *(part for folder in include_folders() for part in ("-isystem", folder)),
            ROOT / "tests" / "programs" / f"{program}.cc",
            *(ROOT / source for source in sources),
            *(*options, "-ldl", "-o", directory / program),
        ],
        check=True,
    )
    return directory / program
