"""An LSTM's cell states of all steps: `return_cell_sequences`, in every way to call a layer."""

import keras
import layer_reference
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from layer_reference import make, normal, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import ops
from cudnn_rnn_tf.config import RnnConfig

BATCH, TIME, SIZE = 4, 7, 3
OPTIONS = {
    "plain": {},
    "projection": {"num_proj": 2, "cell_clip": 0.3, "return_sequences": False},
    "peephole": {"rnn_mode": "lstm_peephole", "direction": "bidirectional", "return_state": True},
    "backwards": {"go_backwards": True, "return_state": True},
}


def lstm(rnn_mode: str = "lstm", num_layers: int = 2, **options):
    layer = make(rnn_mode, num_layers, 4, return_cell_sequences=True, **options)
    return randomize(layer, (None, None, SIZE))


@pytest.mark.parametrize("kind", ["plain", "lengths", "mask", "ragged"])
@pytest.mark.parametrize("time_major", [False, True], ids=["batch_major", "time_major"])
@pytest.mark.parametrize("name", OPTIONS)
def test_are_those_of_each_sequence(name, time_major, kind):
    """The reference runs one sequence after the other, of the steps that are read."""
    options, one = OPTIONS[name], lstm(**OPTIONS[name])
    layer = lstm(time_major=time_major, **options)
    inputs, lengths = normal(BATCH, TIME, SIZE), np.array([3, TIME, 0, 5])
    read = np.arange(TIME) < (lengths[:, None] if kind != "plain" else [[TIME]] * BATCH)
    if kind == "mask":
        read = np.random.default_rng(2).random((BATCH, TIME)) < 0.6
    outputs = np.zeros((BATCH, TIME, one.num_dirs * (one.num_proj or 4)), np.float32)
    cells = np.zeros((BATCH, TIME, one.num_dirs * 4), np.float32)
    for b in range(BATCH):
        steps = places = np.flatnonzero(read[b])
        if one.go_backwards:
            places = TIME - 1 - steps[::-1] if kind == "mask" else np.arange(steps.size)
            steps = steps[::-1]
        right = layer_reference.forward(one, inputs[b : b + 1, steps])
        outputs[b, places], cells[b, places] = right.outputs[0], right.cells[0]

    def swapped(array):
        return array.swapaxes(0, 1).copy() if time_major else array

    arguments = {}
    given = swapped(inputs)
    if kind == "lengths":
        arguments["sequence_lengths"] = lengths
    elif kind == "mask":
        arguments["mask"] = swapped(read)
    elif kind == "ragged":
        given = tf.RaggedTensor.from_tensor(inputs, lengths)
    received, found, *states = layer(given, **arguments)
    if kind == "ragged":
        found = found.to_tensor(shape=(None, TIME, None))
        found = found if not time_major else found.numpy().swapaxes(0, 1)
    np.testing.assert_allclose(found, swapped(cells), rtol=1e-5, atol=1e-6)
    assert len(states) == 2 * one.return_state
    if one.return_sequences and kind != "ragged":
        np.testing.assert_allclose(received, swapped(outputs), rtol=1e-5, atol=1e-6)
    if kind == "plain":
        shapes = layer.compute_output_shape(given.shape)
        assert [tuple(each.shape) for each in (received, found, *states)] == list(shapes)


def test_goes_on_in_a_stateful_layer():
    layer = make("lstm", 1, 4, return_cell_sequences=True, stateful=True)
    layer, inputs = randomize(layer, (2, None, SIZE)), normal(2, 8, SIZE)
    resets = np.zeros((2, 8), bool)
    resets[1, 6] = True
    parts = [layer(inputs[:, i : i + 4], resets=resets[:, i : i + 4])[1] for i in (0, 4)]
    right = layer_reference.forward(layer, inputs).cells
    right[1, 6:] = layer_reference.forward(layer, inputs[1:, 6:]).cells
    np.testing.assert_allclose(np.concatenate(parts, 1), right, rtol=1e-5, atol=1e-6)


def test_in_models_and_files(tmp_path):
    inputs = keras.Input((TIME, SIZE))
    masked = keras.layers.Masking()(inputs)
    hidden, cells, _, c = crnn.CudnnLSTM(1, 4, return_cell_sequences=True, return_state=True)(
        masked
    )
    pooled = keras.layers.GlobalAveragePooling1D()(cells)
    last = keras.layers.Flatten()(c)
    model = keras.Model(inputs, [pooled, keras.layers.Dense(1)(hidden), last])
    layer = randomize(model.layers[2], (None, None, SIZE))
    given = normal(BATCH, TIME, SIZE)
    given[:, 5:] = 0
    right = layer_reference.forward(layer, given, sequence_lengths=[5] * BATCH)
    average, _, last = model(given)
    # The pooling takes the mask that comes with the cells.
    np.testing.assert_allclose(average, right.cells.sum(1) / 5, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, right.cells[:, 4], rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(given, verbose=0)[0], average, rtol=1e-5, atol=1e-6)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(given)[0], average, rtol=1e-5, atol=1e-6)
    before = layer.kernel.numpy()
    model.compile("sgd", loss=[lambda _, y: tf.reduce_sum(y), None, None])
    model.fit(given, [given[:, 0, :1]] * 3, verbose=0)
    assert np.abs(layer.kernel.numpy() - before).max() > 1e-4


@pytest.mark.slow
def test_in_exports(tmp_path):
    """With resets, which are made of the inputs: exporters see a model of one input."""
    inputs = keras.Input((6, SIZE), batch_size=2)
    layer, given = lstm(direction="bidirectional"), normal(2, 6, SIZE)
    model = keras.Model(inputs, layer(inputs, resets=inputs[:, :, 0] > 0.5)[1])
    right = model(given)
    assert np.abs(right - layer_reference.forward(layer, given).cells).max() > 1e-3
    crnn.export_portable(model, tmp_path / "portable")
    portable = tf.saved_model.load(str(tmp_path / "portable"))
    results = [portable.serve(given)]
    crnn.export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    results += session.run(None, {session.get_inputs()[0].name: given})
    crnn.export_litert(model, tmp_path / "model.tflite")
    run = Interpreter(str(tmp_path / "model.tflite"), num_threads=1).get_signature_runner()
    results += run(**dict.fromkeys(run.get_input_details(), given)).values()
    for result in results:
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


def test_is_refused_by_name():
    layer = lstm()
    for convert in (crnn.CpuPredictor, crnn.convert.to_keras, crnn.convert.to_onnx):
        with pytest.raises(ValueError, match="return_cell_sequences"):
            convert(layer)
    with pytest.raises(ValueError, match="expected return_cell_sequences=False, or direction="):
        keras.layers.Bidirectional(crnn.CudnnLSTM(1, 4, return_cell_sequences=True))
    with pytest.raises(TypeError, match="return_cell_sequences"):
        crnn.CudnnGRU(1, 4, return_cell_sequences=True)
    config = RnnConfig("gru", 1, 4, SIZE)
    states = [tf.zeros(shape) for shape in config.state_shapes(2, time_major=True)]
    with pytest.raises(ValueError, match="expected no return_cell_sequences: 'gru' has no c"):
        params = tf.zeros(config.layout.size)
        ops.forward(config, tf.zeros((5, 2, SIZE)), states, params, return_cell_sequences=True)
