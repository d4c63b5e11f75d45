#!/usr/bin/env python3
"""Builds the source distribution and a wheel into dist/, looks into them, and tries the wheel.

The wheel is for the Python that runs this. It has an op library for each TensorFlow of
`TENSORFLOWS`, each built from the source distribution against that TensorFlow, and is tried in a
fresh virtual environment with each. An op library knows nothing of Python: with --ops-from, those
in the wheel of another Python are taken, which need not have been built again, and whose TensorFlow
need not exist for this Python.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Those of `dependencies` in pyproject.toml.
TENSORFLOWS = ("2.19", "2.20", "2.21")
# Those whose packages have what the library for XLA is built with.
XLA_TENSORFLOWS = TENSORFLOWS[1:]
NATIVE = "cudnn_rnn_tf/native/"
# Run in an empty folder, with the TensorFlow.
SMOKE_TEST = """
import sys
import keras
import numpy as np
import tensorflow as tf
import cudnn_rnn_tf as crnn

assert tf.__version__.startswith(sys.argv[1] + "."), tf.__version__
assert crnn.op_library_path().endswith(f"_tf{sys.argv[1]}.so"), crnn.op_library_path()
keras.utils.set_random_seed(0)
inputs = np.random.normal(size=(64, 6, 3)).astype("float32")
targets = inputs.sum((1, 2))[:, np.newaxis]
lstm = crnn.CudnnLSTM(2, 8, direction="bidirectional", return_sequences=False)
model = keras.Sequential([keras.Input((6, 3)), lstm, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
before = model.evaluate(inputs, targets, verbose=0)
model.fit(inputs, targets, batch_size=16, epochs=10, verbose=0)
after = model.evaluate(inputs, targets, verbose=0)
assert after < before / 2, (before, after)
model.save("model.keras")
expected = model.predict(inputs, verbose=0)
loaded = keras.saving.load_model("model.keras")
np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), expected)
model.export("exported", verbose=False)
exported = tf.saved_model.load("exported")
np.testing.assert_allclose(exported.serve(inputs), expected, rtol=1e-5, atol=1e-6)
"""


def library_names(tensorflow: str) -> list[str]:
    kinds = ["ops", "xla"] if tensorflow in XLA_TENSORFLOWS else ["ops"]
    return [f"{NATIVE}libcudnn_rnn_tf_{kind}_tf{tensorflow}.so" for kind in kinds]


def run(*command: object, **environment: str) -> None:
    print("$", *command, *(f"{name}={value}" for name, value in environment.items()), flush=True)
    subprocess.run([*map(str, command)], check=True, env={**os.environ, **environment})


def run_module(*command: object, **environment: str) -> None:
    # Where this runs in a virtual environment, tools call programs beside its Python.
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(sys.executable, "-m", *command, PATH=path, **environment)


def only(directory: pathlib.Path, pattern: str) -> pathlib.Path:
    (found,) = directory.glob(pattern)
    return found


def build_sdist(directory: pathlib.Path) -> pathlib.Path:
    run_module("build", "--sdist", "--outdir", directory, ROOT)
    return only(directory, "*.tar.gz")


def build_wheel(sdist: pathlib.Path, directory: pathlib.Path, tensorflow: str) -> pathlib.Path:
    """A wheel as pip builds it, with one op library."""
    run_module(
        *("pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "-w", directory, sdist),
        CUDNN_RNN_TF_TENSORFLOW=f"{tensorflow}.*",
    )
    return only(directory, "*.whl")


def build_wheels(sdist: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """The wheel with all op libraries."""
    wheels = [build_wheel(sdist, directory / version, version) for version in TENSORFLOWS]
    for wheel, version in zip(wheels[1:], TENSORFLOWS[1:], strict=True):
        add_libraries(wheels[0], wheel, [version])
    return wheels[0]


def build_module(sdist: pathlib.Path, directory: pathlib.Path, ops: pathlib.Path) -> pathlib.Path:
    """The wheel with the op libraries of another."""
    run_module(
        *("pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "-w", directory),
        *("-C", "cmake.define.CRNN_BUILD_OPS=OFF", sdist),
    )
    wheel = only(directory, "*.whl")
    add_libraries(wheel, ops, TENSORFLOWS)
    return wheel


def add_libraries(wheel: pathlib.Path, source: pathlib.Path, versions: tuple | list) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run_module("wheel", "unpack", "--dest", directory, wheel)
        unpacked = only(pathlib.Path(directory), "*")
        with zipfile.ZipFile(source) as archive:
            for name in (name for version in versions for name in library_names(version)):
                (unpacked / name).write_bytes(archive.read(name))
                (unpacked / name).chmod(0o755)
        run_module("wheel", "pack", "--dest-dir", wheel.parent, unpacked)


def dynamic_section(library: pathlib.Path) -> str:
    return subprocess.run(
        ["readelf", "--dynamic", "--wide", library], check=True, capture_output=True, text=True
    ).stdout


def check(wheel: pathlib.Path) -> list[str]:
    """Lists what is wrong with a wheel."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    problems = []
    if f"-{python}-{python}-manylinux_2_" not in wheel.name:
        problems.append(f"{wheel.name} is not tagged {python}-{python}-manylinux_2_…")
    libraries = [
        *(name for version in TENSORFLOWS for name in library_names(version)),
        NATIVE + "_native" + sysconfig.get_config_var("EXT_SUFFIX"),
    ]
    expected = [
        *("cudnn_rnn_tf/__init__.py", NATIVE + "__init__.py", NATIVE + "build_info.py"),
        *("cudnn_rnn_tf/py.typed", *libraries),
    ]
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as directory:
        names = archive.namelist()
        problems += [f"{name} is missing" for name in expected if name not in names]
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            problems.append("the license is missing")
        for name in names:
            is_source = name.endswith((".cc", ".h", ".in", "BUILD"))
            if not name.startswith("cudnn_rnn_tf") or is_source:
                problems.append(f"{name} does not belong here")
            if ".so" in name:
                if name not in libraries:
                    problems.append(f"{name} does not belong here")
                library = pathlib.Path(archive.extract(name, directory))
                if re.search(r"\((RPATH|RUNPATH)\)", dynamic_section(library)):
                    problems.append(f"{name} has an RPATH")
                for place in (str(ROOT), sys.prefix, tempfile.gettempdir() + "/"):
                    if place.encode() in library.read_bytes():
                        problems.append(f"{name} mentions {place}")
    return problems


