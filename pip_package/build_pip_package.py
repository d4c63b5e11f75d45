#!/usr/bin/env python3
"""Builds a wheel into dist/, looks into it, and tries it in a fresh virtual environment.

Usage: build_pip_package.py [options for pip wheel, such as --no-build-isolation]
"""

import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE_TEST = """
import numpy as np
import cudnn_rnn_tf as crnn

print(crnn.info())
layer = crnn.CudnnLSTM(num_layers=2, num_units=3, direction="bidirectional")
outputs = np.asarray(layer(np.ones([2, 5, 4], np.float32)))
assert outputs.shape == (2, 5, 6) and np.isfinite(outputs).all() and outputs.any(), outputs
"""


def build(options: list[str]) -> pathlib.Path:
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", directory, *options, ROOT],
            check=True,
        )
        (built,) = pathlib.Path(directory).glob("*.whl")
        wheel = ROOT / "dist" / built.name
        wheel.parent.mkdir(exist_ok=True)
        wheel.write_bytes(built.read_bytes())
    return wheel


def dynamic_section(library: pathlib.Path) -> str:
    return subprocess.run(
        ["readelf", "--dynamic", "--wide", library], check=True, capture_output=True, text=True
    ).stdout


def check(wheel: pathlib.Path) -> list[str]:
    """Lists what is wrong with a wheel."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = re.sub(r"\W", "_", sysconfig.get_platform())
    problems = []
    if not wheel.name.endswith(f"-{python}-{python}-{platform}.whl"):
        problems.append(f"{wheel.name} is not tagged {python}-{python}-{platform}")
    native = "cudnn_rnn_tf/native/"
    expected = [
        "cudnn_rnn_tf/__init__.py",
        native + "__init__.py",
        native + "build_info.py",
        native + "libcudnn_rnn_tf_ops.so",
        native + "_native" + sysconfig.get_config_var("EXT_SUFFIX"),
    ]
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as directory:
        names = archive.namelist()
        problems += [f"{name} is missing" for name in expected if name not in names]
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            problems.append("the license is missing")
        for name in names:
            if not name.startswith("cudnn_rnn_tf") or name.endswith((".cc", ".in", "BUILD")):
                problems.append(f"{name} does not belong here")
            if name.endswith(".so"):
                if name not in expected:
                    problems.append(f"{name} does not belong here")
                library = pathlib.Path(archive.extract(name, directory))
                if re.search(r"\((RPATH|RUNPATH)\)", dynamic_section(library)):
                    problems.append(f"{name} has an RPATH")
                for place in (str(ROOT), sys.prefix, tempfile.gettempdir() + "/"):
                    if place.encode() in library.read_bytes():
                        problems.append(f"{name} mentions {place}")
    return problems


def smoke_test(wheel: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        python = pathlib.Path(directory, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        subprocess.run([python, "-c", SMOKE_TEST], check=True, cwd=directory)


def main() -> None:
    wheel = build(sys.argv[1:])
    problems = check(wheel)
    if problems:
        raise SystemExit("\n".join([f"{wheel} is not in order:", *problems]))
    smoke_test(wheel)
    print(f"{wheel} is good")


if __name__ == "__main__":
    main()
