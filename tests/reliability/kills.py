"""Programs that are killed while they train, convert and keep files, and what they lose."""

import collections
import pathlib
import random
import shutil
import sys
import tempfile
import time
from typing import Any

import forks
import keras
import numpy as np
import training

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__

RESUMED = "training runs that were killed, resumed, and ended with the bits of an undisturbed run"
SUFFIXES = (".keras", ".pt", ".safetensors", ".onnx")


def run(count: int, seed: int) -> dict[str, Any]:
    """Kills as many programs that train, and half as many conversions."""
    rng = random.Random(seed)
    failures: list[str] = []
    counts: dict[str, collections.Counter] = {}
    seen: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        for kill, share in ((kill_training, count), (kill_conversions, count // 2)):
            try:
                kill(directory, share, rng, counts, seen)
            except (AssertionError, RuntimeError, TimeoutError) as error:
                failures.append(f"{kill.__name__}: {error}")
    return {"counts": counts, "seen": seen, "failures": failures}


def kill_training(
    directory: pathlib.Path,
    count: int,
    rng: random.Random,
    counts: dict[str, collections.Counter],
    seen: collections.Counter,
) -> None:
    """Kills training runs again and again, until they come to their ends."""
    ends = counts.setdefault("training", collections.Counter())
    start = time.monotonic()
    runs = training.Training(directory)
    duration = time.monotonic() - start
    work, log = directory / "work", directory / "work.log"
    kills_of_run = 0
    while ends.total() < count or kills_of_run:
        process = runs.start(work, log)
        if ends.total() < count:
            wait_for_moment(process, work, duration, rng)
            last_seen = training.newest_step(work)
            if process.kill():
                step = runs.check_kept(work, last_seen)
                is_inside = bool(training.leftovers(work))
                ends[
                    "inside a write"
                    if is_inside
                    else "between writes"
                    if step
                    else "before the first checkpoint"
                ] += 1
                kills_of_run += 1
                continue
        elif process.wait() != 0:
            raise AssertionError(f"a resumed run failed:\n{process.printed()}")
        runs.check_finished(work)
        seen[RESUMED] += kills_of_run > 0
        seen["most kills of one training run"] = max(
            kills_of_run, seen["most kills of one training run"]
        )
        kills_of_run = 0
        shutil.rmtree(work)


def wait_for_moment(
    process: forks.Fork, work: pathlib.Path, duration: float, rng: random.Random
) -> None:
    """Waits for a random moment or, in half of the cases, for one of the next writes."""
    end = time.monotonic() + rng.uniform(0, duration)
    writes, wanted, was_writing = 0, rng.randrange(1, 9), False
    waits_for_write = rng.random() < 0.5
    while not process.has_ended():
        if not waits_for_write:
            if time.monotonic() > end:
                return
            time.sleep(0.002)
            continue
        is_writing = bool(training.leftovers(work))
        writes += is_writing and not was_writing
        was_writing = is_writing
        if writes == wanted:
            # The kill comes at a random moment during the write.
            time.sleep(rng.uniform(0, 0.003))
            return


def kill_conversions(
    directory: pathlib.Path,
    count: int,
    rng: random.Random,
    counts: dict[str, collections.Counter],
    seen: collections.Counter,
) -> None:
    """Kills `python -m cudnn_rnn_tf convert` while it replaces a file by another."""
    ends = counts.setdefault("convert", collections.Counter())
    sources = [directory / f"{index}.keras" for index in range(2)]
    log = directory / "convert.log"
    for index, source in enumerate(sources):
        assert forks.Fork(lambda s=source, i=index: _write_model(s, i), log).wait() == 0
    contents = [_numbers(source, directory) for source in sources]
    assert contents[0] != contents[1]
    for suffix in SUFFIXES:
        folder = directory / f"target{suffix}"
        folder.mkdir()
        target = folder / f"m{suffix}"
        start = time.monotonic()
        assert _convert(sources[0], target, log).wait() == 0
        duration = time.monotonic() - start
        kills = 0
        while kills < count // len(SUFFIXES):
            process = _convert(rng.choice(sources), target, log)
            time.sleep(rng.uniform(0, duration))
            was_running = process.kill()
            assert _numbers(target, directory) in contents, f"{target.name} is neither"
            if not was_running:
                continue
            kills += 1
            partial = [path for path in folder.iterdir() if path != target]
            ends["inside a write" if partial else "between writes"] += 1
            for path in partial:
                shutil.rmtree(path)
    seen["conversions that were killed and left the whole old file or the whole new one"] += (
        ends.total()
    )


def _convert(source: pathlib.Path, target: pathlib.Path, log: pathlib.Path) -> forks.Fork:
    arguments = ["convert", str(source), str(target), "--force"]
    return forks.Fork(lambda: sys.exit(__main__.main(arguments)), log)


def _numbers(path: pathlib.Path, directory: pathlib.Path) -> bytes:
    """A network's weights, as the same bytes for the same network, whatever keeps it."""
    plain = directory / "plain.safetensors"
    process = _convert(path, plain, directory / "plain.log")
    assert process.wait() == 0, f"{path.name} cannot be read:\n{process.printed()}"
    return plain.read_bytes()


def _write_model(path: pathlib.Path, seed: int) -> None:
    layer = crnn.CudnnGRU(2, 64)
    model = keras.Sequential([keras.Input((None, 64)), layer])
    layer.kernel.assign(np.random.default_rng(seed).normal(size=layer.params_size()))
    model.save(path)
