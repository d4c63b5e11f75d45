"""The package as it is built and installed."""

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import native, op_library

ROOT = pathlib.Path(__file__).resolve().parent.parent
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libdl|libgcc_s|libm|libpthread|librt|libstdc\+\+|ld-linux.*)\.so\.\d"
)
NATIVE_MODULE = pathlib.Path(native._native.__file__)


@pytest.fixture(scope="module")
def pyproject():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 brought it")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_version_is_that_of_pyproject(pyproject):
    assert crnn.__version__ == pyproject["project"]["version"]


def test_version_in_the_kernels_is_that_of_pyproject(pyproject):
    """Where measured choices are kept, it keeps those of different versions apart."""
    header = (ROOT / "kernels" / "version.h").read_text()
    assert re.findall(r'kVersion\[\] = "(.*)"', header) == [pyproject["project"]["version"]]


def test_version_is_that_of_the_installed_package():
    try:
        installed = importlib.metadata.version("cudnn_rnn_tf")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("runs from the source tree")
    assert crnn.__version__ == installed


def test_builds_against_the_tensorflow_it_will_run_with(pyproject):
    requires = pyproject["build-system"]["requires"]
    (tensorflow,) = (
        name for name in pyproject["project"]["dependencies"] if name.startswith("tensorflow")
    )
    assert tensorflow in requires
    assert pyproject["dependency-groups"]["build"] == requires
    assert native.build_info.TENSORFLOW_VERSION.split(".")[:2] == tf.__version__.split(".")[:2]


@pytest.mark.parametrize("library", [NATIVE_MODULE, native.op_library_file()], ids=lambda f: f.name)
def test_library_needs_only_tensorflow_and_the_system(library):
    if not shutil.which("readelf"):
        pytest.skip("readelf is not installed")
    dynamic = subprocess.run(
        ["readelf", "--dynamic", "--wide", library], check=True, capture_output=True, text=True
    ).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed
    others = {name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)}
    framework = {flag[3:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-l:")}
    assert others == (set() if library == NATIVE_MODULE else framework)
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)


@pytest.mark.parametrize("imported", ["2.21.0", "2.21.1", "2.21.0-rc1"])
def test_fits_every_patch_of_its_tensorflow(imported):
    op_library.check_tensorflow_version("2.21.0", imported)


@pytest.mark.parametrize("imported", ["2.20.0", "2.22.0", "3.21.0", "2.2.1"])
def test_refuses_another_tensorflow(monkeypatch, imported):
    monkeypatch.setattr(native.build_info, "TENSORFLOW_VERSION", "2.21.0")
    monkeypatch.setattr(tf, "__version__", imported)
    with pytest.raises(ImportError) as error:
        op_library.load()
    message = str(error.value)
    assert "built for TensorFlow 2.21.0" in message
    assert f"TensorFlow {imported} is imported" in message
    assert "\n" not in message


def test_missing_op_library_is_an_import_error(monkeypatch, tmp_path):
    missing = tmp_path / "libcudnn_rnn_tf_ops.so"
    monkeypatch.setattr(native, "op_library_file", lambda: missing)
    with pytest.raises(ImportError, match=re.escape(str(missing))):
        op_library.load()


def test_imports_from_another_directory(tmp_path):
    printed = subprocess.run(
        [sys.executable, "-c", "import cudnn_rnn_tf; print(cudnn_rnn_tf.__version__)"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed.strip() == crnn.__version__


@pytest.mark.parametrize("directory", ["kernels", "ops"])
def test_both_builds_list_every_source(directory):
    files = {str(path.relative_to(ROOT)) for path in (ROOT / directory).rglob("*.cc")}
    in_cmake = set(
        re.findall(rf"\b{directory}/[\w/]+\.cc\b", (ROOT / "CMakeLists.txt").read_text())
    )
    in_bazel = set()
    for name in ("BUILD", "*.bzl"):
        for path in (ROOT / directory).rglob(name):
            folder = path.parent.relative_to(ROOT)
            in_bazel |= {
                str(folder / file) for file in re.findall(r'"(\w+\.cc)"', path.read_text())
            }
    assert files
    assert in_cmake == files
    # The build writes this file itself.
    assert in_bazel - {"kernels/gpu/embedded_sources.cc"} == files


def test_both_builds_compile_the_inner_loops_alike():
    flag = re.compile(r"-[fm][\w=-]+")
    cmake = (ROOT / "CMakeLists.txt").read_text()
    simd = cmake[cmake.index("function(crnn_add_simd") : cmake.index("pybind11_add_module")]
    bazel = "".join((ROOT / "kernels/cpu" / name).read_text() for name in ("simd.bzl", "BUILD"))
    assert flag.findall(simd)
    assert flag.findall(bazel) == flag.findall(simd)
    assert re.findall(r"crnn_add_simd\((\w+) (\d+)", simd) == re.findall(
        r'name = "(\w+)",[^)]*?vector_bytes = (\d+)', bazel
    )
