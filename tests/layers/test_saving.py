"""Keras's weight files and TensorFlow's checkpoints: canonical tensors, found again everywhere."""

import h5py
import keras
import layer_reference
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import LAYERS, make, normal

import cudnn_rnn_tf as crnn

MODES = tuple(LAYERS)
all_modes = pytest.mark.parametrize("rnn_mode", MODES)
INPUTS, TARGETS = normal(4, 5, 3), normal(4, 5, 1, seed=1)
OPTIONS = [
    pytest.param(mode, options, id=f"{mode}-{name}")
    for mode, name, options in [
        *((mode, "plain", {}) for mode in MODES),
        *((mode, "deep", {"num_layers": 2, "direction": "bidirectional"}) for mode in MODES),
        ("gru", "no_bias", {"bias_mode": "none"}),
        ("lstm", "one_bias", {"bias_mode": "single_recurrent"}),
        ("lstm", "projection", {"num_layers": 2, "num_proj": 2, "cell_clip": 0.5}),
        ("rnn_tanh", "skip", {"input_mode": "skip_input"}),
        ("lstm_peephole", "deep", {"num_layers": 2, "direction": "bidirectional", "num_proj": 2}),
        ("lstm_layer_norm", "deep", {"num_layers": 2, "direction": "bidirectional"}),
        ("gru_layer_norm", "epsilon", {"layer_norm_epsilon": 0.1}),
    ]
]


def make_with(rnn_mode: str, options: dict, **kwargs):
    return make(rnn_mode, **({"num_layers": 1, "num_units": 3} | options | kwargs))


def canonical_names(layer) -> list[str]:
    return layer_reference.config_of(layer).canonical_names


def canonical_tensors(layer) -> dict[str, np.ndarray]:
    weights, biases = layer.params_to_canonical()
    tensors = [tensor.numpy() for tensor in weights + biases]
    return dict(zip(canonical_names(layer), tensors, strict=True))


def two_layer_model(units: int = 3, names=("first", "second")) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            make("gru", 2, units, dropout=0.5, name=names[0]),
            make("lstm", 1, 2, direction="bidirectional", name=names[1]),
            keras.layers.Dense(1),
        ]
    )


def compiled(model: keras.Model) -> keras.Model:
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def assert_same(model: keras.Model, other: keras.Model) -> None:
    for variable, expected in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected.numpy(), variable.path)


def assert_trains_alike(model: keras.Model, other: keras.Model) -> None:
    """Checks that both train the same to the bit, with dropout's masks and optimizer's moments."""
    for _ in range(3):
        for each in (model, other):
            # Before 3.15, Keras returns the mean of the losses since the last reset.
            each.reset_metrics()
        loss = model.train_on_batch(INPUTS, TARGETS)
        assert loss == other.train_on_batch(INPUTS, TARGETS)
    assert_same(model, other)


# Keras's files.


@pytest.mark.parametrize("rnn_mode, options", OPTIONS)
def test_weights_file_holds_canonical_tensors(tmp_path, rnn_mode, options):
    layer = make_with(rnn_mode, options, name="net")
    model = keras.Sequential([keras.Input((None, 3)), layer])
    model.save_weights(tmp_path / "model.weights.h5")
    stored = {}
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(
            lambda name, item: stored.update({name: item[()]}) if hasattr(item, "shape") else None
        )
    folder = next(iter(stored)).rpartition("/")[0]
    expected = {f"{folder}/{name}": tensor for name, tensor in canonical_tensors(layer).items()}
    assert set(stored) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(stored[name], tensor)
    fresh = keras.Sequential([keras.Input((None, 3)), make_with(rnn_mode, options)])
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same(fresh, model)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "mixed_bfloat16"])
def test_keras_file_of_other_types(tmp_path, dtype):
    model = keras.Sequential([keras.Input((None, 3)), make("lstm", dtype=dtype)])
    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras"), model)


