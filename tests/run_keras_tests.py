"""Runs Keras's own tests of its recurrent layers on `cudnn_rnn_tf.keras`, imports changed alone.

    python tests/run_keras_tests.py KERAS_SOURCE [--unchanged] [--no-tf32] [--jit-compile] [pytest's
        options]

KERAS_SOURCE is a folder with Keras's source, of the version that is installed (its Git repository
at that version's tag, its source distribution, or the folder in which pip has installed a Keras
that has its tests). With --unchanged the tests run on Keras's own layers. With --no-tf32, GPUs
multiply float32 numbers in float32, which the tests' tolerances ask for. With --jit-compile, XLA
compiles all models that it can. Prints each test that did
not pass, and how many did; the exit status is 1 if any failed.
"""

import argparse
import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree

import fresh_process
import keras

FILES = (
    "lstm_test.py",
    "gru_test.py",
    "simple_rnn_test.py",
    "rnn_test.py",
    "stacked_rnn_cells_test.py",
    "bidirectional_test.py",
)
IMPORT = "from keras.src import layers\n"
# This is `layers` with five classes exchanged, which is all that the tests see of the change.
CHANGED_IMPORT = """\
import types as _types

import keras as _keras
import cudnn_rnn_tf.keras as _drop_ins

layers = _types.SimpleNamespace(**vars(_keras.layers))
for _name in ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional"):
    setattr(layers, _name, getattr(_drop_ins, _name))
"""
# These become the tests' conftest.py.
NO_TF32 = """\
import tensorflow as tf

tf.config.experimental.enable_tensor_float_32_execution(False)
"""
JIT_COMPILE = """\
import keras

keras.Model._resolve_auto_jit_compile = lambda self: True
"""


def find_tests(source: pathlib.Path) -> dict[str, str]:
    """Returns the test files' texts by name.

    Raises:
        ValueError: if the folder is not the source of the version of Keras that is installed, or a
            test file imports the layers in an unknown way.
    """
    version_file = source / "keras/src/version.py"
    if not version_file.is_file():
        raise ValueError(f"expected a folder with Keras's source, but {version_file} is missing")
    version = re.search(r'__version__ = "(.*)"', version_file.read_text())[1]
    if version != keras.__version__:
        raise ValueError(
            f"expected the source of Keras {keras.__version__}, which is installed, but received "
            f"that of {version}"
        )
    tests = {name: (source / "keras/src/layers/rnn" / name).read_text() for name in FILES}
    for name, text in tests.items():
        if text.count(IMPORT) != 1:
            raise ValueError(f"expected one line {IMPORT.strip()!r} in {name}")
    return tests


def run(tests: dict[str, str], pytest_options: list[str]) -> list[tuple[str, str]]:
    """Runs the tests in a folder of their own.

    Returns:
        Each test's name and how it ended: "passed", "skipped: …" or "failed: …".
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in tests.items():
            (pathlib.Path(folder) / name).write_text(text)
        (pathlib.Path(folder) / "pytest.ini").write_text(
            "[pytest]\nmarkers = requires_trainable_backend: as Keras says\n"
        )
        report = pathlib.Path(folder) / "report.xml"
        program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
        files = [name for name in tests if name.endswith("_test.py")]
        arguments = ["-c", program, "-q", f"--junitxml={report}", *pytest_options, *files]
        done = fresh_process.run(arguments, folder=folder, timeout=3600)
        print(done.stdout, done.stderr, sep="\n")
        cases = xml.etree.ElementTree.parse(report).iter("testcase")
        results = []
        for case in cases:
            outcome = "passed"
            for child in case:
                if child.tag in ("failure", "error", "skipped"):
                    kind = "skipped" if child.tag == "skipped" else "failed"
                    outcome = f"{kind}: {child.get('message', '').partition(chr(10))[0]}"
            results.append((f"{case.get('classname')}.{case.get('name')}", outcome))
        return results


def report(results: list[tuple[str, str]], what: str) -> int:
    """Prints which tests did not pass and how many did; returns the exit status."""
    for name, outcome in results:
        if outcome != "passed":
            print(f"{name} {outcome}")
    passed = sum(outcome == "passed" for _, outcome in results)
    print(f"{passed} of {len(results)} {what} passed")
    return int(any(outcome.startswith("failed") for _, outcome in results) or not results)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=pathlib.Path, metavar="KERAS_SOURCE")
    parser.add_argument("--unchanged", action="store_true")
    parser.add_argument("--no-tf32", action="store_true")
    parser.add_argument("--jit-compile", action="store_true")
    options, pytest_options = parser.parse_known_args(arguments)
    tests = find_tests(options.source)
    if not options.unchanged:
        tests = {name: text.replace(IMPORT, CHANGED_IMPORT) for name, text in tests.items()}
    tests["conftest.py"] = NO_TF32 * options.no_tf32 + JIT_COMPILE * options.jit_compile
    return report(run(tests, pytest_options), f"tests of Keras {keras.__version__}")


if __name__ == "__main__":
    sys.exit(main())
