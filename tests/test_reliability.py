"""Tests short runs of what `make reliability` does for long."""

import json
import pathlib
import subprocess
import sys

import pytest
import test_fake_gpu

RELIABILITY = pathlib.Path(__file__).with_name("reliability")


def test_page_is_that_of_the_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(RELIABILITY))
    import reliability

    rows = reliability.read()
    assert reliability.PAGE.read_text() == reliability.text(rows)
    # A number on the page is the sum over the runs.
    calls = [row for row in rows if row["run"] == "calls"]
    total = sum(n for row in calls for ends in row["counts"].values() for n in ends.values())
    assert f"| [calls](#calls) | {total:,} calls |" in reliability.text(rows)
    with_failure = [*rows, {**calls[0], "failures": ["it fell over"]}]
    failure = f"* Failed in [run](#the-runs) {len(with_failure)}: it fell over"
    assert failure in reliability.text(with_failure)


@pytest.mark.slow
def test_caches_under_attack(tmp_path):
    sources = ["kernels/gpu/compiled_code_cache.cc"]
    program = test_fake_gpu.compiled(tmp_path, "caches_under_attack", sources)
    folder = tmp_path / "caches"
    folder.mkdir()
    for what in ("kills", "damage", "full"):
        done = subprocess.run([program, folder, what, "20", "1"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert set(json.loads(done.stdout)) == {"kernel code"}
    # The program notices if something that was stored is missing.
    next((folder / "code").iterdir()).unlink()
    done = subprocess.run([program, folder, "kills", "20", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and "the code" in done.stdout


FORKS = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import forks

log = pathlib.Path(sys.argv[2])
for program, status in (
    (lambda: print("well"), 0),
    (lambda: sys.exit("badly"), 1),
    (lambda: sys.exit(3), 3),
    (lambda: 1 / 0, 1),
):
    fork = forks.Fork(program, log)
    print(fork.wait() == status, fork.printed().splitlines()[-1:])
fork = forks.Fork(lambda: time.sleep(100), log)
print(not fork.has_ended() and fork.kill())
forks.HANG_SECONDS = 0.1
try:
    forks.Fork(lambda: time.sleep(100), log).wait()
except TimeoutError:
    print("hung")
"""


def test_forks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, RELIABILITY, tmp_path / "log"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    expected = ["True ['well']", "True ['badly']", "True []"]
    assert lines == [*expected, "True ['ZeroDivisionError: division by zero']", "True", "hung"]
