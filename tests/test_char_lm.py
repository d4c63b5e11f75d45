"""Runs the example as its users do, on a small text and with a small model."""

import importlib
import json
import math
import os
import pathlib
import random
import sys
import time
from collections import Counter

import fresh_process
import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

# One worker of pytest-xdist runs all of them, so that the shared fixtures are made once.
pytestmark = pytest.mark.xdist_group("char_lm")

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
WORDS = "the tea that a rat ate at the table set on a stone near the eastern train to another state"
STEPS_PER_EPOCH = 15
EPOCHS = 6
BATCH_SIZE = 8
SMALL = {
    "num_units": 32,
    "embedding_dim": 16,
    "batch_size": BATCH_SIZE,
    "seq_len": 24,
    "steps_per_epoch": STEPS_PER_EPOCH,
    "epochs": EPOCHS,
    "learning_rate": 0.02,
    "sample_chars": 0,
}


@pytest.fixture(scope="module")
def text_path(tmp_path_factory):
    """Writes random words: a letter follows from those before, but seldom from the last alone."""
    rng = random.Random(0)
    words = [rng.choice(WORDS.split()) + rng.choice(["", "", "", ".\n"]) for _ in range(12_000)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(words))
    return path


# GPUs are hidden, because runs are compared to the last bit, which no GPU guarantees.
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}


def command(text_path, output_dir, **changed):
    settings = {**SMALL, "text": text_path, "output_dir": output_dir, **changed}
    return [EXAMPLES / "char_lm.py", *(f"--{name}={value}" for name, value in settings.items())]


def run(text_path, output_dir, **changed):
    return fresh_process.run(command(text_path, output_dir, **changed), ENVIRONMENT)


def read_history(output_dir):
    """Returns bits per character of the training steps, and of the held-out text by step."""
    records = [json.loads(line) for line in (output_dir / "history.jsonl").read_text().splitlines()]
    training = [record for record in records if "bits_per_char" in record]
    assert [record["step"] for record in training] == list(range(1, len(training) + 1))
    held_out = {
        record["step"]: record["held_out_bits_per_char"]
        for record in records
        if "held_out_bits_per_char" in record
    }
    return [record["bits_per_char"] for record in training], held_out


