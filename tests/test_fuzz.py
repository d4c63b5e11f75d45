"""Tests that the fuzzers find errors that are there, and find none in this package."""

import contextlib
import importlib.util
import itertools
import pathlib
import random
import signal
import sys

import pytest
import tensorflow as tf

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("safetensors")

FUZZ = pathlib.Path(__file__).with_name("fuzz") / "fuzz.py"
# One worker of pytest-xdist runs all of them, so that one child imports what most targets need.
pytestmark = pytest.mark.xdist_group("fuzz")


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", FUZZ)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        yield module
    del sys.modules["fuzz"]


@pytest.fixture(scope="module")
def misbehaving(fuzz):
    with contextlib.closing(fuzz.Runner("misbehaving")) as runner:
        yield runner


@pytest.fixture(scope="module")
def runner_of(fuzz):
    """Returns what runs a target's cases; of one, TensorFlow cannot be imported."""
    apart = "native_module"
    shared = fuzz.Runner(*(target for target in fuzz.TARGETS if target != apart))
    with contextlib.closing(shared), contextlib.closing(fuzz.Runner(apart)) as other:
        yield lambda target: other if target == apart else shared


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("abort", signal.SIGABRT.name),
        ("segfault", signal.SIGSEGV.name),
        ("exit", "exit with status 0"),
        ("slow exit", "exit with status 0"),
        ("hang", "hang of more than 2 s"),
        ("key", "KeyError: 'wrong'"),
    ],
)
def test_failures_are_found_and_made_small(fuzz, misbehaving, change, kind, monkeypatch):
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 2)
    case = {"target": "misbehaving", "changes": ["nothing", change, "nothing"]}
    ends, failures = fuzz.fuzz(misbehaving, iter([case, {**case, "changes": ["value"]}]))
    assert ends == {kind: 1, "ValueError": 1}
    assert failures == [fuzz.Outcome({**case, "changes": [change]}, kind, True)]


def test_seeds_say_the_cases(fuzz, misbehaving):
    source = [{"target": "misbehaving", "seed": str(index)} for index in range(20)]
    ends, failures = fuzz.fuzz(misbehaving, iter(source))
    assert not failures
    assert set(ends) == {"ok", "ValueError"}
    assert fuzz.fuzz(misbehaving, iter(source)) == (ends, [])


def test_a_case_that_cannot_be_drawn_is_a_failure(fuzz, misbehaving):
    bad = {"target": "misbehaving", "seed": "bad"}
    assert fuzz.fuzz(misbehaving, iter([bad])) == (
        {"ValueError": 1},
        [fuzz.Outcome(bad, "ValueError", True)],
    )


def test_networks_that_a_gpu_refuses_are_drawn(fuzz, monkeypatch):
    """Draws a case of the backward pass, for which the forward pass runs."""
    monkeypatch.syspath_prepend(FUZZ.parent)
    raw_ops = importlib.import_module("raw_ops")
    case = raw_ops.draw(random.Random("7.292"))
    assert case["op"] == "backward"

    def refuse(**_):
        raise tf.errors.UnimplementedError(None, None, "A GPU does not run this.")

    monkeypatch.setattr(raw_ops.raw_ops, "cudnn_rnn_tf_forward", refuse)
    assert raw_ops.draw(random.Random("7.292")) == case


@pytest.mark.parametrize("target", ["raw_ops", "graphs", "native_module", "saved"])
@pytest.mark.slow
def test_nothing_is_found(fuzz, runner_of, target, capsys):
    """Runs the cases that once failed, and then new ones for a few seconds."""
    source = fuzz.requests(target, seconds=3, seed=0, with_corpus=True)
    ends, failures = fuzz.fuzz(runner_of(target), source)
    assert not failures, capsys.readouterr().out
    assert ends.total() > len(fuzz.corpus(target)) >= 10
    assert len(ends) > 1  # Some cases are refused and some accepted.


@pytest.mark.parametrize(
    ("target", "count"),
    [
        *(("models", 4), ("held", 8), ("onnx_graphs", 40), ("archives", 48)),
        pytest.param("layers", 40, marks=pytest.mark.slow),
        ("growth", 40),
        ("threads", 1),
    ],
)
def test_nothing_is_wrong(fuzz, runner_of, target, count, capsys):
    """Runs the first cases of the targets that compare results; the others are slow."""
    source = fuzz.requests(target, seconds=300, seed=0, with_corpus=True)
    ends, failures = fuzz.fuzz(runner_of(target), itertools.islice(source, count))
    assert not failures, capsys.readouterr().out
    assert len(ends) > 1 or target == "threads"  # There are several kinds of cases.