def test_keras_file_resumes_training(tmp_path):
    model = compiled(two_layer_model())
    model.fit(INPUTS, TARGETS, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    assert_trains_alike(keras.saving.load_model(tmp_path / "model.keras"), model)


def test_weights_move_between_types_and_dropout_rates(tmp_path):
    """The stored weights do not depend on how the layer computes or trains."""
    source, path = make("gru", 2, 3, dropout=0.5), tmp_path / "model.weights.h5"
    keras.Sequential([keras.Input((None, 3)), source]).save_weights(path)
    for target in (make("gru", 2, 3, dtype="float64"), make("gru", 2, 3, time_major=True)):
        keras.Sequential([keras.Input((None, 3)), target]).load_weights(path)
        np.testing.assert_array_equal(target.kernel.numpy(), source.kernel.numpy())
    target = make("gru", 2, 3, dropout=0.5)
    keras.Sequential([keras.Input((None, 3)), make("gru", 2, 3)]).save_weights(path)
    keras.Sequential([keras.Input((None, 3)), target]).load_weights(path)


def test_keras_file_of_wrong_shape(tmp_path):
    two_layer_model().save_weights(tmp_path / "model.weights.h5")
    message = r"layer_0_forward_reset_gate_kernel of .*first/.* of shape \(4, 3\).*\(3, 3\)"
    with pytest.raises(ValueError, match=message):
        two_layer_model(units=4).load_weights(tmp_path / "model.weights.h5")


def test_keras_file_without_a_tensor(tmp_path):
    path, model = tmp_path / "model.weights.h5", two_layer_model()
    model.save_weights(path)
    lost = "layer_0_forward_update_gate_kernel"
    with h5py.File(path, "r+") as file:
        names = []
        file.visit(names.append)
        del file[next(name for name in names if name.endswith(f"/{lost}"))]
    with pytest.raises(ValueError, match=f"{lost} of .*first/opaque_kernel is missing"):
        two_layer_model().load_weights(path)


@pytest.mark.parametrize(
    ("mode", "layers", "larger", "surplus"),
    [
        ("lstm", 2, {}, "layer_1_forward_"),
        ("gru", 1, {"direction": "bidirectional"}, "layer_0_backward_"),
        ("lstm", 1, {"use_peepholes": True}, "w_f_diag"),
        ("gru", 1, {"use_layer_norm": True}, "gamma"),
        ("lstm", 1, {"num_proj": 2}, "projection"),
    ],
)
def test_keras_file_of_a_larger_network(tmp_path, mode, layers, larger, surplus):
    """What is left over in a file is another network's, and nothing is assigned."""
    path = tmp_path / "model.weights.h5"
    keras.Sequential([keras.Input((None, 3)), make(mode, layers, 3, **larger)]).save_weights(path)
    target = make(mode, 1, 3)
    model = keras.Sequential([keras.Input((None, 3)), target])
    before = target.kernel.numpy()
    with pytest.raises(ValueError, match=rf"stored weights .*{surplus}.* no place for"):
        model.load_weights(path)
    np.testing.assert_array_equal(target.kernel.numpy(), before)


def test_unbuilt_layers_in_keras_files(tmp_path):
    """An unbuilt model has nothing to save; loading into an unbuilt layer is an error."""
    path = tmp_path / "model.keras"
    with pytest.warns(UserWarning, match="not yet been built"):
        keras.Sequential([make("gru", dropout=0.5)]).save(path)
    loaded = keras.saving.load_model(path)
    assert loaded(INPUTS).shape == (4, 5, 3)
    layer = make("gru", name="net")
    with pytest.raises(ValueError, match="layer 'net' is not built yet"):
        layer.load_own_variables({"layer_0_forward_reset_gate_kernel": np.zeros((3, 3))})


# Object-based checkpoints.


def stored_names(path: str) -> dict[str, list[int]]:
    return dict(tf.train.list_variables(path))


@pytest.mark.parametrize("rnn_mode, options", OPTIONS)
def test_checkpoint_holds_canonical_tensors(tmp_path, rnn_mode, options):
    layer = make_with(rnn_mode, options)
    layer.build((None, None, 3))
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
    names = stored_names(path)
    for name, tensor in canonical_tensors(layer).items():
        key = f"layer/kernel/.ATTRIBUTES/{name}"
        np.testing.assert_array_equal(tf.train.load_variable(path, key), tensor)
        del names[key]
    assert set(names) == {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
    fresh = make_with(rnn_mode, options)
    fresh.build((None, None, 3))
    tf.train.Checkpoint(layer=fresh).restore(path).assert_consumed()
    np.testing.assert_array_equal(fresh.kernel.numpy(), layer.kernel.numpy())


@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_checkpoint_resumes_training(tmp_path, built):
    model = compiled(two_layer_model())
    model.fit(INPUTS, TARGETS, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "c"))
    restored = compiled(two_layer_model())
    if built:
        restored.optimizer.build(restored.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer)
    status = checkpoint.restore(path)
    restored.optimizer.build(restored.trainable_variables)
    status.assert_consumed()
    status.assert_existing_objects_matched()
    assert_trains_alike(restored, model)


def test_partial_restores(tmp_path):
    first, second, third = (make("gru", 1, units) for units in (2, 3, 4))
    for layer in (first, second, third):
        layer.build((None, None, 3))
    path = tf.train.Checkpoint(a=first, b=second).save(str(tmp_path / "checkpoint"))
    expected = first.kernel.numpy()
    first.kernel.assign(tf.zeros_like(expected))
    second.kernel.assign(tf.zeros_like(second.kernel.value))
    # Now there are fewer layers than in the checkpoint.
    status = tf.train.Checkpoint(a=first).restore(path)
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError):
        status.assert_consumed()
    status.expect_partial()
    np.testing.assert_array_equal(first.kernel.numpy(), expected)
    assert np.all(second.kernel.numpy() == 0.0)
    # Now there are more layers than in the checkpoint.
    untouched = third.kernel.numpy()
    status = tf.train.Checkpoint(a=first, b=second, c=third).restore(path)
    with pytest.raises(AssertionError, match="not bound to checkpointed values"):
        status.assert_existing_objects_matched()
    np.testing.assert_array_equal(third.kernel.numpy(), untouched)
    assert np.any(second.kernel.numpy() != 0.0)


