"""What `inspect` lists of a file's networks."""

import keras
import pytest
import tensorflow as tf
from layer_reference import make, randomize
from test_command_line import run

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import contrib, convert
from cudnn_rnn_tf.convert.file_inspection import Network, inspect_file


def test_keras_files(capsys, file):
    assert inspect_file(file) == [
        Network("ours", "CudnnLSTM", "lstm", 2, "bidirectional", 5, 4, "float32"),
        Network("both", "Bidirectional of GRU", "gru", 1, "bidirectional", 8, 3, "float32"),
        Network("inner/plain", "SimpleRNN", "rnn_tanh", 1, "unidirectional", 6, 7, "float32"),
    ]
    status, out, _ = run(capsys, "inspect", file)
    assert status == 0
    assert out.splitlines()[1].split() == (
        "ours CudnnLSTM lstm 2 bidirectional 5 4 float32 yes".split()
    )


@pytest.mark.parametrize("rnn_mode", ["gru_reset_before", "lstm_peephole", "gru_layer_norm"])
def test_kinds_of_cells(rnn_mode, tmp_path):
    keras.Sequential([keras.Input((None, 3)), make(rnn_mode)]).save(tmp_path / "m.keras")
    (found,) = inspect_file(tmp_path / "m.keras")
    assert found.rnn_mode == rnn_mode


def test_saved_models(model, tmp_path):
    model.export(tmp_path / "exported", verbose=False)
    found, *_ = inspect_file(tmp_path / "exported")
    assert found[1:8] == ("CudnnRnnTf>Forward", "lstm", 2, "bidirectional", None, 4, "float32")
    assert found.convert == "no: it is an op; convert takes the model's .keras file"
    crnn.export_portable(model, tmp_path / "portable")
    for path in ("exported", "portable"):
        stock = [each for each in inspect_file(tmp_path / path) if each != found]
        assert [each[1:7] for each in stock] == [
            ("Bidirectional of GRU", "gru", 1, "bidirectional", 8, 3),
            ("SimpleRNN", "rnn", 1, "unidirectional", 6, 7),
        ]


@pytest.mark.parametrize("rnn_mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_checkpoints(rnn_mode, direction, tmp_path):
    layer = randomize(make(rnn_mode, 2, 3, direction=direction), (None, None, 5))
    prefix = tf.train.Checkpoint(layer=layer).save(tmp_path / "checkpoint")
    mode = "rnn" if rnn_mode == "rnn_tanh" else rnn_mode
    expected = ("cudnn_rnn_tf", mode, 2, direction, 5, 3, "float32")
    for path in (prefix, f"{prefix}.index", tmp_path):
        (found,) = inspect_file(path)
        assert found[1:8] == expected
        assert "restore it with tf.train.Checkpoint" in found.convert
        assert found.name.startswith("layer/")


@pytest.mark.parametrize("kind", ["CudnnLSTM", "CudnnGRU", "CudnnRNNRelu"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_contribs_checkpoints(kind, direction, tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer = getattr(contrib, kind)(2, 3, direction=direction, name="speech")
        layer(tf.zeros([4, 2, 5]))
        saver = tf.compat.v1.train.Saver()
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = saver.save(session, str(tmp_path / "model.ckpt"))
    (found,) = inspect_file(prefix)
    mode = {"CudnnLSTM": "lstm", "CudnnGRU": "gru", "CudnnRNNRelu": "rnn"}[kind]
    assert found[1:8] == ("tf.contrib.cudnn_rnn", mode, 2, direction, 5, 3, "float32")
    assert "restore_keras_layer reads it" in found.convert
    if mode != "rnn":  # These cells have the names of TensorFlow 1's.
        with pytest.raises(ValueError, match="speech.*: cudnn_rnn_tf.contrib.restore_keras_layer"):
            convert.convert_file(prefix, tmp_path / "m.keras")
    assert "speech" in found.name