def smoke_test(wheel: pathlib.Path, tensorflow: str) -> bool:
    """Tries a wheel in a fresh environment; false if its Python has no such TensorFlow."""
    with tempfile.TemporaryDirectory(dir=DIST) as directory:
        venv.create(directory, with_pip=True)
        python = pathlib.Path(directory, "bin", "python")
        install = [python, "-m", "pip", "install", "--quiet", f"tensorflow=={tensorflow}.*"]
        if subprocess.run([*install, "--dry-run", "--no-deps"], capture_output=True).returncode:
            return False
        run(*install, wheel)
        print(f"Trying {wheel.name} with TensorFlow {tensorflow}", flush=True)
        subprocess.run([python, "-c", SMOKE_TEST, tensorflow], check=True, cwd=directory)
        run(python.with_name("cudnn-rnn-tf"), "info")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops-from", type=pathlib.Path, metavar="WHEEL", help="see above")
    options = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        sdist = pathlib.Path(shutil.copy(build_sdist(directory / "sdist"), DIST))
        if options.ops_from:
            built = build_module(sdist, directory / "module", options.ops_from)
        else:
            built = build_wheels(sdist, directory)
        # These are in the process when a library of ours is loaded.
        present = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2", "libcudnn_rnn_tf_ops*")
        run_module(
            *("auditwheel", "repair", *(f"--exclude={library}" for library in present)),
            *("--wheel-dir", directory / "repaired", built),
        )
        wheel = pathlib.Path(shutil.copy(only(directory / "repaired", "*.whl"), DIST))
    run_module("twine", "check", "--strict", sdist, wheel)
    problems = check(wheel)
    if problems:
        raise SystemExit("\n".join([f"{wheel} is not in order:", *problems]))
    for tensorflow in TENSORFLOWS:
        if not smoke_test(wheel, tensorflow):
            print(f"Not tried: TensorFlow {tensorflow} does not exist for this Python")
    print(f"{wheel} is good: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
