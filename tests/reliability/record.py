"""What a run was of, and what came of it: a line of JSON for each."""

import datetime
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Children start with the same option as this process. Without site, a copy of the package takes
# precedence over an installed one.
PYTHON = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
RESULTS = ROOT / "benchmarks" / "results" / "reliability.jsonl"


def environment() -> dict[str, Any]:
    """The commit, the versions and the machine, as far as they can be known."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            **{
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "numpy", "torch", "onnx", "h5py")
                if _is_installed(name)
            },
        },
        "machine": _machine(),
    }


def append(row: dict[str, Any], path: pathlib.Path = RESULTS) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def read(path: pathlib.Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _commit() -> str:
    """The newest commit; "+" says that there were other changes to what runs."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--", "cudnn_rnn_tf", "kernels", "ops", "tests")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + "+" * bool(changed)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _machine() -> str:
    cpus = pathlib.Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()