@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_checkpoint_of_wrong_shape(tmp_path, built):
    layer = make("gru", 1, 3)
    layer.build((None, None, 3))
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
    other = make("gru", 1, 4, name="net")
    message = r"layer_0_forward_reset_gate_kernel of .*net.* of shape \(4, 3\).*\(3, 3\)"
    with pytest.raises(ValueError, match=message):
        if built:
            other.build((None, None, 3))
        tf.train.Checkpoint(layer=other).restore(path).expect_partial()
        other.build((None, None, 3))


def test_checkpoint_of_another_network(tmp_path):
    """The error names the missing tensor."""
    layer, other = make("gru", 1, 3), make("gru", 2, 3)
    layer.build((None, None, 3))
    other.build((None, None, 3))
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
    with pytest.raises(tf.errors.NotFoundError, match="layer_1_forward_reset_gate_kernel"):
        tf.train.Checkpoint(layer=other).restore(path)


# Checkpoints and SavedModels of one object.


class Servable(tf.Module):
    """A module whose export fails if it uses a variable that it does not own."""

    def __init__(self, layer, foreign=None):
        super().__init__()
        self.layer = layer

        @tf.function(input_signature=[tf.TensorSpec((None, None, 3))])
        def serve(inputs):
            outputs = layer(inputs)
            return outputs if foreign is None else outputs * foreign

        self.serve = serve


