"""Has Keras and TensorFlow read damaged weights, models, checkpoints and SavedModels."""

import functools
import pathlib
import random
import tempfile
import traceback
from typing import Any

import damage
import keras
import numpy as np
import tensorflow as tf

import cudnn_rnn_tf as crnn

# Keras and TensorFlow may raise anything. `run` checks the errors that this package raises.
EXPECTED = ()
FORMATS = ("weights", "model", "checkpoint", "saved_model")
_PACKAGE = str(pathlib.Path(crnn.__file__).parent)


def draw(rng: random.Random) -> dict[str, Any]:
    """Draws a format, and changes that damage one of its files."""
    what = rng.choice(FORMATS)
    files = _good(what)
    # Very small files are left out, since they have little that can be damaged.
    name = rng.choice(sorted(name for name, content in files.items() if len(content) > 100))
    return {"format": what, "file": name, "changes": damage.draw(rng, len(files[name]))}


def run(case: dict[str, Any]) -> str:
    what, model, before = case["format"], _model(2), _values(2)
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    with tempfile.TemporaryDirectory() as directory:
        for name, content in _good(what).items():
            if name == case["file"]:
                content = damage.apply(content, case["changes"])
            path = pathlib.Path(directory, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        try:
            # Loading may succeed: damaged numbers are still numbers, and a damaged graph may be a
            # valid one.
            _load(what, directory, model)(tf.ones([2, 3, 4])).numpy()
        except Exception as error:
            if _is_ours(error) and not isinstance(error, (ValueError, TypeError)):
                raise
            _check_is_whole(what, model)
            return f"{what}: refused"
    return f"{what}: loaded"


def _load(what: str, directory: str, model: keras.Model) -> Any:
    if what == "weights":
        model.load_weights(pathlib.Path(directory, "m.weights.h5"))
    elif what == "model":
        return keras.models.load_model(pathlib.Path(directory, "m.keras"))
    elif what == "checkpoint":
        tf.train.Checkpoint(model=model).restore(f"{directory}/ckpt").assert_consumed()
    else:
        served = tf.saved_model.load(directory)
        # The lambda keeps the loaded object alive, whose variables would go with it.
        return lambda inputs: served.serve(inputs)
    return model


def _is_ours(error: Exception) -> bool:
    """Returns whether code of this package raised the error."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_PACKAGE)


def _check_is_whole(what: str, model: keras.Model) -> None:
    """Checks that a failed load changed nothing.

    It may also have restored all, since Keras reads on after the last variable. A checkpoint may
    have restored some variables, each as a whole.
    """
    values = [variable.numpy() for variable in model.variables]
    kept = list(map(np.array_equal, values, _values(2)))
    restored = list(map(np.array_equal, values, _values(1)))
    for variable, *is_whole in zip(model.variables, kept, restored, strict=True):
        assert any(is_whole), f"{variable.path} is half restored"
    assert what == "checkpoint" or all(kept) or all(restored), "the model is half restored"


@functools.cache
def _values(seed: int) -> list[np.ndarray]:
    """Returns the initial values of the variables of the model with this seed."""
    return [variable.numpy().copy() for variable in _model(seed).variables]


@functools.cache
def _model(seed: int) -> keras.Model:
    """Returns a model of two bidirectional layers, with the state of a dropout seed."""
    keras.utils.set_random_seed(seed)
    layer = crnn.CudnnGRU(2, 3, direction="bidirectional", dropout=0.5, seed=seed)
    return keras.Sequential([keras.Input((None, 4)), layer])


@functools.cache
def _good(what: str) -> dict[str, bytes]:
    """Returns the files of a model in a format, by name."""
    model = _model(1)
    with tempfile.TemporaryDirectory() as directory:
        if what == "weights":
            model.save_weights(pathlib.Path(directory, "m.weights.h5"))
        elif what == "model":
            model.save(pathlib.Path(directory, "m.keras"))
        elif what == "checkpoint":
            tf.train.Checkpoint(model=model).write(f"{directory}/ckpt")
        else:
            model.export(directory, verbose=False)
        paths = [path for path in pathlib.Path(directory).rglob("*") if path.is_file()]
        return {str(path.relative_to(directory)): path.read_bytes() for path in paths}
