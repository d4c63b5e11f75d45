"""Builds what is compiled here with sanitizers, and runs it: `make sanitize`.

ThreadSanitizer watches the pool, the schedule and the predictor in a program without Python.
AddressSanitizer and UndefinedBehaviorSanitizer watch the Python module and, unless it is to be
fast, the op library, while they are fuzzed: what they report ends a child process, which the fuzzer
reports. To be fast, what all processors have is built alone: most lines are those of the other
instruction sets as well, and the sanitizers make a compiler take minutes for each of these.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILDS = ROOT / ".venv" / "sanitize"
# Some kernels map programs to addresses that ThreadSanitizer does not know. Without randomization,
# it gets the usual ones.
FIXED_ADDRESSES = ["setarch", "--addr-no-randomize"]


def build(name: str, sanitizers: str, with_ops: bool, *targets: str) -> pathlib.Path:
    """Configures and builds; returns the build's directory."""
    directory = BUILDS / name
    cmake = pathlib.Path(sys.executable).with_name("cmake")
    pybind11 = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run(
        [
            *(cmake, "-S", ROOT, "-B", directory, "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={cmake.with_name('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11}",
            f"-DCRNN_SANITIZE={sanitizers}",
            f"-DCRNN_BUILD_OPS={'ON' if with_ops else 'OFF'}",
            f"-DCRNN_BASELINE_ONLY={'OFF' if with_ops else 'ON'}",
            *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g -DNDEBUG"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    # The package finds the libraries by file name in the build's directory, beside a copy of the
    # Python files.
    selected = [argument for target in targets for argument in ("--target", target)]
    subprocess.run([cmake, "--build", directory, *selected], check=True, stdout=subprocess.DEVNULL)
    return directory


def run(*command: object, **environment: str) -> None:
    print("$", *command, flush=True)
    subprocess.run([*map(str, command)], check=True, env={**os.environ, **environment})


def watch_threads() -> None:
    directory = build("thread", "thread", False, "predictor_in_many_threads")
    program = directory / "predictor_in_many_threads"
    # A single thread whose calls follow each other gets helpers; eight threads compete for them.
    for threads, calls in ((1, 3000), (8, 300)):
        run(*FIXED_ADDRESSES, program, threads, calls)


def watch_memory(targets: str, with_ops: bool, seconds: float, seed: int) -> None:
    directory = build("memory", "address,undefined", with_ops)
    package = directory / "package"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "cudnn_rnn_tf", package / "cudnn_rnn_tf", ignore=ignored)
    native = package / "cudnn_rnn_tf" / "native"
    for file in (*directory.glob("*.so"), directory / "build_info.py"):
        shutil.copy(file, native)
    libraries = [
        subprocess.run(
            ["g++", f"-print-file-name={library}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for library in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    run(
        # Without site, no .pth files are read, so that the editable installation does not come
        # first.
        *(sys.executable, "-S", ROOT / "tests" / "fuzz" / "fuzz.py"),
        *(f"--targets={targets}", f"--seconds={seconds}", f"--seed={seed}"),
        PYTHONPATH=os.pathsep.join([str(package), sysconfig.get_path("purelib")]),
        # The libraries must be loaded before Python, which is not built with them. Leaks are not
        # detected because Python does not return its own memory at its end.
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:"
        "max_allocation_size_mb=8192",
        UBSAN_OPTIONS="abort_on_error=1:print_stacktrace=1",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="build less, as said above")
    parser.add_argument("--seconds", type=float, help="of fuzzing; 20, or 300 with the op library")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seconds = options.seconds or (20 if options.fast else 300)
    watch_threads()
    targets = "native_module" if options.fast else "native_module,raw_ops,graphs"
    watch_memory(targets, not options.fast, seconds, options.seed)
    print("No sanitizer had anything to report.")


if __name__ == "__main__":
    main()
