"""Sets up what all tests share, and reports how many tests were left out."""

import gc
import os
import pathlib
import sys
from typing import Any

# This must be set before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests start processes that need memory of the GPU, so this process must not take all of it.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
# NumPy's threads would wait for each other in loops that take the cores from other tests, for the
# references' many small products. NumPy reads this when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests of benchmarks import them. The end of the path is the place where this directory's package
# does not hide the one that is installed.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
# A room's tests may take a function from another room's.
sys.path.extend(
    sorted({str(path.parent) for path in pathlib.Path(__file__).parent.glob("*/test_*.py")})
)

import pytest
import tensorflow as tf

from cudnn_rnn_tf import ops

# Until all tests are collected, garbage is not: what imports make stays, and looking it through
# again and again would take a fifth of their time.
gc.disable()

HAS_GPU = bool(tf.config.list_physical_devices("GPU"))
DESELECTED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="run the tests that are marked as thorough, too"
    )


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Ignores GPU tests if there is no GPU, since thousands of tests would only be skipped."""
    is_of_gpus = collection_path.name.startswith("test_gpu")
    return True if is_of_gpus and not HAS_GPU else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Tests that take long come first, so that workers end at the same time.
    items.sort(key=lambda item: item.path.parent != pathlib.Path(__file__).parent)
    thorough = [item for item in items if item.get_closest_marker("thorough")]
    if thorough and not config.option.thorough:
        config.hook.pytest_deselected(items=thorough)
        items[:] = [item for item in items if item not in set(thorough)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    # From here on, collections of garbage leave out what is there by now.
    gc.freeze()
    gc.enable()


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        stash = items[0].config.stash
        stash[DESELECTED] = stash.get(DESELECTED, 0) + len(items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # With pytest-xdist, the workers deselect tests, and all of them deselect the same ones.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = session.config.stash.get(DESELECTED, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    node.config.stash[DESELECTED] = getattr(node, "workeroutput", {}).get("deselected", 0)


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    left_out = []
    if count := config.stash.get(DESELECTED, 0):
        what = "tests" if config.option.thorough else "tests, some of which need --thorough"
        if config.option.markexpr == "not slow":
            what = "slow tests, most of which prove the kernels (make test-all runs them)"
        left_out.append(f"{count:,} {what}")
    if not HAS_GPU:
        left_out.append("tests/gpu, as TensorFlow sees no GPU")
    if left_out:
        terminalreporter.write_line(f"Left out: {'; '.join(left_out)}")


@pytest.fixture(autouse=True, scope="session")
def full_precision():
    """Makes GPUs multiply float32 numbers in float32."""
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture
def on_cpu():
    """Keeps a test of the CPU kernels on the CPU if there is a GPU."""
    with tf.device("CPU:0"):
        yield


@pytest.fixture
def fused_calls(monkeypatch):
    """Records the networks that the fused ops are asked to run."""
    calls: list[Any] = []
    forward = ops.forward

    def counting(config: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(config)
        return forward(config, *args, **kwargs)

    monkeypatch.setattr(ops, "forward", counting)
    return calls
