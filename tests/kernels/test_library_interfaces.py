"""Compares what is used of NVIDIA's libraries with what their pip packages of many years declare.

The package is compiled with one version's headers, or with declarations of its own, and then calls
whatever version a machine has. So every function's type, every number that has a name and every
struct's size must be the same in all of them. Only the headers are downloaded.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import urllib.request

import pytest
import remotezip
import tensorflow as tf
from packaging.version import Version

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "kernels" / "gpu"
HEADERS = ("cudnn.h", "cuda.h", "cublas_v2.h", "nvrtc.h")
LIBRARIES = ("cudnn", "cublas", "cuda-nvrtc", "cuda-runtime")
# Packages and their versions; where none is given, the newest one. Libraries' headers include some
# of CUDA's runtime and of its C++ library.
SETS = {
    "tensorflow[and-cuda] 2.19": {
        "nvidia-cudnn-cu12": "9.3.0.75",
        "nvidia-cublas-cu12": "12.5.3.2",
        "nvidia-cuda-nvrtc-cu12": "12.5.82",
        "nvidia-cuda-runtime-cu12": "12.5.82",
        "nvidia-cuda-cccl-cu12": "12.5.39.post1",
    },
    "CUDA 12.9 and the newest cuDNN": dict.fromkeys(
        (f"nvidia-{name}-cu12" for name in (*LIBRARIES, "cuda-cccl")), ""
    ),
    "CUDA 13": {"nvidia-cudnn-cu13": ""}
    | dict.fromkeys((f"nvidia-{name}" for name in (*LIBRARIES[1:], "cuda-crt", "cuda-cccl")), ""),
}


def used_names(pattern: str) -> list[str]:
    """Returns the names in the sources that match, except this project's own."""
    sources = [path.read_text() for end in ("cc", "h") for path in GPU.rglob(f"*.{end}")]
    names = re.findall(rf"\b(?!CUDNN_RNN_TF)(?:{pattern})\b", "\n".join(sources))
    return sorted(set(names))


# The sizes of structs, and the values of the other names. Names that stand for pointers are no
# numbers.
STRUCTS = r"CUDA_\w+_PARAMS|CUDA_MEMCPY[23]D|CUlaunchConfig|CUlaunchAttribute|CUgraphEdgeData"
NUMBERS = r"(?!CU_LAUNCH_PARAM|\w+_PARAMS|CUDA_MEMCPY)(?:CUDNN|CUBLAS|CUDA|CU|NVRTC)_[A-Z0-9_]+"


def program(functions: list[str], headers: tuple[str, ...]) -> str:
    """Returns a C++ program that prints what the headers declare of what is used."""
    lines = [
        *(f"#include <{header}>" for header in headers),
        "#include <cstdio>",
        "#include <typeinfo>",
        # Functions of the driver are macros of the names that it exports.
        "#define TEXT(f) #f",
        '#define TYPE(f) std::printf("%s %s\\n", TEXT(f), typeid(decltype(&::f)).name())',
        "int main() {",
    ]
    lines += [f"TYPE({name});" for name in functions]
    for name in used_names(NUMBERS):
        lines.append(f'std::printf("{name} %lld\\n", (long long)({name}));')
    for name in used_names(STRUCTS):
        lines.append(f'std::printf("{name} %zu bytes\\n", sizeof({name}));')
    return "\n".join([*lines, "}"])


def declared(
    directory: pathlib.Path,
    folders: list[pathlib.Path],
    functions: list[str],
    headers: tuple[str, ...],
    *options: str,
) -> list[str]:
    """Returns what these headers, which are in the folders, declare, a line each."""
    source = directory / "program.cc"
    source.write_text(program(functions, headers))
    executable = directory / "program"
    includes = [part for folder in folders for part in ("-isystem", folder)]
    command = ["g++", "-std=c++17", *options, *includes, source, "-o", executable]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr[:3000]
    return subprocess.check_output([executable], text=True).splitlines()


def wheel(package: str, version: str) -> str:
    """Returns the address of a package's wheel for Linux; the newest one if no version is given."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    request = urllib.request.Request(
        f"{index}/{package}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    found = [
        (Version(file["filename"].split("-")[1]), file["url"])
        for file in files
        if re.search(r"manylinux\w*_x86_64\.whl$", file["filename"]) and not file.get("yanked")
    ]
    return max(item for item in found if not version or item[0] == Version(version))[1]


def download_headers(package: str, version: str, directory: pathlib.Path) -> None:
    # Of the C++ library, the others need one folder.
    wanted = "/include/(cccl/)?(nv/.*)" if "cccl" in package else "/include/()(.*)"
    with remotezip.RemoteZip(wheel(package, version)) as archive:
        for name in archive.namelist():
            found = re.search(wanted + "(?<!/)$", name)
            if not found:
                continue
            target = directory / found[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))


def of_tensorflow() -> list[pathlib.Path]:
    gpus = pathlib.Path(tf.sysconfig.get_include(), "third_party", "gpus")
    return [gpus / "cuda" / "include", gpus / "cudnn" / "include"]


@pytest.mark.parametrize(
    "name",
    # The newest ones change without a change here.
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name != next(iter(SETS))))
        for name in SETS
    ],
)
def test_libraries_declare_what_is_used(tmp_path, name):
    functions = re.findall(r"^\s+F\((\w+)\)", (GPU / "libraries.h").read_text(), re.M)
    folders = [ROOT, *of_tensorflow()]
    own = declared(tmp_path, folders, functions, ("kernels/gpu/libraries.h",))
    # There are about as many functions as numbers.
    assert len(own) > 150
    headers = tmp_path / "include"
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda item: download_headers(*item, headers), SETS[name].items()))
    # What a package lacks, such as headers of the compiler, is TensorFlow's.
    folders = [headers, *of_tensorflow()]
    # A driver exports functions under older names as well, which are declared with this option.
    exported = [line.split()[0] for line in own[: len(functions)]]
    option = "-D__CUDA_API_VERSION_INTERNAL"
    assert declared(tmp_path, folders, exported, HEADERS, option) == own
