"""Times the layers on a GPU beside Keras, PyTorch and bare cuDNN.

On the GPU machine, in the root of the repository, for one system (`python -m benchmarks.gpu_all`
runs all of them):

    python -m benchmarks.gpu --system=SYSTEM --output=DIR --commit=HASH

leaves DIR/SYSTEM.jsonl. With --memory, cudnn_rnn_tf and keras leave peaks of memory instead, in
DIR/SYSTEM.memory.jsonl, on all GPUs there are; set CUDNN_RNN_TF_CHOICE_CACHE to the same file in
both runs, and what was chosen while times were taken is what is looked at.

How a step is timed: k steps back to back, each from the states the last one ended with, then a
wait for the device; wall time over k. k is such that this takes about 50 ms; of five such samples,
or 25 where a step takes less than 0.1 ms, the median counts. TensorFlow's steps are taken eight at
a time by a `tf.function` (one at a time where they are long, up to 64 where they are short); of the
rows of our own, steps that are a call each are timed as well. PyTorch's steps are eager, with
`torch.backends.cudnn.benchmark`, bare cuDNN's calls from C++. A training step is a forward and a
backward pass, from a given gradient of the outputs to those of inputs and weights.

Processes differ by more than samples do, as by where their memory lies. So rows near an aim are run
again, all systems on one GPU; all runs' samples count.

Memory is the peak of what TensorFlow's allocator gave out for a step, a call each, at whose end the
gradients are added to variables, as optimizers do. Each row has a process of its own, since what
other networks left would decide how much the allocator rounds up. It begins with one block of
memory, as it does by itself, but one of a size that lets several processes share a device. This
wants Python 3.11 or newer.
"""

import concurrent.futures
import contextlib
import gc
import json
import multiprocessing
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import app, flags

from benchmarks import gpu_environment, gpu_rows

_SYSTEM = flags.DEFINE_enum(
    "system", None, ["cudnn_rnn_tf", "keras", "torch", "bare"], "What to time.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Directory of the results.", required=True)
