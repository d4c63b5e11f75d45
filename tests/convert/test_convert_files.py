"""`convert_file` and `python -m cudnn_rnn_tf convert`."""

import itertools
import sys

import keras
import numpy as np
import pytest
from layer_reference import make, normal, randomize

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf.convert import file_inspection

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

FORMATS = (".pt", ".pth", ".safetensors", ".keras", ".onnx")


def layer_of(rnn_mode: str = "lstm") -> keras.layers.Layer:
    return randomize(make(rnn_mode, 2, 3, direction="bidirectional"), (None, None, 4))


def write(layer, path) -> None:
    """Writes a file, without the tested code if the format allows it."""
    if path.suffix in (".pt", ".pth"):
        torch.save(convert.to_torch(layer).state_dict(), path)
    elif path.suffix == ".safetensors":
        state_dict = convert.to_torch(layer).state_dict()
        safetensors_numpy.save_file({key: t.numpy() for key, t in state_dict.items()}, path)
    elif path.suffix == ".onnx":
        onnx.save(convert.to_onnx(layer), str(path))
    else:
        keras.Sequential([keras.Input((None, 4)), layer]).save(path)


def read(path) -> np.ndarray:
    """Returns the parameters in a file."""
    if path.suffix == ".keras":
        (layer,) = keras.saving.load_model(path).layers
        return layer.kernel.numpy()
    if path.suffix == ".onnx":
        return convert.from_onnx(path).kernel.numpy()
    if path.suffix == ".safetensors":
        return convert.from_torch(safetensors_numpy.load_file(path)).kernel.numpy()
    return convert.from_torch(torch.load(path, weights_only=True)).kernel.numpy()


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(FORMATS, 2)))
def test_every_format_to_every_other(source, target, tmp_path):
    layer = layer_of("gru" if source == ".onnx" else "lstm")
    write(layer, tmp_path / f"source{source}")
    line = convert.convert_file(tmp_path / f"source{source}", tmp_path / f"target{target}")
    assert f"{layer.rnn_mode}, 2 layers, bidirectional, input size 4, 3 units, float32, " in line
    assert f"{layer.params_size()} parameters" in line
    np.testing.assert_array_equal(read(tmp_path / f"target{target}"), layer.kernel.numpy())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"source{source}",
        f"target{target}",
    ]


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_stock_keras(rnn_mode, tmp_path):
    layer = layer_of(rnn_mode)
    write(layer, tmp_path / "fused.keras")
    paths = tmp_path / "fused.keras", tmp_path / "stock.keras"
    line = convert.convert_file(*paths, stock_keras=True)
    assert line.endswith("stock.keras (each gate's two biases added)") == (rnn_mode == "lstm")
    model = keras.saving.load_model(tmp_path / "stock.keras")
    assert {type(layer) for layer in model.layers} == {keras.layers.Bidirectional}
    inputs = normal(2, 5, 4)
    np.testing.assert_allclose(model(inputs), layer(inputs), rtol=0, atol=1e-5)
    if rnn_mode == "gru":
        convert.convert_file(tmp_path / "stock.keras", tmp_path / "again.keras")
        np.testing.assert_array_equal(read(tmp_path / "again.keras"), layer.kernel)


def test_dropout_of_keras_layers(tmp_path):
    source = tmp_path / "source.keras"
    keras.Sequential([keras.Input((None, 4)), keras.layers.LSTM(3, dropout=0.5)]).save(source)
    with pytest.raises(ValueError, match="dropout=0.5 .*for_inference=True"):
        convert.convert_file(source, tmp_path / "target.pt")
    convert.convert_file(source, tmp_path / "target.onnx")
    command = ["convert", str(source), str(tmp_path / "target.pt"), "--for-inference"]
    assert __main__.main(command) == 0
    np.testing.assert_array_equal(read(tmp_path / "target.pt"), read(tmp_path / "target.onnx"))


def test_stateful_and_time_major_models(tmp_path):
    for name, options, lead in (
        ("stateful", {"stateful": True}, (2, None)),
        ("time_major", {"time_major": True}, (None, None)),
    ):
        layer = randomize(make("lstm", **options), (*lead, 4))
        model = keras.Sequential([keras.Input(batch_shape=(*lead, 4)), layer])
        model.save(tmp_path / f"{name}.keras")
        convert.convert_file(tmp_path / f"{name}.keras", tmp_path / f"{name}_2.keras")
        (again,) = keras.saving.load_model(tmp_path / f"{name}_2.keras").layers
        assert getattr(again, name)
        np.testing.assert_array_equal(again.kernel, layer.kernel)


