"""What all tests share, and what is said of those that are left out."""

import os
import pathlib

# Before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests start processes of their own, which find no memory where this one has taken all of a GPU's.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import pytest
import tensorflow as tf
import tested_versions

HAS_GPU = bool(tf.config.list_physical_devices("GPU"))
DESELECTED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-versions", metavar="FILE", help="what to write if all has passed")


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Thousands of tests that would all be skipped are not collected."""
    is_of_gpus = collection_path.name.startswith("test_gpu")
    return True if is_of_gpus and not HAS_GPU else None


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        stash = items[0].config.stash
        stash[DESELECTED] = stash.get(DESELECTED, 0) + len(items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Where pytest-xdist shares tests out, its workers deselect them, and all do so alike.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = session.config.stash.get(DESELECTED, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    node.config.stash[DESELECTED] = getattr(node, "workeroutput", {}).get("deselected", 0)


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    # Workers of pytest-xdist come here as well, each with its share.
    is_worker = hasattr(config, "workerinput")
    if (path := config.option.record_versions) and exitstatus == 0 and not is_worker:
        count = len(terminalreporter.getreports("passed"))
        which = " (all but the slow ones)" if config.option.markexpr == "not slow" else ""
        tested_versions.record(path, f"{count:,} tests{which}")
    left_out = []
    if count := config.stash.get(DESELECTED, 0):
        what = "tests"
        if config.option.markexpr == "not slow":
            what = "slow tests, most of which prove the kernels (make test-all runs them)"
        left_out.append(f"{count:,} {what}")
    if not HAS_GPU:
        left_out.append("tests/test_gpu*.py, as TensorFlow sees no GPU")
    if left_out:
        terminalreporter.write_line(f"Left out: {'; '.join(left_out)}")


@pytest.fixture(autouse=True, scope="session")
def full_precision():
    """Products of float32 numbers in float32, on GPUs as well."""
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture
def on_cpu():
    """Keeps a test of the CPU kernels on the CPU where there is a GPU as well."""
    with tf.device("CPU:0"):
        yield
