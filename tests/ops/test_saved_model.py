"""Tests SavedModels in a program that only serves them."""

import json
import pathlib
import tarfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from fresh_process import run_program
from layer_reference import LAYERS, make, normal, randomize

# One worker of pytest-xdist runs all of them, so that the shared fixtures are made once.
pytestmark = pytest.mark.xdist_group("saved_model")

MODES = tuple(LAYERS)

# This program runs each SavedModel of a folder on its inputs. It reports failures and stores the
# other results.
SERVE = """
import json, os, pathlib, sys
import numpy as np
import tensorflow as tf
if sys.argv[2] == "with_package":
    import cudnn_rnn_tf
errors = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        loaded = tf.saved_model.load(str(folder / "model"))
        signature = loaded.signatures["serving_default"]
        for number, file in enumerate(sorted(folder.glob("inputs_*.npz"))):
            arrays = {name: tf.constant(array) for name, array in np.load(file).items()}
            outputs = signature(**arrays)
            np.savez(folder / f"results_{number}.npz", **outputs)
    except Exception as error:
        errors[folder.name] = str(error)
print(json.dumps(errors))
"""


def serve(folder, package: str) -> dict[str, str]:
    """Runs SERVE in a fresh process that shares nothing with this one but the files."""
    output = run_program(SERVE, folder, package, CUDA_VISIBLE_DEVICES="-1")
    return json.loads(output.splitlines()[-1])


def model_of(*layers, features: int = 3) -> keras.Model:
    return keras.Sequential([keras.Input((None, features)), *layers])


def plain_model(rnn_mode: str) -> keras.Model:
    return model_of(make(rnn_mode, 2, 3, direction="bidirectional", dropout=0.5))


def projected_model() -> keras.Model:
    layer = make("lstm", 2, 4, num_proj=2, cell_clip=0.3, dtype="mixed_float16")
    return model_of(layer, keras.layers.Dense(1))


def masked_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(5, 3, mask_zero=True),
            make("gru", go_backwards=True, return_sequences=False),
        ]
    )


def lengths_model() -> keras.Model:
    inputs = keras.Input((None, 3), name="features")
    lengths = keras.Input((), dtype="int32", name="lengths")
    outputs = make("lstm", return_sequences=False)(inputs, sequence_lengths=lengths)
    return keras.Model([inputs, lengths], outputs)


def stateful_model() -> keras.Model:
    """Returns a model whose results depend on the calls before."""
    layer = make("gru", 2, 3, stateful=True, return_sequences=False)
    return keras.Sequential([keras.Input(batch_shape=(2, None, 3)), layer])


class StatefulModule(tf.Module):
    """A stateful layer that a program exports without a Keras model."""

    def __init__(self):
        super().__init__()
        self.layer = randomize(make("lstm", stateful=True, time_major=True), (None, 2, 3))

        @tf.function(input_signature=[tf.TensorSpec((None, 2, 3), name="inputs")])
        def step(inputs):
            return {"outputs": self.layer(inputs)}

        self.step = step


def save_case(folder, model, batches, *, how: str) -> list[dict[str, np.ndarray]]:
    """Saves a model and its inputs; returns what it computes here, after it was saved."""
    folder.mkdir(parents=True)
    target = str(folder / "model")
    if how == "export":
        model.export(target, verbose=False)
    elif how == "module":
        tf.saved_model.save(model, target, signatures=model.step)
    else:
        tf.saved_model.save(model, target)
    expected = []
    for number, batch in enumerate(batches):
        arrays = batch if isinstance(batch, list) else [batch]
        signature = tf.saved_model.load(target).signatures["serving_default"]
        names = sorted(signature.structured_input_signature[1])
        np.savez(folder / f"inputs_{number}.npz", **dict(zip(names, arrays, strict=True)))
        outputs = model.step(batch)["outputs"] if how == "module" else model(batch)
        expected.append(np.asarray(outputs))
    return expected


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Makes one folder per SavedModel, once for all tests; returns what to expect of each."""
    root = tmp_path_factory.mktemp("saved_models") / "cases"
    batches = [normal(2, 5, 3), normal(4, 2, 3, seed=1)]
    expected = {}
    with tf.device("CPU:0"):
        for mode in MODES:
            model = plain_model(mode)
            randomize(model.layers[0], (None, None, 3))
            expected[f"export_{mode}"] = save_case(
                root / f"export_{mode}", model, batches, how="export"
            )
        trained = projected_model()
        trained.compile("adam", "mse")
        trained.fit(batches[0], normal(2, 5, 1), epochs=2, verbose=0)
        for how in ("export", "save"):
            expected[f"trained_{how}"] = save_case(
                root / f"trained_{how}", trained, batches[:1], how=how
            )
        tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4]], np.int32)
        expected["masked"] = save_case(
            root / "masked", masked_model(), [tokens, tokens[:, :2]], how="export"
        )
        pairs = [[batch, np.array([1, 2, 0, 2][: len(batch)], np.int32)] for batch in batches]
        expected["lengths"] = save_case(root / "lengths", lengths_model(), pairs, how="export")
        batches = [normal(2, 4, 3), normal(2, 1, 3)]
        expected["stateful"] = save_case(root / "stateful", stateful_model(), batches, how="export")
        batches = [normal(3, 2, 3), normal(1, 2, 3)]
        expected["module"] = save_case(root / "module", StatefulModule(), batches, how="module")
    return root, expected


def test_served_by_a_fresh_process(cases):
    root, expected = cases
    assert serve(root, "with_package") == {}
    for name, values in expected.items():
        for number, value in enumerate(values):
            (result,) = np.load(root / name / f"results_{number}.npz").values()
            # Results are equal, because the same kernels run on the same numbers.
            np.testing.assert_array_equal(result, value, f"{name}, call {number}")


def test_of_an_earlier_version(tmp_path):
    """These were written when the ops had neither resets nor sequences of cell states."""
    with tarfile.open(pathlib.Path(__file__).parents[1].joinpath("saved_models.tar.xz")) as files:
        files.extractall(tmp_path, filter="data")
    expected = dict(np.load(tmp_path / "expected.npz"))
    inputs = tf.constant(expected.pop("inputs"))
    loaded = {name.rpartition("_")[0]: None for name in expected}
    loaded = {name: tf.saved_model.load(str(tmp_path / name)) for name in loaded}
    for name, values in expected.items():
        model, _, signature = name.rpartition("_")
        (result,) = loaded[model].signatures[signature](inputs).values()
        # Processors with other vectors sum in another order.
        np.testing.assert_allclose(result, values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_without_the_package(cases):
    """TensorFlow's error names an op that is not registered."""
    root, expected = cases
    errors = serve(root, "without_package")
    assert set(errors) == set(expected)
    for message in errors.values():
        assert "Op type not registered 'CudnnRnnTf>" in message


def test_loaded_model_trains_on(cases):
    """Its gradients are those of the layer, and need the package's gradient functions."""
    root, _ = cases
    loaded = tf.saved_model.load(str(root / "export_rnn_tanh" / "model"))
    layer = plain_model("rnn_tanh").layers[0]
    (buffer,) = loaded.trainable_variables
    layer.kernel.assign(buffer)
    inputs = tf.constant(normal(2, 5, 3))
    gradients = []
    for function, variable in ((loaded.serve, buffer), (layer, layer.kernel.value)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(inputs) ** 2)
        gradients.append(tape.gradient(loss, variable).numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-5)
    assert np.abs(gradients[1]).max() > 0.1
