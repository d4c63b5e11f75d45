"""Programs in C++ that need no TensorFlow, compiled when they are wanted."""

import json
import pathlib
import subprocess
import sys
import tempfile

import record

sys.path.insert(0, str(record.ROOT / "tests"))
from test_fake_gpu import compiled


def caches_under_attack(directory: pathlib.Path) -> pathlib.Path:
    """The program of that name."""
    sources = ["kernels/gpu/compiled_code_cache.cc"]
    return compiled(directory, "caches_under_attack", sources)


def attack_caches(what: str, count: int, seed: int) -> tuple[dict[str, dict[str, int]], list[str]]:
    """What came of it, by kind of file, and the failures."""
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory, "caches")
        folder.mkdir()
        return attack(caches_under_attack(pathlib.Path(directory)), folder, what, count, seed)


def attack(
    program: pathlib.Path, folder: pathlib.Path, what: str, count: int, seed: int
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Likewise, with a program that is there and in a folder of one's own."""
    done = subprocess.run(
        [program, folder, what, str(count), str(seed)], capture_output=True, text=True
    )
    if done.returncode != 0:
        return {}, [f"caches, {what}: status {done.returncode}, {done.stdout.strip()}"]
    return json.loads(done.stdout), []
