"""Measures how training on several GPUs of a machine grows with their number.

On a machine of two GPUs, in the root of the repository:

    python -m benchmarks.several_gpus --output=FILE.jsonl --commit=HASH [--only=REGEX]

adds a line for each measurement to the file. Anywhere, from this file,

    python -m benchmarks.several_gpus --output=FILE.jsonl --report

writes the page beside it. All systems train the model of examples/several_gpus.py on the same text:
the loop of that example, `fit` under `MirroredStrategy`, and PyTorch's `DistributedDataParallel`.
Every measurement has a process of its own.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

from benchmarks import gpu_environment, pages

_OUTPUT = flags.DEFINE_string("output", None, "File of the results, a line each.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_ONLY = flags.DEFINE_string("only", "", "A regular expression: the measurements to make.")
_REPORT = flags.DEFINE_bool("report", False, "Write the page instead of measuring.")
_CHILD = flags.DEFINE_string("child", None, "A measurement, for itself.")
_TEXT = flags.DEFINE_string("text", None, "The file of the text's lines, for a measurement.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOWS, STEPS = 5, 96
LOOP, GRAPH = "the example's loop", "the same without XLA"
FIT, DROP_IN = "`fit`, `CudnnLSTM`", "`fit`, drop-in `LSTM`"
TORCH = "PyTorch's `DistributedDataParallel`"


def measurements() -> list[tuple[str, int, int]]:
    """Returns what is measured: its kind, its number of GPUs and the lines of each GPU's batch."""
    speeds = [(kind, lines) for lines in (64, 256) for kind in (LOOP, TORCH)]
    speeds += [(kind, 64) for kind in (GRAPH, FIT, DROP_IN)]
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
    sys.path.insert(0, str(ROOT / "examples"))
    import several_gpus

    return several_gpus


def _save_text(path: str) -> None:
    import numpy as np

    lines, _ = _example().read_lines()
    np.save(path, lines)


def _loop(kind: str, gpus: int, lines: int) -> dict[str, Any]:
    """Runs the example's loop."""
    example = _example()
    import numpy as np

    flags.FLAGS.replicas, flags.FLAGS.batch_size = gpus, lines
    flags.FLAGS.jit_compile = kind != GRAPH
    text = np.load(_TEXT.value)
    devices = example.replica_devices()
    replicas = [example.Replica(int(text.max()) + 1, device, gpus) for device in devices]
    data = [iter(example.batches(text, index, 0)) for index in range(gpus)]
    steps = example.steps_of(replicas)

    def run() -> None:
        losses = [steps(*data) for _ in range(STEPS // flags.FLAGS.steps_per_call)]
        for of_call in losses:
            np.mean([loss.numpy() for loss in of_call])

    return {"ms": _windows(run)}


def _fit(kind: str, gpus: int, lines: int) -> dict[str, Any]:
    """Trains by Keras's `fit` under `MirroredStrategy`."""
    example = _example()
    import keras
    import numpy as np
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    text = np.load(_TEXT.value)
    vocabulary = int(text.max()) + 1
    flags.FLAGS.batch_size = gpus * lines
    devices = [f"GPU:{index}" for index in range(gpus)]
    data = example.batches(text, 0, 0).map(lambda ids: (ids[:, :-1], ids[:, 1:])).prefetch(8)
    with tf.distribute.MirroredStrategy(devices).scope():
        if kind == FIT:
            model = example.make_model(vocabulary)
        else:
            layers = [crnn.keras.LSTM(512, return_sequences=True) for _ in range(2)]
            model = keras.Sequential(
                [
                    keras.Input((text.shape[1] - 1,), dtype="int64"),
                    keras.layers.Embedding(vocabulary, 64, mask_zero=True),
                    *layers,
                    keras.layers.Dense(vocabulary),
                ]
            )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss)
    return {"ms": _windows(lambda: model.fit(data, steps_per_epoch=STEPS, verbose=0))}


def _torch_replica(rank: int, gpus: int, lines: int, text_file: str, folder: str) -> None:
    """Trains a replica, and writes its times if it is the first."""
    import numpy as np
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.cuda.set_device(rank)
    if gpus > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        torch.distributed.init_process_group("nccl", rank=rank, world_size=gpus)
    text = torch.tensor(np.load(text_file)).cuda()
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


def _torch(gpus: int, lines: int) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _torch_replica, (gpus, lines, _TEXT.value, folder), nprocs=gpus, join=True
        )
        return {"ms": json.loads(pathlib.Path(folder, "ms.json").read_text())}


def _measure(kind: str, gpus: int, lines: int) -> dict[str, Any]:
    if kind == TORCH:
        return _torch(gpus, lines)
    return (_fit if kind in (FIT, DROP_IN) else _loop)(kind, gpus, lines)


def _run_all(output: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder, output.open("a") as file:
        text = f"{folder}/text.npy"
        command = [sys.executable, "-m", "benchmarks.several_gpus", "--output=-", f"--text={text}"]
        subprocess.run([*command, "--child=text"], cwd=ROOT, check=True)
        print(json.dumps({"environment": gpu_environment.environment(_COMMIT.value)}), file=file)
        for measurement in measurements():
            if not re.search(_ONLY.value, "; ".join(map(str, measurement))):
                continue
            process = subprocess.run(
                ["timeout", "100", *command, f"--child={json.dumps(measurement)}"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode:
                print(measurement, process.stderr[-1500:], file=sys.stderr, flush=True)
                continue
            result = json.loads(process.stdout.splitlines()[-1])
            kind, gpus, lines = measurement
            row = {"kind": kind, "gpus": gpus, "lines": lines, **result}
            print(json.dumps(row), file=file, flush=True)
            print(row, flush=True)


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
            speeds = [f"{1e3 * lines / one:,.0f}", *(["–"] * 2)]
            if two:
                speeds[1:] = [f"{2e3 * lines / two:,.0f}", f"{2 * one / two:.2f}"]
            table.append([kind, str(lines), *speeds, f"{one:.2f}", f"{two:.2f}" if two else "–"])
    titles = ["", "lines of each GPU", "one GPU", "two GPUs", "ratio", "ms, one", "ms, two"]
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


def main(_: list[str]) -> None:
    path = pathlib.Path(_OUTPUT.value)
    if _CHILD.value == "text":
        _save_text(_TEXT.value)
    elif _CHILD.value:
        print(json.dumps(_measure(*json.loads(_CHILD.value))))
    elif _REPORT.value:
        path.with_suffix(".md").write_text(page(path))
    else:
        _run_all(path)


if __name__ == "__main__":
    app.run(main)
