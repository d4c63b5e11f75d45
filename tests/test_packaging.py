"""The package as it is built and installed."""

import ast
import importlib.metadata
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
import release_notes
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import native
from cudnn_rnn_tf.ops import op_library

ROOT = pathlib.Path(__file__).resolve().parent.parent
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libdl|libgcc_s|libm|libpthread|librt|libstdc\+\+|ld-linux.*)\.so\.\d"
)
NATIVE_MODULE = pathlib.Path(native._native.__file__)
XLA_LIBRARIES = [*native.xla_library_files().values()]
LIBRARIES = [NATIVE_MODULE, *native.op_library_files().values(), *XLA_LIBRARIES]


@pytest.fixture(scope="module")
def pyproject():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 brought it")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_versions_are_those_of_pyproject(pyproject):
    version = pyproject["project"]["version"]
    assert crnn.__version__ == version
    # There is none installed where the package runs from the source tree.
    installed = importlib.metadata.distributions(name="cudnn_rnn_tf")
    assert {each.version for each in installed} <= {version}
    # The version separates stored choices of different versions.
    header = (ROOT / "kernels" / "version.h").read_text()
    assert re.findall(r'kVersion\[\] = "(.*)"', header) == [version]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (.*)$", changelog, re.MULTILINE)[1].startswith(f"{version} (")


def test_dependency_groups_repeat_what_they_say_they_repeat(pyproject):
    requires = pyproject["build-system"]["requires"]
    (tensorflow,) = (
        name for name in pyproject["project"]["dependencies"] if name.startswith("tensorflow")
    )
    assert pyproject["dependency-groups"]["build"] == [*requires, tensorflow]


def test_what_is_imported_is_declared(pyproject):
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *(name for extra in extras.values() for name in extra)]
    declared = {re.match(r"[\w-]+", name)[0].replace("-", "_").lower() for name in required}
    distributions = importlib.metadata.packages_distributions()
    for path in pathlib.Path(crnn.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in {name.partition(".")[0] for name in names}:
                if name not in {*sys.stdlib_module_names, "cudnn_rnn_tf"}:
                    of = {
                        each.replace("-", "_").lower() for each in distributions.get(name, [name])
                    }
                    assert of & declared, f"{path} imports {name}"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda f: f.name)
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
    expected = set() if library == NATIVE_MODULE else framework
    if library in XLA_LIBRARIES:
        op_library_name = library.name.replace("_xla_", "_ops_")
        expected = {*framework, "libtensorflow_cc.so.2", op_library_name}
    assert others == expected
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)


# One op library per TensorFlow.


@pytest.fixture
def three_libraries(monkeypatch):
    libraries = {version: pathlib.Path(f"ops_{version}.so") for version in ("2.19", "2.20", "2.21")}
    monkeypatch.setattr(native, "op_library_files", lambda: libraries)


@pytest.mark.parametrize("imported", ["2.21.0", "2.21.1", "2.21.0-rc1", "2.19.1", "2.20.0"])
def test_every_patch_of_a_tensorflow_has_its_library(three_libraries, imported):
    assert op_library.find(imported).name == f"ops_{imported[:4]}.so"


@pytest.mark.parametrize("imported", ["2.18.1", "2.22.0", "3.21.0", "2.2.1"])
def test_refuses_another_tensorflow(three_libraries, monkeypatch, imported):
    monkeypatch.setattr(tf, "__version__", imported)
    with pytest.raises(ImportError) as error:
        op_library.load()
    message = str(error.value)
    assert f"for TensorFlow 2.19, 2.20 or 2.21, but TensorFlow {imported} is imported" in message
    assert message.count(f"CUDNN_RNN_TF_TENSORFLOW={imported} pip install") == 1
    assert "\n" not in message


