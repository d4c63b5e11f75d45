"""The script that runs Keras's own tests tells which passed, failed and were skipped."""

import keras
import pytest
import run_keras_tests

_TEST = """\
import pytest
from keras.src import layers

def test_class():
    assert layers.LSTM.__mro__[1].__name__ == "{base}"

def test_other_layers_are_there():
    assert layers.Dense(1)

@pytest.mark.skip(reason="why")
def test_skipped():
    pass
"""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "keras/src/layers/rnn"
    folder.mkdir(parents=True)
    (tmp_path / "keras/src/version.py").write_text(f'__version__ = "{keras.__version__}"\n')
    for name in run_keras_tests.FILES:
        (folder / name).write_text(_TEST.format(base="_FusedLoop"))
    return tmp_path


@pytest.mark.slow
def test_drop_ins_are_what_is_tested(source, capfd):
    assert run_keras_tests.main([str(source)]) == 0
    printed = capfd.readouterr().out
    assert f"8 of 12 tests of Keras {keras.__version__} passed" in printed
    assert "lstm_test.test_skipped skipped: why" in printed


@pytest.mark.slow
def test_unchanged_tests_are_of_keras_own_layers(source, capfd):
    assert run_keras_tests.main([str(source), "--unchanged"]) == 1
    printed = capfd.readouterr().out
    assert "4 of 12 tests" in printed
    assert "gru_test.test_class failed: AssertionError" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "what_it_changes"),
    [
        ("--no-tf32", "not tf.config.experimental.tensor_float_32_execution_enabled()"),
        ("--jit-compile", "keras.Sequential([layers.LSTM(1, use_cudnn=False)]).jit_compile"),
    ],
)
def test_flags(source, capfd, flag, what_it_changes):
    for name in run_keras_tests.FILES:
        (source / "keras/src/layers/rnn" / name).write_text(
            "import keras\n"
            "import tensorflow as tf\n"
            "from keras.src import layers\n"
            "def test_flag():\n"
            f"    assert {what_it_changes}\n"
        )
    assert run_keras_tests.main([str(source)]) == 1
    assert run_keras_tests.main([str(source), flag]) == 0
    assert "4 of 4 tests" in capfd.readouterr().out


def test_the_source_must_fit(source):
    test = source / "keras/src/layers/rnn/gru_test.py"
    test.write_text("from keras import layers\n")
    with pytest.raises(ValueError, match="gru_test.py"):
        run_keras_tests.main([str(source)])
    (source / "keras/src/version.py").write_text('__version__ = "1.0"\n')
    with pytest.raises(ValueError, match=f"source of Keras {keras.__version__}"):
        run_keras_tests.main([str(source)])
    with pytest.raises(ValueError, match="version.py is missing"):
        run_keras_tests.main([str(source / "keras")])
