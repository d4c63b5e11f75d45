"""The short examples, run as programs of their own."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import fresh_process
import numpy as np
import pytest

from cudnn_rnn_tf.ops import op_library

pytestmark = pytest.mark.slow

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(program: str, *flags: str) -> str:
    # GPUs must multiply float32 numbers in float32, too.
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    result = fresh_process.run([EXAMPLES / program, *flags], environment, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


# A program, its arguments, what it prints, and which share must be right at least.
LEARNING = [
    # Always answering a character's most frequent tag would be right in 80 % of all cases. The
    # lines are of the Python that runs: with one, 94.1 % were right, with another more than 95 %.
    ("tag_source.py", "--lines=3000", "tags of 300 lines that were held out", 93),
    # The authors of the data published 94.1 %.
    ("classify_speakers.py", None, "speakers of 370 recordings", 95),
    # Without a memory, no policy is right more often than half of the time.
    pytest.param(
        *("remember_sign.py", "--rollouts=45", "turns in the last ten rollouts", 90),
        marks=pytest.mark.thorough,
    ),
]


@pytest.mark.parametrize(("program", "flag", "what", "least"), LEARNING)
def test_programs_learn(program, flag, what, least, tmp_path):
    picture = tmp_path / "made" / "picture.png"
    printed = run(program, *filter(None, [flag]), f"--output={picture}")
    assert float(re.search(rf"{what}: (\S+)% are right", printed)[1]) > least
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_forecast_co2(tmp_path):
    picture = tmp_path / "made" / "co2.png"
    printed = run("forecast_co2.py", f"--output={picture}")
    error, as_last_year = re.search(r"off by (\S+) ppm; as last year: (\S+) ppm", printed).groups()
    assert float(error) < 0.9 * float(as_last_year)
    assert picture.read_bytes().startswith(b"\x89PNG")


SHORT = ("tag_source.py", "forecast_co2.py", "classify_speakers.py", "remember_sign.py")


@pytest.mark.parametrize("program", SHORT)
def test_short_examples_stay_short(program):
    assert 40 <= len((EXAMPLES / program).read_text().splitlines()) <= 90


# Its arguments are the examples' folder, the file for the weights and a number of replicas. It adds
# up, on one device, the gradients of what they train on.
MEAN_GRADIENTS = """
import sys
sys.path.insert(0, sys.argv[1])
import keras, numpy as np, several_gpus as example, tensorflow as tf
example.FLAGS(["", "--num_units=8", "--steps_per_call=2", "--batch_size=4", "--max_chars=20"])
keras.utils.set_random_seed(0)
lines, vocabulary = example.read_lines()
rate, replicas = example.FLAGS.learning_rate, int(sys.argv[3])
model = example.make_model(vocabulary)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
variables = model.trainable_variables
for batches in zip(*(example.batches(lines, index, 0).take(2) for index in range(replicas))):
    gradients = []
    for batch in batches:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True), tf.cast(targets > 0, tf.float32))
        found = tape.gradient(loss, [variable.value for variable in variables])
        gradients.append([tf.convert_to_tensor(gradient) for gradient in found])
    for variable, *found in zip(variables, *gradients):
        variable.assign_sub(rate * sum(found) / replicas)
np.save(sys.argv[2], np.concatenate([np.ravel(weight) for weight in model.get_weights()]))
"""
SEVERAL_GPUS = ("--num_units=8", "--steps_per_call=2", "--batch_size=4", "--max_chars=20")


@pytest.mark.parametrize("replicas", [1, 2])
def test_several_gpus_takes_the_mean_of_gradients(tmp_path, replicas):
    run(
        "several_gpus.py",
        *SEVERAL_GPUS,
        *(["--nojit_compile"] if op_library.no_xla else []),
        f"--replicas={replicas}",
        "--steps_per_epoch=2",
        "--epochs=1",
        f"--output_dir={tmp_path}",
    )
    fresh_process.run_program(MEAN_GRADIENTS, EXAMPLES, tmp_path / "expected.npy", replicas)
    expected = np.load(tmp_path / "expected.npy")
    for replica in range(replicas):
        weights = np.load(tmp_path / f"weights_{replica}.npy")
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_several_gpus_goes_on_after_a_kill(tmp_path):
    arguments = (*SEVERAL_GPUS, "--replicas=2", "--steps_per_epoch=4")
    killed = tmp_path / "killed"
    command = [sys.executable, str(EXAMPLES / "several_gpus.py"), *arguments]
    # So many epochs do not end by themselves.
    command = [*command, "--epochs=100000", f"--output_dir={killed}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (killed / "history.jsonl").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = json.loads((killed / "history.jsonl").read_text().splitlines()[-1])["epoch"]
    epochs = f"--epochs={done + 2}"
    run("several_gpus.py", *arguments, epochs, f"--output_dir={killed}")
    run("several_gpus.py", *arguments, epochs, f"--output_dir={tmp_path / 'longer'}")
    for replica in range(2):
        found, expected = (
            np.load(tmp_path / name / f"weights_{replica}.npy") for name in ("killed", "longer")
        )
        np.testing.assert_array_equal(found, expected)
