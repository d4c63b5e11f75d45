"""ONNX models whose networks start from constants, as layers, as files and in training."""

import keras
import numpy as np
import pytest
from layer_reference import make, normal, randomize

from cudnn_rnn_tf import convert
from cudnn_rnn_tf.convert import file_inspection

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def run(model, inputs: np.ndarray) -> np.ndarray:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(content).run(None, {"inputs": inputs})[0]


def started(rnn_mode: str, batch_size: int, time_major: bool = False):
    """Returns a random layer, and what it is to start from."""
    layer = randomize(
        make(rnn_mode, 2, 3, direction="bidirectional", time_major=time_major), (None, None, 4)
    )
    states = [normal(*shape, seed=i + 7) for i, shape in enumerate(layer.state_shape(batch_size))]
    return layer, states


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_relu"])
def test_there_and_back(rnn_mode, time_major, batch_size):
    layer, states = started(rnn_mode, batch_size, time_major)
    inputs = normal(*((5, 2) if time_major else (2, 5)), 4)
    model = convert.to_onnx(layer, initial_state=states)
    of_batch = list(map(np.broadcast_to, states, layer.state_shape(2)))
    expected = layer(inputs, initial_state=of_batch)
    np.testing.assert_allclose(run(model, inputs), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="return_initial_state=True returns them beside the layer"):
        convert.from_onnx(model)
    again, read = convert.from_onnx(model, time_major=time_major, return_initial_state=True)
    np.testing.assert_array_equal(again.kernel, layer.kernel)
    for received, state in zip(read, states, strict=True):
        np.testing.assert_array_equal(received, state)


def test_zeros_are_no_states():
    layer, states = started("lstm", 1)
    model = convert.to_onnx(layer, initial_state=[0 * state for state in states])
    assert convert.from_onnx(model, return_initial_state=True)[1] is None
    assert convert.from_onnx(model).num_layers == 2


@pytest.mark.parametrize("batch_size", [1, 2])
def test_files(batch_size, tmp_path):
    """A Keras model holds the states as weights, and an ONNX model as constants again."""
    layer, states = started("lstm", batch_size)
    onnx.save(convert.to_onnx(layer, initial_state=states), str(tmp_path / "m.onnx"))
    (found,) = file_inspection.inspect_file(tmp_path / "m.onnx")
    assert found.convert == "yes"
    text = convert.convert_file(tmp_path / "m.onnx", tmp_path / "m.keras")
    assert "m.keras, from initial states that are not zero" in text
    inputs = normal(2, 5, 4)
    expected = run((tmp_path / "m.onnx").read_bytes(), inputs)
    model = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(model(inputs), expected, rtol=0, atol=1e-5)
    convert.convert_file(tmp_path / "m.keras", tmp_path / "again.onnx")
    again = run((tmp_path / "again.onnx").read_bytes(), inputs)
    np.testing.assert_allclose(again, expected, rtol=0, atol=1e-6)
    model.compile("sgd", "mse")
    before = [np.array(weight) for weight in model.trainable_weights]
    assert len(before) == 3
    model.fit(inputs, np.ones_like(expected), verbose=0)
    for old, new in zip(before, model.trainable_weights, strict=True):
        assert np.any(old != new)


def test_what_cannot_hold_the_states(tmp_path):
    layer, states = started("gru", 1)
    source = tmp_path / "m.onnx"
    onnx.save(convert.to_onnx(layer, initial_state=states), str(source))
    with pytest.raises(ValueError, match="not zero, which the layers of PyTorch do not hold"):
        convert.convert_file(source, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="not zero, which the layers of Keras do not hold"):
        convert.convert_file(source, tmp_path / "m.keras", stock_keras=True)
    convert.convert_file(source, tmp_path / "m.keras")
    model = keras.saving.load_model(tmp_path / "m.keras")
    second = keras.layers.GRU(3, name="second")(model.output)
    keras.Model(model.input, second).save(tmp_path / "two.keras")
    with pytest.raises(ValueError, match="InitialState, and nothing tells for which"):
        convert.convert_file(tmp_path / "two.keras", tmp_path / "x.onnx", name="second")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.keras", "m.onnx", "two.keras"]


def test_wrong_states():
    layer, states = started("lstm", 1)
    with pytest.raises(ValueError, match=r"of shapes \[\(1, 4, 3\), \(1, 4, 3\)\], but received"):
        convert.to_onnx(layer, initial_state=states[:1])
    with pytest.raises(ValueError, match="with_initial_state or initial_state, but received both"):
        convert.to_onnx(layer, initial_state=states, with_initial_state=True)


def test_constants_beside_inputs():
    """Either a caller says what a network starts from, or the model does."""
    layer, states = started("lstm", 1)
    model = convert.to_onnx(layer, initial_state=states)
    shape = (4, None, 3)
    given = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, shape)
    model.graph.input.append(given)
    for node in model.graph.node:
        if node.op_type == "Split" and node.input[0].startswith("initial_c"):
            node.input[0] = "c"
    with pytest.raises(ValueError, match="some initial states of the network are constants that"):
        convert.from_onnx(model, return_initial_state=True)
