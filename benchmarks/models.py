"""Times the recurrent part of models that people train, beside PyTorch and Keras.

benchmarks/command.py says how to run it: the models of models.json that are marked as core ones, in
some minutes; `benchmarks.networks` takes those of networks.json. `--all` times every model,
`--only=NAME,…` the named ones, and `--system=SYSTEM,…` leaves the other systems out. Each GPU that
is visible takes one model after the other. With `--device=cpu`, a CPU runs them, in float32, with
at most 8 sequences of 100 steps.

A model's recurrent layers alone are timed: a training step (a forward and a backward pass, from a
given gradient of the outputs to those of inputs and weights, which are added to variables) and an
inference. Inputs are random; where the model has sequences of different lengths, these are drawn
uniformly from [T/4, T], another draw each step. Dropout is left out, and where the model resets
states inside of sequences, so are resets. Each system is called as its documentation says is
fastest, and where there are two ways, both are timed and the faster one counts:

* this package: one layer object in a concrete function, with lengths in host memory;
* PyTorch: one layer; sequences packed in each step, or padded and read to their end;
* Keras: its layers in a concrete function, with a mask; with cuDNN, or compiled where Keras's layer
  has no cuDNN for the type or the device.

Each system has a process of its own, which waits while another one measures, so that the systems
take turns, model by model. A sample is the time of steps that run back to back for about 0.1 s, at
least one; the device is waited for at its end. The median of five samples counts. The peak of
memory, of models alone, is the most that the framework's allocator was asked for at once in steps
of training. Other processes measure it, since the allocator that TensorFlow has by default counts
what it hands out, which is up to twice as much and depends on what ran before.
"""

import argparse
import dataclasses
import functools
import gc
import itertools
import json
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import command, machine, models_page, systems, timing
from benchmarks.model_list import Model, models
from benchmarks.models_page import SYSTEMS
from benchmarks.rows import DRAWS, draw_lengths

SAMPLE_SECONDS, SAMPLES = 0.1, 5
CPU = "-1"  # What CUDA_VISIBLE_DEVICES is for it.
COUNTING_ALLOCATOR = {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}
# A process that takes longer for a model is ended.
LIMIT_SECONDS = 100
END = "measured"  # What a process writes after a model.


def variants(model: Model, system: str, on_cpu: bool = False) -> dict[str, Callable[[Any], Any]]:
    """The ways to run a model, each a function that makes a step of a row, or returns None."""
    if system == "cudnn_rnn_tf":
        draws = systems.host_lengths if model.has_lengths else _full
        return {"layer": lambda row: systems.ours(row, draws(row))}
    if system == "torch":
        packed = {"packed": lambda row: systems.of_torch(row, draw_lengths(row))}
        padded = {"padded": lambda row: systems.of_torch(row, None)}
        return packed | padded if model.has_lengths else padded
    draws = systems.masks if model.has_lengths else _full
    # Compiled by XLA, Keras's layers were slower in all eight models where both ways were timed.
    if not on_cpu and model.row.type != "bfloat16":
        return {"cuDNN": lambda row: systems.of_keras(row, draws(row))}
    return {"compiled": lambda row: systems.of_keras(row, draws(row), False, jit_compile=True)}


def _full(_: Any) -> list[None]:
    return [None] * DRAWS


