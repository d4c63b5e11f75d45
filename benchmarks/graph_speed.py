"""Measures how long empty kernels in CUDA graphs take, and what makes them take longer.

    python -m benchmarks.graph_speed

prints one line of JSON. It calls the CUDA driver itself, since whatever any library launches before
would be part of what is measured.
"""

import contextlib
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

_FORKS = flags.DEFINE_bool("forks", False, "Measure the graphs with forks alone, in this process.")

KERNELS = 400
CALLS = 16
STEPS = 1500
FORK_EVERY = 32
FILLED_BYTES = 192

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED lets the driver load the kernel during a capture.
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING

_PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry empty()
{
    ret;
}
.visible .entry fill(.param .u64 to)
{
    .reg .b32 %thread, %zero;
    .reg .b64 %to, %address;
    ld.param.u64 %to, [to];
    cvta.to.global.u64 %to, %to;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %address, %thread, 4;
    add.u64 %address, %to, %address;
    mov.u32 %zero, 0;
    st.global.b32 [%address], %zero;
    ret;
}
"""

_HANDLE = ctypes.c_void_p
_NEW_HANDLE = ctypes.POINTER(ctypes.c_void_p)
_ADDRESS = ctypes.c_uint64  # CUdeviceptr

_ARGUMENTS: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [_NEW_HANDLE, ctypes.c_int],
    "cuCtxSetCurrent": [_HANDLE],
    "cuModuleLoadData": [_NEW_HANDLE, ctypes.c_char_p],
    "cuModuleGetFunction": [_NEW_HANDLE, _HANDLE, ctypes.c_char_p],
    "cuMemAlloc_v2": [ctypes.POINTER(_ADDRESS), ctypes.c_size_t],
    "cuStreamCreate": [_NEW_HANDLE, ctypes.c_uint],
    "cuStreamSynchronize": [_HANDLE],
    "cuStreamWaitEvent": [_HANDLE, _HANDLE, ctypes.c_uint],
    "cuStreamBeginCapture_v2": [_HANDLE, ctypes.c_int],
    "cuStreamEndCapture": [_HANDLE, _NEW_HANDLE],
    "cuEventCreate": [_NEW_HANDLE, ctypes.c_uint],
    "cuEventRecord": [_HANDLE, _HANDLE],
    "cuLaunchKernel": [_HANDLE, *[ctypes.c_uint] * 7, _HANDLE, _NEW_HANDLE, _NEW_HANDLE],
    "cuMemsetD8Async": [_ADDRESS, ctypes.c_ubyte, ctypes.c_size_t, _HANDLE],
    "cuGraphGetNodes": [_HANDLE, _NEW_HANDLE, ctypes.POINTER(ctypes.c_size_t)],
    "cuGraphInstantiateWithFlags": [_NEW_HANDLE, _HANDLE, ctypes.c_ulonglong],
    "cuGraphLaunch": [_HANDLE, _HANDLE],
    "cuGraphExecDestroy": [_HANDLE],
    "cuGraphDestroy": [_HANDLE],
}


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:  # Containers mount it here, which the loader may not search.
        directory = "/usr/local/nvidia/lib64"
    # The driver looks for its compiler by name, and uses one that is loaded already.
    with contextlib.suppress(OSError):
        ctypes.CDLL(f"{directory}/libnvidia-ptxjitcompiler.so.1")
    return ctypes.CDLL(f"{directory}/libcuda.so.1")


def _check(code: int, function: Any, _: tuple[Any, ...]) -> None:
    if code != 0:
        raise RuntimeError(f"{function.__name__} returned the CUDA driver's error {code}")


def _driver() -> ctypes.CDLL:
    """The CUDA driver, whose functions raise where they return an error."""
    driver = _load()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(driver, name)
        function.argtypes, function.restype, function.errcheck = arguments, ctypes.c_int, _check
    return driver


def _new(create: Callable[..., None], *arguments: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    create(ctypes.byref(handle), *arguments)
    return handle


class Device:
    """The first GPU, with a kernel that does nothing and one that fills memory.

    Streams and events are left to the process's end.
    """

    def __init__(self) -> None:
        self._cuda = _driver()
        self._cuda.cuInit(0)
        device = ctypes.c_int()
        self._cuda.cuDeviceGet(ctypes.byref(device), 0)
        self._cuda.cuCtxSetCurrent(_new(self._cuda.cuDevicePrimaryCtxRetain, device))
        module = _new(self._cuda.cuModuleLoadData, _PTX)
        self._empty = _new(self._cuda.cuModuleGetFunction, module, b"empty")
        self._fill = _new(self._cuda.cuModuleGetFunction, module, b"fill")

    def allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self._cuda.cuMemAlloc_v2(ctypes.byref(address), size)
        return address

    def stream(self) -> ctypes.c_void_p:
        return _new(self._cuda.cuStreamCreate, _NON_BLOCKING)

    def event(self) -> ctypes.c_void_p:
        return _new(self._cuda.cuEventCreate, _NO_TIMING)

    def launch(self, stream: ctypes.c_void_p) -> None:
        self._cuda.cuLaunchKernel(self._empty, 1, 1, 1, 32, 1, 1, 0, stream, None, None)

    def fill(self, address: ctypes.c_uint64, size: int, stream: ctypes.c_void_p) -> None:
        self._cuda.cuMemsetD8Async(address, 0, size, stream)

    def fill_by_kernel(self, address: ctypes.c_uint64, size: int, stream: ctypes.c_void_p) -> None:
        """In one block: up to 4096 bytes."""
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        self._cuda.cuLaunchKernel(self._fill, 1, 1, 1, size // 4, 1, 1, 0, stream, arguments, None)

    def wait(
        self, waiting: ctypes.c_void_p, event: ctypes.c_void_p, other: ctypes.c_void_p
    ) -> None:
        """Makes stream `waiting` wait, through `event`, for what stream `other` has so far."""
        self._cuda.cuEventRecord(event, other)
        self._cuda.cuStreamWaitEvent(waiting, event, 0)

    def synchronize(self, stream: ctypes.c_void_p) -> None:
        self._cuda.cuStreamSynchronize(stream)

    def capture(self, stream: ctypes.c_void_p, enqueue: Callable[[], None]) -> ctypes.c_void_p:
        self._cuda.cuStreamBeginCapture_v2(stream, _RELAXED)
        enqueue()
        graph = ctypes.c_void_p()
        self._cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
        return graph

    def nodes(self, graph: ctypes.c_void_p) -> int:
        count = ctypes.c_size_t()
        self._cuda.cuGraphGetNodes(graph, None, ctypes.byref(count))
        return count.value

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        return _new(self._cuda.cuGraphInstantiateWithFlags, graph, 0)

    def destroy(self, graph: ctypes.c_void_p, instance: ctypes.c_void_p) -> None:
        self._cuda.cuGraphExecDestroy(instance)
        self._cuda.cuGraphDestroy(graph)

    def microseconds(
        self, instance: ctypes.c_void_p, stream: ctypes.c_void_p, launches: int
    ) -> float:
        """The time of one of so many launches in a row, at best of five such rows after another."""
        self.synchronize(stream)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            for _ in range(launches):
                self._cuda.cuGraphLaunch(instance, stream)
            self.synchronize(stream)
            times.append(time.perf_counter() - start)
        return 1e6 * min(times[1:]) / launches


def measure_past() -> list[dict[str, Any]]:
    """Times one graph again and again, between things that may change how long its kernels take."""
    device = Device()
    stream = device.stream()

    def enqueue() -> None:
        for _ in range(KERNELS):
            device.launch(stream)

    def call_by_call(stream: ctypes.c_void_p) -> None:
        for _ in range(CALLS):
            device.launch(stream)
            device.synchronize(stream)

    rows = []

    def measure(after: str, instance: ctypes.c_void_p) -> None:
        time_taken = device.microseconds(instance, stream, launches=50)
        rows.append({"after": after, "per_kernel": round(time_taken / KERNELS, 3)})

    graph = device.capture(stream, enqueue)
    instance = device.instantiate(graph)
    measure("the start", instance)
    call_by_call(stream)
    measure(f"{CALLS} kernels launched call by call in one stream", instance)
    call_by_call(device.stream())
    measure(f"{CALLS} more in another stream", instance)
    end = time.perf_counter() + 2
    while time.perf_counter() < end:
        device.microseconds(instance, stream, launches=50)
    measure("2 s of nothing but launches of the graph", instance)
    measure("instantiating the same graph anew", device.instantiate(graph))
    return rows


def _capture_steps(
    device: Device,
    stream: ctypes.c_void_p,
    forked: bool,
    fill: Callable[[ctypes.c_uint64, int, ctypes.c_void_p], None] | None,
    filled: ctypes.c_uint64,
) -> ctypes.c_void_p:
    side, fork, join = device.stream(), device.event(), device.event()

    def enqueue() -> None:
        for step in range(STEPS):
            if fill is not None:
                fill(filled, FILLED_BYTES, stream)
            device.launch(stream)
            device.launch(stream)
            if forked and step % FORK_EVERY == 0:
                if step > 0:
                    device.wait(stream, join, side)
                device.wait(side, fork, stream)
                device.launch(side)
        if forked:  # A capture can end only when all its streams have joined.
            device.wait(stream, join, side)

    return device.capture(stream, enqueue)


def measure_forks() -> list[dict[str, Any]]:
    """Times graphs of two kernels a step, with and without side branches, and what fills memory."""
    device = Device()
    stream = device.stream()
    filled = device.allocate(FILLED_BYTES)
    rows = []
    # Chains come first, in case graphs with forks affect what runs after them.
    for name, forked, fill in (
        ("chain", False, None),
        ("chain with memsets", False, device.fill),
        ("chain with kernels that fill", False, device.fill_by_kernel),
        ("forks", True, None),
        ("forks with memsets", True, device.fill),
        ("forks with kernels that fill", True, device.fill_by_kernel),
    ):
        graph = _capture_steps(device, stream, forked, fill, filled)
        nodes = device.nodes(graph)
        instance = device.instantiate(graph)
        time_taken = device.microseconds(instance, stream, launches=20)
        rows.append({"graph": name, "nodes": nodes, "per_node": round(time_taken / nodes, 3)})
        device.destroy(graph, instance)
    return rows


def main(_: list[str]) -> None:
    if _FORKS.value:
        print(json.dumps(measure_forks()))
        return
    # The forks are measured in a process of their own, which ends before this one has a context.
    forks = subprocess.run(
        [sys.executable, "-m", "benchmarks.graph_speed", "--forks"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    result = {
        "kernels": KERNELS,
        "microseconds": measure_past(),
        "steps": STEPS,
        "fork_every": FORK_EVERY,
        "filled_bytes": FILLED_BYTES,
        "forks": json.loads(forks),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    app.run(main)
