"""Counts what a host waits for in `model.fit`, by TensorFlow's profiler.

    profiled_fit.py FOLDER

prints for each model the number of copies from the GPU to the host, of calls that wait for a stream
and of the GPU's events during an epoch of STEPS steps, as JSON.
"""

import collections
import json
import os
import pathlib
import re
import sys

import keras
import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import cudnn_rnn_tf as crnn

STEPS, BATCH, TIME, SIZE = 6, 16, 12, 8


def draw_data() -> tuple[np.ndarray, np.ndarray]:
    """Draws sequences whose masked steps, which are zeros, are behind, in front or anywhere."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((STEPS * BATCH, TIME, SIZE), np.float32)
    for index, sequence in enumerate(inputs):
        length = random.integers(1, TIME + 1)
        if index % 3 == 0:
            sequence[length:] = 0
        elif index % 3 == 1:
            sequence[:-length] = 0
        else:
            sequence[random.random(TIME) < 0.4] = 0
    return inputs, random.standard_normal((STEPS * BATCH, 1), np.float32)


def make_model(layers: object, units: int = 24) -> keras.Model:
    """Makes a model of recurrent layers of the module `layers`; without any if it is None."""
    made = []
    if layers is not None:
        options = {"recurrent_initializer": "glorot_uniform", "return_sequences": True}
        made = [
            layers.Bidirectional(layers.LSTM(units, **options)),
            layers.Bidirectional(layers.LSTM(units, **options)),
            layers.GRU(units, zero_output_for_mask=True, **options),
            layers.LSTM(units, **options),
            layers.LSTM(units, recurrent_initializer="glorot_uniform"),
        ]
    else:
        made = [keras.layers.GlobalAveragePooling1D()]
    parts = [keras.Input((TIME, SIZE)), keras.layers.Masking(), *made, keras.layers.Dense(1)]
    return keras.Sequential(parts)


class ReadsEachStep(keras.callbacks.Callback):
    """Reads a number of the GPU's after each step, so that the counts can be seen to count."""

    def __init__(self) -> None:
        super().__init__()
        self.on_gpu = tf.Variable(1.0)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.on_gpu.assign_add(1.0)
        self.on_gpu.numpy()


def count(folder: pathlib.Path) -> collections.Counter[str]:
    """Counts the events of the profile in a folder."""
    counts: collections.Counter[str] = collections.Counter(copies=0, waits=0, on_gpu=0)
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            is_gpu = plane.name.startswith("/device:GPU")
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    counts["on_gpu"] += is_gpu
                    counts["copies"] += bool(re.search("memcpy.*(dtoh|d2h)", name, re.IGNORECASE))
                    counts["waits"] += bool(re.search("cu.*Synchronize", name))
    return counts


def profile(model: keras.Model, folder: pathlib.Path, callbacks: list[object]) -> dict[str, int]:
    inputs, targets = draw_data()
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH, drop_remainder=True)
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    # Kernels are compiled and algorithms are measured before.
    model.fit(data, epochs=4, verbose=0)
    tf.test.experimental.sync_devices()
    tf.profiler.experimental.start(str(folder))
    model.fit(data, verbose=0, callbacks=callbacks)
    tf.profiler.experimental.stop()
    return dict(count(folder))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    found = {}
    for policy in ("float32", "mixed_bfloat16"):
        keras.config.set_dtype_policy(policy)
        models = {
            "no recurrent layers": (make_model(None), []),
            "no recurrent layers, each step read": (make_model(None), [ReadsEachStep()]),
            "drop-in": (make_model(crnn.keras), []),
            "accelerated": (crnn.accelerate(make_model(keras.layers)), []),
        }
        for name, (model, callbacks) in models.items():
            key = f"{policy}, {name}"
            found[key] = profile(model, folder / key.replace(" ", "_"), callbacks)
    print(json.dumps({"steps": STEPS, "found": found}))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