_COMMIT = flags.DEFINE_string("commit", "unknown", "The commit that is run.")
_ROWS = flags.DEFINE_string("rows", "", "Regular expression of the rows to time; all by default.")
_MEMORY = flags.DEFINE_bool("memory", False, "Measure peaks of memory, not times.")
_SECONDS = flags.DEFINE_float("seconds", 1e9, "Stop after this time; a later run goes on.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
WARM_UP_SECONDS = 0.2
WARM_UP_STEPS = 16
SAMPLE_SECONDS = 0.05
SAMPLES = 5
# Short steps are sampled more often, since other work of the CPU disturbs them.
SHORT_STEP_SECONDS = 1e-4
SAMPLES_OF_SHORT_STEPS = 25
STEPS_PER_CALL = 8
# A step with more floating-point operations than this takes half a millisecond or more, and is a
# call of its own.
LONG_STEP = 2e11
# A call runs as many short steps as last about a millisecond, so that the GPU does not wait for the
# CPU. Each layer takes a microsecond or more per time step.
CALL_MICROSECONDS = 1000
MAX_STEPS_PER_CALL = 64
MEMORY_STEPS = 8
MEMORY_LIMIT_MB = 12 << 10
MEMORY_PROCESSES = 6  # On each device.

Result = dict[str, Any]


def sample(run: Callable[[int], None], multiple: int = 1) -> list[float]:
    """Milliseconds of a step, some times; `run` runs as many steps as it is told and waits.

    It is told multiples of `multiple`.
    """

    def seconds(count: int) -> float:
        start = time.perf_counter()
        run(count)
        return (time.perf_counter() - start) / count

    # The first runs choose algorithms, capture graphs and compile.
    deadline = time.perf_counter() + WARM_UP_SECONDS
    warm_up_steps = max(WARM_UP_STEPS, 2 * multiple)
    run(warm_up_steps)
    while time.perf_counter() < deadline:
        run(warm_up_steps)
    estimate = min(seconds(multiple), seconds(2 * multiple))
    count = max(1, min(1000, int(SAMPLE_SECONDS / estimate)))
    count = -(-count // multiple) * multiple
    samples = SAMPLES_OF_SHORT_STEPS if estimate < SHORT_STEP_SECONDS else SAMPLES
    return [1e3 * seconds(count) for _ in range(samples)]


# TensorFlow.


def _tensorflow_results(
    row: gpu_rows.Row, time_major: bool, call: Callable[..., Any], weights: Callable[[], list[Any]]
) -> Result:
    """Times a network; `call(inputs, states, training)` returns outputs and new states."""
    import tensorflow as tf

    # Networks of earlier rows are in reference cycles, which only this frees.
    gc.collect()
    held = tf.config.experimental.get_memory_info("GPU:0")["current"]
    dtype = tf.as_dtype(row.dtype)
    lead = (row.time, row.batch) if time_major else (row.batch, row.time)

    def draw(scale: float, size: int) -> tf.Tensor:
        return tf.cast(scale * tf.random.normal((*lead, size)), dtype)

    inputs, d_outputs = draw(1.0, row.units), draw(0.1, row.units * row.directions)
    _, first_states = call(inputs, None, False)

    takers = [tf.Variable(tf.zeros_like(tensor)) for tensor in (inputs, *weights())]

    def infer(states):
        _, states = call(inputs, states, False)
        return states

    def train(states):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs, new_states = call(inputs, states, True)
        gradients = tape.gradient(outputs, [inputs, *weights()], output_gradients=d_outputs)
        # Gradients are computed only if something reads them, so variables take them. A step begins
        # when the variables have the last step's gradients, as if these changed the weights. To
        # measure time, gradients are assigned, which takes no time; to measure memory, they are
        # added, which takes no memory beyond the step's.
        taken = [
            (taker.assign_add if _MEMORY.value else taker.assign)(gradient, read_value=False)
            for taker, gradient in zip(takers, gradients, strict=True)
        ]
        with tf.control_dependencies(taken):
            return [tf.identity(state) for state in new_states]

    def runner(steps: int) -> Callable[[int], None]:
        # Inference is traced once and inlined. Functions that assign variables are not inlined.
        step = train if row.training else tf.function(infer)

        @tf.function
        def several(states):
            for _ in range(steps):
                states = step(states)
            return states

        def run(count: int) -> None:
            states = list(first_states)
            for _ in range(count // steps):
                states = several(states)
            # Calling `numpy()` would wait up to milliseconds longer than the device works.
            tf.test.experimental.sync_devices()

        return run

    if _MEMORY.value:
        run = runner(1)
        run(MEMORY_STEPS)
        tf.config.experimental.reset_memory_stats("GPU:0")
        run(MEMORY_STEPS)
        return {"memory": tf.config.experimental.get_memory_info("GPU:0")["peak"] - held}

    flops = 16 * row.layers * row.directions * row.time * row.batch * row.units**2
    flops *= 3 if row.training else 1
    microseconds = row.layers * row.time * (3 if row.training else 1)
    steps = max(STEPS_PER_CALL, min(CALL_MICROSECONDS // microseconds, MAX_STEPS_PER_CALL))
    steps = 1 if flops > LONG_STEP else steps
    result = {"ms": sample(runner(steps), steps)}
    if row.source == "own":
        result["ms_a_call"] = result["ms"] if steps == 1 else sample(runner(1))
    return result


def _cudnn_rnn_tf(row: gpu_rows.Row) -> Iterator[Result]:
    import tensorflow as tf

    import cudnn_rnn_tf as crnn

    tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
    for time_major in [False] if _MEMORY.value else [True, False]:
        layer = {"lstm": crnn.CudnnLSTM, "gru": crnn.CudnnGRU}[row.mode](
            row.layers,
            row.units,
            direction="bidirectional" if row.directions == 2 else "unidirectional",
            time_major=time_major,
            return_state=True,
            dtype=row.dtype,
        )

        def call(inputs, states, training, layer=layer):
            outputs, *states = layer(inputs, initial_state=states, training=training)
            return outputs, states

        result = _tensorflow_results(
            row, time_major, call, lambda layer=layer: layer.trainable_variables
        )
        choice = _choice_of(row, time_major, crnn.info()["gpu"]["choices"])
        yield {"layout": "time-major" if time_major else "batch-major", "choice": choice, **result}


def _choice_of(row: gpu_rows.Row, time_major: bool, choices: dict[str, Any]) -> Result:
    rounded = 1 << (row.time - 1).bit_length()
    sides = "bidirectional" if row.directions == 2 else "unidirectional"
    parts = (
        f": {row.mode}, {row.layers} layers of {row.units} units, {sides}, ",
        f", {row.dtype}, time {rounded}, batch {row.batch}, ",
        f"{'time' if time_major else 'batch'}-major, ",
        "training" if row.training else "inference",
    )
    choice, *_ = [
        value
        for name, value in choices.items()
        if all(part in name for part in parts) and ("TF32" in name) == (row.type == "tf32")
    ] + [{"algorithm": "persistent"}]
    return choice


def _keras(row: gpu_rows.Row) -> Iterator[Result]:
    import keras
    import tensorflow as tf

    if row.dtype == "bfloat16":
        return  # Its cuDNN op has no such kernel.
    tf.config.experimental.enable_tensor_float_32_execution(row.type == "tf32")
    make = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[row.mode]
    layers = []
    for _ in range(row.layers):
        layer = make(
            row.units,
            return_sequences=True,
            return_state=True,
            recurrent_initializer="glorot_uniform",  # An orthogonal matrix takes long to make.
            dtype=row.dtype,
        )
        if row.directions == 2:
            layer = keras.layers.Bidirectional(layer, dtype=row.dtype)
        layers.append(layer)
    per_layer = (2 if row.mode == "lstm" else 1) * row.directions

    def call(inputs, states, training):
        new_states = []
        for index, layer in enumerate(layers):
            own = None if states is None else states[index * per_layer : (index + 1) * per_layer]
            if own is not None and per_layer == 1:
                (own,) = own
            inputs, *ended = layer(inputs, initial_state=own, training=training)
            new_states += ended
        return inputs, new_states

    result = _tensorflow_results(
        row,
        time_major=False,
        call=call,
        weights=lambda: [v for layer in layers for v in layer.trainable_variables],
    )
    yield {"layout": "batch-major", **result}


def _memory_of(task: tuple[list[str], int, gpu_rows.Row]) -> tuple[gpu_rows.Row, list[Result]]:
    arguments, gpu, row = task
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    flags.FLAGS(arguments)
    import tensorflow as tf

    (device,) = tf.config.list_physical_devices("GPU")
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=MEMORY_LIMIT_MB)
    tf.config.set_logical_device_configuration(device, [limit])
    measure = {"cudnn_rnn_tf": _cudnn_rnn_tf, "keras": _keras}[_SYSTEM.value]
    return row, list(measure(row))


def _run_memory(rows: list[gpu_rows.Row]) -> Iterator[tuple[gpu_rows.Row, Result]]:
    """Measures the rows, each in a process of its own, several at a time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cudnn_rnn_tf", "keras"])  # These are imported only once.
    num_gpus = len(_command("nvidia-smi", "-L").splitlines())
    random.Random(0).shuffle(rows)  # This mixes slow rows with fast ones.
    with contextlib.ExitStack() as stack:
        results = []
        for gpu in range(num_gpus):
            executor = concurrent.futures.ProcessPoolExecutor(
                MEMORY_PROCESSES, mp_context=context, max_tasks_per_child=1
            )
            stack.enter_context(executor)
            tasks = [(sys.argv, gpu, row) for row in rows[gpu::num_gpus]]
            results += [executor.submit(_memory_of, task) for task in tasks]
        try:
            for done in concurrent.futures.as_completed(results):
                row, measured = done.result()
                for result in measured:
                    yield row, result
        finally:
            for waiting in results:
                waiting.cancel()


def _tensorflow_versions() -> dict[str, str]:
    import keras
    import tensorflow as tf

    return {"TensorFlow": tf.__version__, "Keras": keras.__version__}


# PyTorch.


def _torch(row: gpu_rows.Row) -> Iterator[Result]:
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = row.type == "tf32"
    dtype = getattr(torch, row.dtype)
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[row.mode]
    network = make(row.units, row.units, row.layers, bidirectional=row.directions == 2)
    network = network.cuda().to(dtype)
    network.flatten_parameters()
    inputs = torch.randn(row.time, row.batch, row.units, device="cuda", dtype=dtype)
    d_outputs = 0.1 * torch.randn(
        row.time, row.batch, row.units * row.directions, device="cuda", dtype=dtype
    )
    inputs.requires_grad_(row.training)
    with torch.no_grad():
        _, states = network(inputs)

    def infer(count: int) -> None:
        nonlocal states
        with torch.inference_mode():
            for _ in range(count):
                _, states = network(inputs, states)
        torch.cuda.synchronize()

    def train(count: int) -> None:
        nonlocal states
        for _ in range(count):
            outputs, ended = network(inputs, states)
            torch.autograd.grad(outputs, [inputs, *network.parameters()], d_outputs)
            states = (
                tuple(state.detach() for state in ended) if row.mode == "lstm" else ended.detach()
            )
        torch.cuda.synchronize()

    yield {"layout": "time-major", "ms": sample(train if row.training else infer)}


def _torch_versions() -> dict[str, str]:
    import torch

    return {"PyTorch": torch.__version__}


# Bare cuDNN.


def _run_bare(rows: list[gpu_rows.Row]) -> Iterator[tuple[gpu_rows.Row, Result]]:
    """Compiles bare_cudnn.cc and feeds it the rows."""
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    cudnn = os.environ["CUDNN_HOME"]
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "bare_cudnn")
        subprocess.run(
            [
                *("g++", "-std=c++17", "-O2", "-Wall", "-Wextra"),
                str(ROOT / "benchmarks" / "bare_cudnn.cc"),
                *(f"-I{cuda}/include", f"-I{cudnn}/include"),
                *(f"-L{cuda}/lib64", "-lcudart", f"{cudnn}/lib/libcudnn.so.9", "-o", program),
            ],
            check=True,
        )
        process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for index, row in enumerate(rows):
            fields = (index, row.mode, row.layers, row.units, row.batch, row.time, row.directions)
            fields += (row.dtype, int(row.type == "tf32"), int(row.training))
            process.stdin.write(" ".join(map(str, fields)) + "\n")
        process.stdin.close()
        try:
            for line in process.stdout:
                result = json.loads(line)
                yield rows[result.pop("id")], {"layout": "time-major", **result}
        finally:
            # If no more results are wanted, the process is stopped early.
            process.terminate()


def _run(
    time_row: Callable[[gpu_rows.Row], Iterator[Result]],
) -> Callable[[list[gpu_rows.Row]], Iterator[tuple[gpu_rows.Row, Result]]]:
    def run(rows: list[gpu_rows.Row]) -> Iterator[tuple[gpu_rows.Row, Result]]:
        for row in rows:
            for result in time_row(row):
                yield row, result

    return run


SYSTEMS = {
    "cudnn_rnn_tf": (_run(_cudnn_rnn_tf), _tensorflow_versions),
    "keras": (_run(_keras), _tensorflow_versions),
    "torch": (_run(_torch), _torch_versions),
    "bare": (_run_bare, dict),
}


def _command(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _environment() -> dict[str, str]:
    program = "import ctypes; print(ctypes.CDLL('libcudnn.so.9').cudnnGetVersion())"
    version = int(_command(sys.executable, "-c", program))
    cudnn = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return {**gpu_environment.environment(_COMMIT.value), "cuDNN": cudnn}


def main(_: list[str]) -> None:
    deadline = time.monotonic() + _SECONDS.value
    run, versions = SYSTEMS[_SYSTEM.value]
    if _MEMORY.value:
        if _SYSTEM.value not in ("cudnn_rnn_tf", "keras"):
            raise app.UsageError("--memory is for --system=cudnn_rnn_tf and --system=keras.")
        if _SYSTEM.value == "cudnn_rnn_tf" and "CUDNN_RNN_TF_CHOICE_CACHE" not in os.environ:
            raise app.UsageError(
                "--memory wants CUDNN_RNN_TF_CHOICE_CACHE set as for the run that took times."
            )
        run = _run_memory
    name = f"{_SYSTEM.value}.memory.jsonl" if _MEMORY.value else f"{_SYSTEM.value}.jsonl"
    path = pathlib.Path(_OUTPUT.value) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if path.exists():
        done = {json.loads(line).get("row") for line in path.read_text().splitlines()}
    rows = [
        row for row in gpu_rows.rows() if row.key not in done and re.search(_ROWS.value, row.key)
    ]
    with path.open("a") as file:
        if rows:
            print(json.dumps({"environment": {**_environment(), **versions()}}), file=file)
        last = None
        for row, result in run(rows):
            if row is not last and time.monotonic() > deadline:
                break
            last = row
            print(json.dumps({"row": row.key, **result}), file=file, flush=True)


if __name__ == "__main__":
    app.run(main)
