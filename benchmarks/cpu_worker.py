"""A process of the CPU benchmark: it holds one library, and times it when told to.

One process per library, because every library has its own thread pool, and idle threads of one
(OpenMP's and ONNX Runtime's wait by spinning for a while) would take the cores from the next, and
because their OpenMP and oneDNN copies need not agree in one address space. Only one process
computes at a time: the others wait, asleep, for their next request.
"""

import contextlib
import functools
import gc
import hashlib
import importlib.metadata
import multiprocessing
import os
import pathlib
import re
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import cpu_models

FUSED = "cudnn_rnn_tf"
PREDICTOR = "CpuPredictor"
HALF_TYPES = ("float16", "bfloat16")
TORCH, KERAS, ONNX = "torch.nn", "keras.layers", "ONNX Runtime"


def in_half_type(system: str, dtype: str) -> str:
    """The name of one of this package's systems in a half type."""
    return f"{system}, {dtype}"


MODELS: dict[str, Callable[[cpu_models.Network, int], cpu_models.Calls]] = {
    FUSED: cpu_models.fused_model,
    PREDICTOR: cpu_models.predictor_model,
    **{
        in_half_type(system, dtype): functools.partial(model, dtype=dtype)
        for system, model in (
            (FUSED, cpu_models.fused_model),
            (PREDICTOR, cpu_models.predictor_model),
        )
        for dtype in HALF_TYPES
    },
    TORCH: cpu_models.torch_model,
    KERAS: cpu_models.keras_model,
    ONNX: cpu_models.onnxruntime_model,
}
# The packages that each peer needs.
PEERS = {TORCH: ["torch"], KERAS: ["keras"], ONNX: ["onnxruntime", "onnx"]}

MATMUL_SIZE = 2048

# The key of the versions under which a fingerprint of the compiled code is reported.
COMPILED_CODE = "compiled code, SHA-256"

# With these settings, blocks of a page or more come from the system and are returned to it at once,
# so that the resident set is the memory in use. By default, malloc and the pool that TensorFlow has
# for oneDNN keep freed memory. A step that reuses what the last one left would then seem to need
# nothing.
EXACT_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4096",
    "MALLOC_MMAP_MAX_": "1000000",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "true",
}


class WorkerError(Exception):
    """What went wrong in a worker."""


class Worker:
    """A worker, as the benchmark sees it; a context manager that ends it.

    Args:
        library: one of `MODELS`.
        threads: for the library to compute with.
        environment: more environment variables for the process.
    """

    def __init__(self, library: str, threads: int, environment: Mapping[str, str] | None = None):
        self.library = library
        context = multiprocessing.get_context("spawn")
        self._connection, connection = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(connection, library, threads), daemon=True
        )
        # The spawned process inherits the environment, which must be set now because malloc reads
        # it before Python runs.
        environment = {
            "CUDA_VISIBLE_DEVICES": "-1",
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **(environment or {}),
        }
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            self._process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        connection.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self._connection.close()  # The worker sees this and ends.
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def send(self, request: str, *args: Any) -> None:
        self._connection.send((request, *args))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet.

        Raises:
            WorkerError: if the request failed, with the worker's traceback, or the worker died.
        """
        try:
            error, answer = self._connection.recv()
        except EOFError:
            self._process.join(10)
            raise WorkerError(
                f"the process of {self.library} ended with exit status {self._process.exitcode}"
            ) from None
        if error:
            raise WorkerError(f"in the process of {self.library}:\n{error}")
        return answer

    def ask(self, request: str, *args: Any) -> Any:
        self.send(request, *args)
        return self.receive()


def _serve(connection: Connection, library: str, threads: int) -> None:
    server = _Server(library, threads)
    # When the connection ends, for whatever reason, the worker ends too.
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            request, *args = connection.recv()
            try:
                answer = (None, getattr(server, request)(*args))
            except Exception:
                answer = (traceback.format_exc(), None)
            connection.send(answer)


def _compiled_files() -> list[pathlib.Path]:
    import cudnn_rnn_tf as crnn

    return [pathlib.Path(crnn.op_library_path()), pathlib.Path(crnn.native._native.__file__)]


class _Server:
    """What a worker can be asked for, by method name."""

    def __init__(self, library: str, threads: int):
        self._library = library
        self._threads = threads
        self._calls: dict[str, Callable[[], Any]] = {}

    def versions(self) -> dict[str, str]:
        packages = PEERS.get(self._library)
        if packages:
            return {package: importlib.metadata.version(package) for package in packages}
        import tensorflow as tf

        import cudnn_rnn_tf as crnn

        code = b"".join(file.read_bytes() for file in _compiled_files())
        # crnn.info() must not be used here: it starts TensorFlow, whose number of threads must be
        # set first.
        info = crnn.native.info()
        return {
            "cudnn_rnn_tf": crnn.__version__,
            "TensorFlow": tf.__version__,
            "compiler": info["compiler"],
            "instruction set": info["cpu_isa"],
            COMPILED_CODE: hashlib.sha256(code).hexdigest()[:12],
        }

    def load(self, network: cpu_models.Network) -> None:
        """Builds the model, in place of the one before."""
        self._calls = {}
        gc.collect()
        self._calls = dict(MODELS[self._library](network, self._threads))

    def load_yardsticks(self) -> None:
        """Adds what the times are measured by to what can be timed.

        "matmul" is a product of two square matrices; "tf.function" adds two numbers, and so takes
        what calling any function takes.
        """
        import tensorflow as tf

        a, b = tf.random.stateless_normal([2, MATMUL_SIZE, MATMUL_SIZE], [0, 1])
        product = tf.function(tf.matmul, autograph=False)
        self._calls["matmul"] = lambda: product(a, b)
        one, two = tf.constant(1.0), tf.constant(2.0)
        total = tf.function(tf.add, autograph=False)
        self._calls["tf.function"] = lambda: total(one, two)

    def time(self, what: str, calls: int) -> float:
        """The median time of some calls, in seconds."""
        call = self._calls[what]
        call()  # This wakes the threads and fills the caches again.
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def training_memory(self, steps: int) -> list[int]:
        """What each of some warm training steps adds to the resident set at its peak, in bytes."""
        train = self._calls["training"]
        for _ in range(3):
            train()
        peaks = []
        for _ in range(steps):
            gc.collect()
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # This resets the peak to what is resident now.
            before = _peak_resident_bytes()
            train()
            peaks.append(_peak_resident_bytes() - before)
        return peaks


def _peak_resident_bytes() -> int:
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1))
