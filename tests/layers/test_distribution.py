"""Training on several devices and in several processes, against one device."""

import os
import pathlib
import socket

import fresh_process
import keras
import numpy as np
import pytest
import tensorflow as tf
from programs import distributed_training

TIMEOUT_SECONDS = 150
# Replicas sum the gradients over the batch in another order. Twelve steps of descent keep five of
# float32's seven digits.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def free_ports(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run(folder: pathlib.Path, *commands: list[str]) -> None:
    """Runs the program with each command at the same time."""
    processes, outputs = [], []
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        for index, command in enumerate(commands):
            outputs.append(folder / f"{command[0]}_{index}")
            outputs[-1].mkdir()
            program = [distributed_training.__file__, folder, *command]
            processes.append(fresh_process.start(program, outputs[-1], environment))
        for process, output in zip(processes, outputs, strict=True):
            process.join(TIMEOUT_SECONDS)
            assert process.exitcode == 0, (output / "stderr").read_text()[-2000:]
            assert "done" in (output / "stdout").read_text()
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def one_device():
    """Returns the weights after the same training, in this process and on one device."""
    with tf.device("CPU:0"):
        model = distributed_training.compiled_model()
        before = model.get_weights()
        after = list(distributed_training.fit(model).values())
    for weight, start in zip(after, before, strict=True):
        assert np.abs(weight - start).max() > 0.01
    return after


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    run(folder, ["devices"])
    return folder


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    ports = free_ports(2)
    run(folder, *(["worker", str(index), *ports] for index in range(2)))
    return folder


def load(path: pathlib.Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return list(arrays.values())


@pytest.mark.parametrize("how", ["mirrored", "mirrored_loop"])
def test_two_devices_train_as_one(devices, one_device, how):
    for weight, expected in zip(load(devices / f"{how}.npz"), one_device, strict=True):
        np.testing.assert_allclose(weight, expected, **TOLERANCE)


@pytest.mark.slow
def test_workers_run_the_program_of_the_guide(tmp_path):
    ports = free_ports(2)
    run(tmp_path, *(["guide", str(index), *ports] for index in range(2)))
    # Each worker has data of its own, but both have the sum of the gradients.
    for first, second in zip(*(load(tmp_path / f"guide_{i}.npz") for i in (0, 1)), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_two_workers_train_as_one(workers, one_device, index):
    for weight, expected in zip(load(workers / f"worker_{index}.npz"), one_device, strict=True):
        np.testing.assert_allclose(weight, expected, **TOLERANCE)


def assert_all_differ(masks: list[np.ndarray]) -> None:
    assert len(masks) == 4  # There are two calls in each of two replicas.
    for index, mask in enumerate(masks):
        for other in masks[:index]:
            # Half of the numbers of two independent masks of rate 0.5 differ.
            assert np.mean(mask != other) > 0.5


def test_devices_drop_different_units(devices):
    assert_all_differ(load(devices / "dropped.npz"))


@pytest.mark.slow
def test_workers_drop_different_units(workers):
    assert_all_differ([mask for i in (0, 1) for mask in load(workers / f"worker_dropped_{i}.npz")])


def test_mirrored_checkpoint_restores_anywhere(devices):
    expected = load(devices / "mirrored.npz")
    for weight, value in zip(load(devices / "restored.npz"), expected, strict=True):
        np.testing.assert_array_equal(weight, value)
    copies = load(devices / "copies.npz")
    assert len(copies) == 2
    for copy in copies:
        np.testing.assert_array_equal(copy, expected[0])
    # The checkpoint is now restored in this process, without a strategy.
    path = tf.train.latest_checkpoint(str(devices))
    model = keras.saving.load_model(devices / "model.keras")
    for weight in model.weights:
        weight.assign(tf.zeros_like(weight.value))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(path).assert_consumed()
    for weight, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_mirrored_model_is_saved(devices):
    inputs, expected = distributed_training.INPUTS, np.load(devices / "predictions.npy")
    served = tf.saved_model.load(str(devices / "saved_model"))
    np.testing.assert_allclose(served.serve(inputs), expected, **TOLERANCE)
    loaded = keras.saving.load_model(devices / "model.keras")
    np.testing.assert_allclose(loaded(inputs), expected, **TOLERANCE)
