"""Measures how training on several GPUs of a machine grows with their number.

benchmarks/command.py says how to run it, on a machine of two GPUs; `--only` names measurements.
Both systems train the model of examples/several_gpus.py on the same text: the loop of that example,
and PyTorch's `DistributedDataParallel`.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import command, pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOWS, STEPS = 5, 96
TEXT = pathlib.Path(tempfile.gettempdir(), "several_gpus.npy")  # The text's lines.
LOOP, GRAPH = "the example's loop", "the same without XLA"
TORCH = "PyTorch's `DistributedDataParallel`"


def measurements() -> list[tuple[str, int, int]]:
    """Returns what is measured: its kind, its number of GPUs and the lines of each GPU's batch."""
    speeds = [(kind, lines) for lines in (64, 256) for kind in (LOOP, TORCH)]
    speeds.append((GRAPH, 64))
    return [(kind, gpus, lines) for kind, lines in speeds for gpus in (1, 2)]


def _windows(run: Callable[[], None]) -> list[float]:
    """Milliseconds of a step, for each window of the steps that `run` runs and waits for."""
    run()
    milliseconds = []
    for _ in range(WINDOWS):
        start = time.perf_counter()
        run()
        milliseconds.append(1e3 * (time.perf_counter() - start) / STEPS)
    return milliseconds


def _example() -> Any:
    from absl import flags

    sys.path.insert(0, str(ROOT / "examples"))
    import several_gpus

    flags.FLAGS.mark_as_parsed()
    return several_gpus


def _text() -> Any:
    """Returns the lines of the example's text, which the first measurement keeps for the others."""
    import numpy as np

    if not TEXT.exists():
        np.save(TEXT, _example().read_lines()[0])
    return np.load(TEXT)


def _loop(kind: str, gpus: int, lines: int) -> list[float]:
    """Runs the example's loop."""
    example = _example()
    import numpy as np

    example.FLAGS.replicas, example.FLAGS.batch_size = gpus, lines
    example.FLAGS.jit_compile = kind != GRAPH
    text = _text()
    devices = example.replica_devices()
    replicas = [example.Replica(int(text.max()) + 1, device, gpus) for device in devices]
    data = [iter(example.batches(text, index, 0)) for index in range(gpus)]
    steps = example.steps_of(replicas)

    def run() -> None:
        losses = [steps(*data) for _ in range(STEPS // example.FLAGS.steps_per_call)]
        for of_call in losses:
            np.mean([loss.numpy() for loss in of_call])

    return _windows(run)


def _torch_replica(rank: int, gpus: int, lines: int, folder: str) -> None:
    """Trains a replica, and writes its times if it is the first."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.cuda.set_device(rank)
    if gpus > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        torch.distributed.init_process_group("nccl", rank=rank, world_size=gpus)
    text = torch.tensor(_text()).cuda()
    vocabulary = int(text.max()) + 1

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocabulary, 64)
            self.lstm = torch.nn.LSTM(64, 512, 2, batch_first=True)
            self.dense = torch.nn.Linear(512, vocabulary)

        def forward(self, ids):
            return self.dense(self.lstm(self.embedding(ids))[0])

    model = Model().cuda()
    if gpus > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    criterion = torch.nn.CrossEntropyLoss(ignore_index=0)
    generator = torch.Generator("cuda").manual_seed(rank)

    def run() -> None:
        for _ in range(STEPS):
            rows = torch.randint(len(text), (lines,), generator=generator, device="cuda")
            batch = text[rows]
            optimizer.zero_grad()
            logits = model(batch[:, :-1])
            criterion(logits.reshape(-1, vocabulary), batch[:, 1:].reshape(-1)).backward()
            optimizer.step()
        torch.cuda.synchronize()

    milliseconds = _windows(run)
    if rank == 0:
        pathlib.Path(folder, "ms.json").write_text(json.dumps(milliseconds))
    if gpus > 1:
        torch.distributed.destroy_process_group()


def _torch(gpus: int, lines: int) -> list[float]:
    import torch

    _text()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_torch_replica, (gpus, lines, folder), nprocs=gpus)
        return json.loads(pathlib.Path(folder, "ms.json").read_text())


def measure(kind: str, gpus: int, lines: int) -> None:
    ms = _torch(gpus, lines) if kind == TORCH else _loop(kind, gpus, lines)
    print(json.dumps({"kind": kind, "gpus": gpus, "lines": lines, "ms": ms}))


def _run_all(options: argparse.Namespace) -> None:
    named = re.compile(options.only)
    calls = [each for each in measurements() if named.search("; ".join(map(str, each)))]
    command.measure_each("several_gpus", calls, options, "TensorFlow", "Keras", "PyTorch")


def page(path: pathlib.Path) -> str:
    """Returns the page of a file of results."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    environment = [row["environment"] for row in rows if "environment" in row][-1]
    ms = {
        (row["kind"], row["gpus"], row["lines"]): statistics.median(row["ms"])
        for row in rows
        if "ms" in row
    }
    table = []
    for kind, gpus, lines in ms:
        if gpus == 1:
            one, two = ms[kind, 1, lines], ms.get((kind, 2, lines))
            of_two = two and [f"{2 * one / two:.2f}", f"{2e3 * lines / two:,.0f}", f"{two:.2f}"]
            ratio, speed, time = of_two or "–––"
            speeds = [f"{1e3 * lines / one:,.0f}", speed]
            table.append([kind, ratio, str(lines), *speeds, f"{one:.2f}", time])
    titles = ["", "ratio", "lines of each GPU", "one GPU", "two GPUs", "ms, one", "ms, two"]
    text = [
        "# Training on two GPUs",
        "This page is generated by `python -m benchmarks.several_gpus`; do not edit it by hand.",
        f"Measured with: {pages.listed(environment)}.",
        "Lines of text that the model of examples/several_gpus.py is trained on in a second: two"
        " LSTM layers of 512 units, 100 time steps, float32 with TF32. Each GPU has a batch of its"
        " own. PyTorch runs the full length of padded sequences, which is faster for it than"
        f" packed ones. Medians of {WINDOWS} windows of {STEPS} steps.",
        pages.table(titles, table),
    ]
    return "\n\n".join(text) + "\n"


if __name__ == "__main__":
    command.run(__doc__, _run_all, page)
