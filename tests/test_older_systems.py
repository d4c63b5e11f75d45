"""What was compiled here needs no newer C and C++ libraries than TensorFlow's wheels do."""

import pathlib
import platform
import re
import subprocess

import pytest
from cxx import compiled

from cudnn_rnn_tf import native

# Those of RHEL 8, which are a little newer than what TensorFlow needs.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="this is about x86-64")


def too_new(binary: pathlib.Path) -> list[str]:
    printed = subprocess.run(
        ["readelf", "--version-info", "--wide", binary], check=True, capture_output=True, text=True
    ).stdout
    # Only what a file needs has a name after a word like this, not what it defines.
    needed = re.findall(r"Name: ([A-Z]+)_([0-9.]+)", printed)
    assert ("GLIBC", "2.2.5") in needed
    return [
        f"{kind}_{version}"
        for kind, version in needed
        if kind in NEWEST and tuple(map(int, version.split("."))) > NEWEST[kind]
    ]


def test_libraries_need_nothing_new():
    compiler = native.build_info.COMPILER
    if not re.fullmatch(r"GNU (\d|1[0-2])\..*", compiler):
        pytest.skip(f"{compiler} needs newer libraries than wheels are built for")
    libraries = [pathlib.Path(native._native.__file__), *native.op_library_files().values()]
    libraries += native.xla_library_files().values()
    assert len(libraries) >= 2
    assert not {library.name: found for library in libraries if (found := too_new(library))}


def test_older_functions_do_what_newer_ones_do(tmp_path):
    program = "functions_of_older_systems"
    printed = []
    for sources in (["kernels/older_systems.cc"], []):
        executable = compiled(tmp_path, program, sources)
        printed.append(subprocess.run([executable], capture_output=True, text=True).stdout)
    assert printed[0] == printed[1]
    assert "what was thrown" in printed[0] and "bad length" in printed[0]