def measure(
    model: Model, system: str, of_memory: bool = False, on_cpu: bool = False
) -> Iterator[dict[str, Any]]:
    """Yields what is measured of a model, an item for each variant, in training and inference.

    That is times or, in training alone, the peak of memory.
    """
    framework = systems.FRAMEWORKS[system]
    passes = (True,) if of_memory else (True, False)
    ways = variants(model, system, on_cpu)
    for (variant, make), is_training in itertools.product(ways.items(), passes):
        line = {"model": model.name, "system": system, "variant": variant, "training": is_training}
        row = dataclasses.replace(model.row, training=is_training)
        try:
            step = make(row)
            if step is None:
                return
            for index in range(2):
                step(index)
            framework.wait()
            if of_memory:
                framework.peak_bytes()  # From here on, it is that of the steps alone.
                for index in range(DRAWS):
                    step(index)
                framework.wait()
                line["peak_bytes"] = framework.peak_bytes()
            else:
                samples = timing.sample_in_turns(
                    {variant: step}, framework.wait, samples_of_each=SAMPLES
                )
                line["ms"] = samples[variant]
        except Exception as error:  # The library cannot run it; the rest goes on.
            line["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        yield line
        step = None
        gc.collect()


def work(system: str, commit: str, on_cpu: bool, of_memory: bool) -> None:
    """Writes to stdout what is measured of the models that stdin names, and a line after each."""
    timing.SAMPLE_SECONDS = SAMPLE_SECONDS
    framework = systems.FRAMEWORKS[system]
    framework.wait()  # This imports it.
    environment = machine.environment(commit, *framework.libraries, on_cpu=on_cpu)
    print(json.dumps({"system": system, "environment": environment}), flush=True)
    by_name = {model.name: model for model in models()}
    for name in map(str.strip, sys.stdin):
        model = by_name[name].on_cpu() if on_cpu else by_name[name]
        for line in measure(model, system, of_memory, on_cpu):
            print(json.dumps(line), flush=True)
        print(END, flush=True)


class Results:
    """A file to which threads add lines; an environment is written when it is a new one."""

    def __init__(self, path: pathlib.Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._lock = threading.Lock()
        self._environments: set[str] = set()

    def add(self, line: str) -> None:
        with self._lock:
            if "environment" in json.loads(line):
                if line in self._environments:
                    return
                self._environments.add(line)
            print(line.strip(), file=self._file, flush=True)


class Worker:
    """A process that measures a system's models; a new one takes the place of one that ends."""

    def __init__(self, system: str, gpu: str, commit: str, of_memory: bool):
        self._system = system
        arguments = system, commit, gpu == CPU, of_memory
        program = f"from benchmarks import models; models.work{arguments}"
        self._command = [sys.executable, "-c", program]
        self._variables = machine.variables_of(gpu) | (COUNTING_ALLOCATOR if of_memory else {})
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_start(self, results: Results) -> None:
        """Waits until the process is ready, and adds its environment to the results."""
        for line in self._process.stdout:
            if line.startswith("{"):
                results.add(line)
                return

    def measure(self, model: Model, results: Results) -> None:
        """Adds what is measured of a model to the results."""
        process = self._process
        timer = threading.Timer(LIMIT_SECONDS, process.kill)
        timer.start()
        process.stdin.write(f"{model.name}\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                results.add(line)
            if line.strip() == END:
                timer.cancel()
                return
        timer.cancel()
        failed = f"the process ended with {process.wait()} (within {LIMIT_SECONDS} s)"
        line = {"model": model.name, "system": self._system, "variant": "process"}
        results.add(json.dumps({**line, "failed": failed}))
        self._start()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def _run_on(
    gpu: str,
    waiting: "queue.SimpleQueue[Model]",
    passes: tuple[bool, ...],
    chosen_systems: list[str],
    results: Results,
    commit: str,
    all_started: threading.Barrier,
) -> None:
    workers = [
        Worker(system, gpu, commit, of_memory) for of_memory in passes for system in chosen_systems
    ]
    for worker in workers:
        worker.await_start(results)
    # Calls that take the host as long as the GPU are slower while others load their libraries.
    all_started.wait()
    while True:
        try:
            model = waiting.get_nowait()
        except queue.Empty:
            break
        for worker in workers:
            worker.measure(model, results)
        print(f"GPU {gpu}: {model.name}", flush=True)
    for worker in workers:
        worker.close()


def _run_all(name: str, options: argparse.Namespace) -> None:
    named = set(filter(None, options.only.split(",")))
    chosen_systems = options.system.split(",")
    of_list = [model for model in models() if model.list == name]
    unknown = named - {model.name for model in of_list} | set(chosen_systems) - set(SYSTEMS)
    if unknown:
        sys.exit(f"unknown models or systems: {', '.join(sorted(unknown))}")
    results = Results(options.output)
    waiting: queue.SimpleQueue[Model] = queue.SimpleQueue()
    for model in of_list:
        if model.name in named if named else model.core or options.all:
            waiting.put(model)
    gpus = [CPU] if options.device == "cpu" else machine.visible_gpus()
    passes = (False, True) if name == "models" and options.device == "gpu" else (False,)
    barrier = threading.Barrier(len(gpus))
    shared = (waiting, passes, chosen_systems, results, options.commit, barrier)
    # An interrupt ends the command, not after what is waiting.
    threads = [threading.Thread(target=_run_on, args=(gpu, *shared), daemon=True) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(about: str, name: str) -> None:
    """Runs the command of a list."""
    command.run(
        about,
        functools.partial(_run_all, name),
        models_page.page,
        models_page.plot,
        system={"default": ",".join(SYSTEMS), "help": "What to time, separated by commas."},
        all={"action": "store_true", "help": "All models, not only the core ones."},
        device={"choices": ["gpu", "cpu"], "default": "gpu", "help": "What runs them."},
    )


if __name__ == "__main__":
    main(__doc__, "models")