@pytest.mark.parametrize("fails", [False, True])
def test_exports_between_checkpoints(tmp_path, fails):
    """Neither a save nor a restore notices, also while a failed export is still in memory."""
    layer = make("lstm")
    layer.build((None, None, 3))
    checkpoint, expected = tf.train.Checkpoint(layer=layer), layer.kernel.numpy()
    path = checkpoint.save(str(tmp_path / "before"))
    names, errors = stored_names(path), []
    for attempt in range(2):
        folder = str(tmp_path / f"saved_model_{attempt}")
        if fails:
            with pytest.raises(AssertionError, match="untracked") as raised:
                tf.saved_model.save(Servable(layer, tf.Variable(1.0)), folder)
            errors.append(raised)
        else:
            tf.saved_model.save(Servable(layer), folder)
            # The SavedModel's own checkpoint holds the buffer.
            sizes = tf.train.list_variables(f"{folder}/variables/variables")
            assert [layer.params_size()] in [shape for _, shape in sizes]
        if attempt or not fails:
            path = checkpoint.save(str(tmp_path / "after"))
            assert stored_names(path) == names
        layer.kernel.assign(tf.zeros_like(expected))
        checkpoint.restore(path).assert_consumed()
        np.testing.assert_array_equal(layer.kernel.numpy(), expected)


def test_asynchronous_checkpoint(tmp_path):
    layer = make("lstm")
    layer.build((None, None, 3))
    checkpoint = tf.train.Checkpoint(layer=layer)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for step in range(3):
        layer.kernel.assign(normal(layer.params_size(), seed=step))
        path = checkpoint.save(str(tmp_path / "checkpoint"), options=options)
        checkpoint.sync()
        for name, tensor in canonical_tensors(layer).items():
            stored = tf.train.load_variable(path, f"layer/kernel/.ATTRIBUTES/{name}")
            np.testing.assert_array_equal(stored, tensor)


def test_checkpoint_of_a_session(tmp_path):
    """An object-based checkpoint that is used as in TensorFlow 1 has the same files."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer = make("gru", 2, 3)
        layer.build((None, None, 3))
        session.run(tf.compat.v1.global_variables_initializer())
        checkpoint = tf.compat.v1.train.Checkpoint(layer=layer)
        session.run(checkpoint.save_counter.initializer)
        path = checkpoint.save(str(tmp_path / "checkpoint"), session=session)
        expected = session.run(layer.kernel.value)
        session.run(layer.kernel.value.assign(tf.zeros_like(expected)))
        checkpoint.restore(path).assert_consumed().run_restore_ops(session)
        np.testing.assert_array_equal(session.run(layer.kernel.value), expected)
    eager = make("gru", 2, 3)
    eager.build((None, None, 3))
    tf.train.Checkpoint(layer=eager).restore(path).assert_consumed()
    np.testing.assert_array_equal(eager.kernel.numpy(), expected)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)], ids=str)
def test_weight_file_that_does_not_fit_changes_nothing(shape, tmp_path):
    """The seed's state is checked before the kernel is overwritten."""
    saved, layer = make("gru", 2, 3, dropout=0.5, seed=1), make("gru", 2, 3, dropout=0.5, seed=2)
    keras.Sequential([keras.Input((None, 4)), saved]).save_weights(tmp_path / "w.weights.h5")
    with h5py.File(tmp_path / "w.weights.h5", "r+") as file:
        found = []
        file.visit(
            lambda name: found.append(name) if name.endswith("seed_generator_state") else None
        )
        (name,) = found
        del file[name]
        file[name] = np.ones(shape, np.uint32)
    model = keras.Sequential([keras.Input((None, 4)), layer])
    before = [variable.numpy() for variable in (layer.kernel, layer.seed_generator.state)]
    with pytest.raises(ValueError, match=r"seed_generator_state.*expected.*\(2,\)|of shape \(2,\)"):
        model.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(layer.kernel, before[0])
    np.testing.assert_array_equal(layer.seed_generator.state, before[1])


def test_a_config_says_what_wrote_it():
    model = keras.Sequential([keras.Input((5, 3)), crnn.CudnnGRU(1, 2), crnn.keras.LSTM(2)])
    text = model.to_json()
    assert text.count(f'"written_by": "cudnn_rnn_tf {crnn.__version__}"') == 2
    assert keras.models.model_from_json(text).built