def test_an_accelerated_model(tmp_path):
    """Its networks are the stock model's, of which test_convert_keras.py asks more."""
    lstms = [keras.layers.LSTM(3, return_sequences=True, name=f"lstm_{n}") for n in range(2)]
    stock = keras.Sequential([keras.Input((None, 4)), *lstms, keras.layers.GRU(2, name="gru")])
    stock.save(tmp_path / "stock.keras")
    crnn.accelerate(stock).save(tmp_path / "fast.keras")
    for name in ("stock", "fast"):
        paths = tmp_path / f"{name}.keras", tmp_path / f"{name}.safetensors"
        with pytest.raises(ValueError, match="say which by name; there are: 'lstm_0', 'gru'"):
            convert.convert_file(*paths)
        line = convert.convert_file(*paths, name="lstm_0")
        sizes = "lstm, 2 layers, unidirectional, input size 4, 3 units"
        assert f"{paths[0]}, lstm_0: {sizes}" in line
        assert [
            (found.name, found.rnn_mode, found.input_size, found.num_units)
            for found in file_inspection.inspect_file(paths[0])
        ] == [("lstm_0", "lstm", 4, 3), ("lstm_1", "lstm", 3, 3), ("gru", "gru", 3, 2)]
    np.testing.assert_array_equal(*(read(tmp_path / f"{n}.safetensors") for n in ("stock", "fast")))


def test_bfloat16_safetensors(tmp_path):
    module = torch.nn.GRU(4, 3, dtype=torch.bfloat16)
    torch.save(module.state_dict(), tmp_path / "m.pt")
    convert.convert_file(tmp_path / "m.pt", tmp_path / "m.safetensors")
    layer = convert.from_torch(tmp_path / "m.safetensors")
    assert layer.variable_dtype == "bfloat16"
    np.testing.assert_array_equal(layer.kernel, convert.from_torch(module).kernel)


class Malicious:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("the file ran code",))


def test_files_cannot_run_code(tmp_path):
    torch.save({"weight_ih_l0": Malicious()}, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="no file of tensors alone"):
        convert.from_torch(tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("m.pt", "m.h5"), ValueError, "to end in .pt, .*, but received '.*m.h5'"),
        (("m.bin", "m.onnx"), ValueError, "m.bin is no file of Keras's, PyTorch's"),
        (("none.pt", "m.onnx"), FileNotFoundError, "no file '.*none.pt'"),
        (("m.pt", "none/m.onnx"), FileNotFoundError, "no directory '.*none'"),
    ],
)
def test_wrong_arguments(arguments, error, message, tmp_path):
    write(layer_of(), tmp_path / "m.pt")
    (tmp_path / "m.bin").write_bytes(b"nothing of the kind")
    with pytest.raises(error, match=message):
        convert.convert_file(*(tmp_path / name for name in arguments))


def test_options_that_do_not_fit(tmp_path):
    write(layer_of(), tmp_path / "m.pt")
    write(layer_of(), tmp_path / "m.keras")
    with pytest.raises(ValueError, match="stock_keras is for .keras files"):
        convert.convert_file(tmp_path / "m.pt", tmp_path / "m.onnx", stock_keras=True)
    with pytest.raises(ValueError, match="rnn_mode is for files of weights alone"):
        convert.convert_file(tmp_path / "m.keras", tmp_path / "m.onnx", rnn_mode="rnn_relu")


@pytest.mark.parametrize(
    ("suffix", "package"), [(".onnx", "onnx"), (".safetensors", "safetensors"), (".pt", "torch")]
)
def test_package_that_is_not_installed(suffix, package, tmp_path, monkeypatch, capsys):
    write(layer_of(), tmp_path / "m.keras")
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    target = tmp_path / f"m{suffix}"
    assert __main__.main(["convert", str(tmp_path / "m.keras"), str(target)]) == 1
    assert f"{package} is needed for this" in capsys.readouterr().err
    assert not target.exists()