@pytest.mark.parametrize(
    ("origin", "what"),
    [
        ("", f"--no-binary cudnn_rnn_tf cudnn_rnn_tf=={crnn.__version__}"),
        (
            '{"url": "file:///a%20b/c.whl", "archive_info": {}}',
            f"--find-links file:///a%20b --no-binary cudnn_rnn_tf cudnn_rnn_tf=={crnn.__version__}",
        ),
        ('{"url": "file:///a%20b", "dir_info": {}}', "--no-cache-dir '/a b'"),
        ('{"url": "file:///a", "dir_info": {"editable": true}}', "--no-cache-dir --editable /a"),
    ],
    ids=["index", "wheel", "folder", "editable"],
)
def test_names_the_command_that_builds_from_where_it_came(
    three_libraries, monkeypatch, origin, what
):
    class Distribution:
        def read_text(self, name):
            assert name == "direct_url.json"
            return origin or None

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    with pytest.raises(ImportError, match=re.escape(what)):
        op_library.find("2.22.0")


def test_missing_op_library_is_an_import_error(monkeypatch):
    monkeypatch.setattr(native, "op_library_files", dict)
    with pytest.raises(ImportError, match="cudnn_rnn_tf has no op library: CUDNN_RNN_TF_TENSORFL"):
        op_library.load()


# The claims, and what checks each.


def test_pages_have_one_way_to_install():
    pages = [(ROOT / page).read_text() for page in ("README.md", "docs/install.md")]
    commands = [re.search(r"# Install\n.*?```sh\n(.*?)```", page, re.DOTALL)[1] for page in pages]
    assert commands[0] == commands[1]


def test_release_notes_are_of_a_version_with_a_date():
    pyproject = '[project]\nversion = "1.2.0"\n'
    changelog = (
        "# Changelog\n\n## 1.2.0 (2026-05-01)\n\n* New.\n\n## 1.1.0 (2025-05-01)\n\n* Old.\n"
    )
    assert release_notes.notes("1.2.0", changelog, pyproject) == "* New."
    for version, text, message in (
        ("1.1.0", changelog, "another version than 1.1.0"),
        ("1.2.0", "# Changelog\n", "has no title '## 1.2.0"),
        ("1.2.0", changelog.replace("2026-05-01", "unreleased"), "has 'unreleased' in place"),
    ):
        with pytest.raises(ValueError, match=message):
            release_notes.notes(version, text, pyproject)


def test_bounds_are_those_of_the_matrix(pyproject):
    """Each Python, TensorFlow and Keras that may be installed is one that the workflow tests."""
    packaging = pytest.importorskip("packaging.specifiers")
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    pythons = re.findall(r'"([\d.]+)"', re.search(r"python: \[(.*)\]", workflow)[1])
    specifier = packaging.SpecifierSet(pyproject["project"]["requires-python"])
    assert pythons == [f"3.{minor}" for minor in range(100) if specifier.contains(f"3.{minor}.1")]
    classifiers = "\n".join(pyproject["project"]["classifiers"])
    assert re.findall(r"Python :: (3\.\d+)", classifiers) == pythons
    kerases = re.findall(r'python: "([\d.]+)", keras: "([\d.]+)"', workflow)
    assert [python for python, _ in kerases] == pythons
    (bounds,) = (each for each in pyproject["project"]["dependencies"] if each.startswith("keras"))
    specifier = packaging.SpecifierSet(bounds.removeprefix("keras"))
    fits = [f"3.{minor}" for minor in range(100) if specifier.contains(f"3.{minor}.1")]
    assert [keras for _, keras in kerases] == fits
    tensorflows = re.findall(r'"([\d.]+)"', re.search(r"tensorflow: \[(.*)\]", workflow)[1])
    assert tuple(tensorflows) == load_script("build_pip_package").TENSORFLOWS
    for page in ("README.md", "docs/install.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert f"Python {pythons[0]} to {pythons[-1]}" in text, page
        first, last = map(re.escape, (tensorflows[0], tensorflows[-1]))
        assert re.search(rf"TensorFlow {first}( to |, [\d., ]+ or ){last}", text), page


def test_workflows_install_what_they_built():
    """An index that is asked for the package by name may have another one."""
    for workflow in (ROOT / ".github/workflows").iterdir():
        commands = re.findall(r"pip install((?:.*\\\n)*.*)", workflow.read_text())
        assert commands and "cudnn_rnn_tf" not in "".join(commands)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the files are not those of Git")
def test_source_distribution_has_all_files(build_backend, tmp_path):
    """So its tests and pages have what they need."""
    name = build_backend.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / name) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    tracked = {file for file in listed.split("\0") if file and (ROOT / file).is_file()}
    assert len(tracked) > 100
    assert tracked <= packed