@pytest.fixture(scope="module")
def finished(text_path, tmp_path_factory):
    """Runs the example from beginning to end; returns its output and its directory."""
    directory = tmp_path_factory.mktemp("finished")
    done = run(text_path, directory, sample_chars=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, directory


@pytest.fixture(scope="module")
def char_lm():
    """Imports the example as a module."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        module = importlib.import_module("char_lm")
    finally:
        sys.path.remove(str(EXAMPLES))
    flags.FLAGS.mark_as_parsed()
    return module


@pytest.fixture(scope="module")
def char_text(char_lm):
    return char_lm.char_text


def test_reports_and_files(finished, text_path):
    stdout, directory = finished
    summary = json.loads((directory / "summary.json").read_text())
    training, held_out = read_history(directory)
    assert len(training) == EPOCHS * STEPS_PER_EPOCH == summary["steps"]
    assert list(held_out) == list(range(0, summary["steps"] + 1, STEPS_PER_EPOCH))
    assert held_out[0] == summary["bits_before"]
    assert held_out[summary["steps"]] == summary["bits_after"]
    # An untrained model is about as good as guessing among the text's characters.
    num_chars = len(set(WORDS + ".\n")) + 1
    assert summary["bits_before"] == pytest.approx(math.log2(num_chars), abs=0.3)
    # A trained one is better than the letters' pairs are.
    text = text_path.read_text()
    pairs, firsts = Counter(zip(text, text[1:], strict=False)), Counter(text[:-1])
    bits = -sum(n * math.log2(n / firsts[pair[0]]) for pair, n in pairs.items()) / len(text)
    assert summary["bits_after"] < bits
    # The difference is zero, because the CPU runs the same op on the same numbers.
    assert summary["restored_difference"] == 0
    assert (directory / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    sample = (directory / "sample.txt").read_text()
    assert sample.startswith("\n") and len(sample) == 61
    assert set(sample) <= set(WORDS + ".\n")
    assert sample in stdout
    assert f"{summary['bits_after']:.3f}" in stdout
    checkpoints = tf.train.get_checkpoint_state(str(directory / "checkpoints"))
    names = [os.path.basename(path) for path in checkpoints.all_model_checkpoint_paths]
    assert names == ["ckpt-60", "ckpt-75", "ckpt-90"]


def test_saved_model_has_the_reported_loss(finished, text_path, char_text):
    # The reported number is about reading the held-out text part by part, with states that are
    # carried along. This test does that without the example's model, states or batches.
    directory = finished[1]
    step = tf.saved_model.load(str(directory / "saved_model")).signatures["step"]
    held_out = char_text.make_corpus(text_path.read_text(), BATCH_SIZE, 24).held_out
    length = (len(held_out) - 1) // BATCH_SIZE
    inputs = held_out[:-1].reshape(BATCH_SIZE, length)
    targets = held_out[1:].reshape(BATCH_SIZE, length)
    states = {name: tf.zeros([BATCH_SIZE, 2, SMALL["num_units"]]) for name in ("h", "c")}
    nats = []
    for start in range(0, length, 100):
        states = step(ids=tf.constant(inputs[:, start : start + 100]), **states)
        nats.append(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                targets[:, start : start + 100], states.pop("logits")
            )
        )
    bits = float(tf.reduce_mean(tf.concat(nats, axis=1))) / math.log(2)
    summary = json.loads((directory / "summary.json").read_text())
    # Both are float32 means over 2,000 numbers, summed in another order.
    assert bits == pytest.approx(summary["bits_after"], rel=1e-5)


def test_corpus(char_text):
    text = "".join(random.Random(1).choices("abcd\n", [8, 4, 2, 1, 1], k=3000))
    corpus = char_text.make_corpus(text, 4, 7)
    assert corpus.vocabulary == char_text.UNKNOWN + "\nabcd"
    train = [corpus.vocabulary[index] for index in corpus.train]
    held_out = [corpus.vocabulary[index] for index in corpus.held_out]
    assert "".join(train) == text[:2880]
    assert "".join(held_out) == text[2880 : 2880 + 4 * 7 * 4 + 1]


def test_streams_read_on(char_text):
    text = list(range(50))
    batches = iter(char_text.stream_batches(text, 4, 5))
    inputs, targets = zip(*(next(batches) for _ in range(11)), strict=True)
    inputs, targets = np.concatenate(inputs, axis=1), np.concatenate(targets, axis=1)
    # Rows start 12 characters apart and continue at the beginning when they reach the text's end.
    np.testing.assert_array_equal(inputs, (np.arange(55) + [[0], [12], [24], [36]]) % 50)
    np.testing.assert_array_equal(targets, (inputs + 1) % 50)
    later = char_text.stream_batches(text, 4, 5, first_step=9)
    np.testing.assert_array_equal(next(iter(later))[0], inputs[:, 45:50])


def test_standard_library_is_text(char_text):
    text = char_text.read_standard_library(30_000)
    assert len(text) == 30_000
    assert "import " in text and "\n" in text
    assert text == char_text.read_standard_library(40_000)[:30_000]


@pytest.mark.slow
def test_goes_on_exactly_after_kill(finished, text_path, tmp_path, tmp_path_factory):
    outputs = tmp_path_factory.mktemp("outputs")
    process = fresh_process.start(command(text_path, tmp_path), outputs, ENVIRONMENT)
    history = tmp_path / "history.jsonl"
    deadline = time.monotonic() + 120
    try:
        # The kill comes after a checkpoint, so that steps are lost and must be repeated.
        while not (history.exists() and f'"step": {STEPS_PER_EPOCH + 3},' in history.read_text()):
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.kill()
        process.join()
    killed_at = len(read_history(tmp_path)[0])
    assert STEPS_PER_EPOCH < killed_at < EPOCHS * STEPS_PER_EPOCH
    # This is the state after a kill at the worst moment: half a line is written.
    history.write_text(history.read_text() + '{"step": 1')
    done = run(text_path, tmp_path)
    assert done.returncode == 0, done.stderr
    resumed_at = killed_at // STEPS_PER_EPOCH * STEPS_PER_EPOCH
    assert f"resuming at step {resumed_at}" in done.stdout
    assert history.read_text() == (finished[1] / "history.jsonl").read_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"text": "/does/not/exist"}, "cannot read the text /does/not/exist"),
        ({"max_chars": 3000}, "has 3000 characters, but batches of 8 x 24 need at least 4825"),
        ({"num_units": 33, "seed": 2}, "holds a run that differs in num_units, seed"),
        ({"output_dir": f"{__file__}/below"}, "cannot write to --output_dir"),
    ],
)
def test_says_what_is_wrong(char_lm, finished, text_path, changed, message):
    settings = {**SMALL, "text": str(text_path), "output_dir": str(finished[1]), **changed}
    with flagsaver.flagsaver(**settings), pytest.raises(SystemExit, match=message):
        char_lm.main(["char_lm.py"])
