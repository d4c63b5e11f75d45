"""What was compiled here needs no newer C and C++ libraries than TensorFlow's wheels do."""

import pathlib
import platform
import re
import subprocess

import pytest
from cxx import ROOT, compiled

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


def test_a_library_that_has_string_streams_too_leaves_no_hole(tmp_path):
    """TensorFlow 2.20's is one. With a hole in its table of symbols, nothing links to a library."""
    other, own = tmp_path / "libother.so", tmp_path / "libown.so"
    (tmp_path / "other.cc").write_text(
        "#include <sstream>\ntemplate class std::basic_stringstream<char>;\n"
    )
    (tmp_path / "own.cc").write_text(
        "#include <sstream>\n"
        'extern "C" int use() { std::stringstream s; s << 12; return s.str().size(); }\n'
    )
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, tmp_path / "other.cc", "-o", other], check=True)
    sources = [tmp_path / "own.cc", ROOT / "kernels" / "older_systems.cc"]
    subprocess.run([*command, *sources, other, "-ldl", "-o", own], check=True)
    printed = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", own], check=True, capture_output=True, text=True
    ).stdout
    symbols = [line.split() for line in printed.splitlines() if re.match(r" *[1-9]\d*: ", line)]
    assert len(symbols) > 10
    # A hole holds whatever was in the linker's memory.
    assert {symbol[4] for symbol in symbols} <= {"GLOBAL", "WEAK"}