# Building.


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "pip_package" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build_backend():
    pytest.importorskip("scikit_build_core")
    return load_script("build_backend")


def test_wheels_have_a_library_for_every_tensorflow_that_is_supported(build_backend):
    versions = load_script("build_pip_package").TENSORFLOWS
    specifier = build_backend.supported_tensorflow().specifier
    fits = [minor for minor in range(100) if specifier.contains(f"2.{minor}.1")]
    assert versions == tuple(f"2.{minor}" for minor in fits)


def test_builds_against_the_tensorflow_that_is_installed(build_backend, monkeypatch):
    assert build_backend.tensorflow_requirement() == f"tensorflow=={tf.__version__}"
    required = build_backend.get_requires_for_build_wheel()
    assert f"tensorflow=={tf.__version__}" in required
    monkeypatch.setattr(build_backend, "installed_tensorflow", lambda: None)
    assert build_backend.tensorflow_requirement() == str(build_backend.supported_tensorflow())
    monkeypatch.setenv("CUDNN_RNN_TF_TENSORFLOW", "2.20.*")
    assert build_backend.tensorflow_requirement() == "tensorflow==2.20.*"


def test_does_not_replace_a_tensorflow_unasked(build_backend, monkeypatch):
    monkeypatch.setattr(build_backend, "installed_tensorflow", lambda: "2.18.1")
    with pytest.raises(SystemExit, match="TensorFlow 2.18.1 is installed, but cudnn_rnn_tf is for"):
        build_backend.tensorflow_requirement()
    monkeypatch.setenv("CUDNN_RNN_TF_TENSORFLOW", "2.18.1")
    assert build_backend.tensorflow_requirement() == "tensorflow==2.18.1"


def test_both_builds_have_the_same_flags():
    cmake = (ROOT / "CMakeLists.txt").read_text()
    standard = re.search(r"CMAKE_CXX_STANDARD (\d+)", cmake)[1]
    visibility = re.search(r"CMAKE_CXX_VISIBILITY_PRESET (\w+)", cmake)[1]
    optimization = re.search(r'CMAKE_CXX_FLAGS_RELEASE "(-O\d) -DNDEBUG"', cmake)[1]
    warnings = re.search(r"crnn_options INTERFACE ((?:-W\w+ ?)+)", cmake)[1].split()
    expected = {f"-std=c++{standard}", f"-fvisibility={visibility}", optimization, *warnings}
    bazelrc = (ROOT / ".bazelrc").read_text()
    assert set(re.findall(r"--(?:cxx|c)opt=(\S+)", bazelrc)) == expected
    # In Bazel, this mode defines NDEBUG.
    assert "--compilation_mode=opt" in bazelrc


def test_both_builds_compile_the_inner_loops_alike():
    flag = re.compile(r"-[fm][\w=-]+")
    cmake = (ROOT / "CMakeLists.txt").read_text()
    simd = cmake[cmake.index("function(crnn_add_simd") : cmake.index("pybind11_add_module")]
    bazel = (ROOT / "kernels/BUILD").read_text()
    bazel = bazel[bazel.index("AVX512BF16 =") : bazel.index('name = "core"')]
    assert flag.findall(simd)
    assert sorted(flag.findall(bazel)) == sorted(flag.findall(simd))
    assert re.findall(r"crnn_add_simd\((\w+) (\d+)", simd) == re.findall(
        r'"(\w+)": \((\d+), ', bazel
    )
