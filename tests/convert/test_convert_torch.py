"""Layers from PyTorch's recurrent modules and back."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from layer_reference import LAYERS, make, normal, randomize

from cudnn_rnn_tf import convert

torch = pytest.importorskip("torch")

# Networks this small gain nothing from several threads, which wait for each other.
torch.set_num_threads(1)

# Sums of a few dozen products keep 13 digits in float64 and 6 in float32; steps cost one more.
TOLERANCE = {"float64": 1e-11, "float32": 1e-5}
MODULES = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn_tanh": torch.nn.RNN,
    "rnn_relu": torch.nn.RNN,
}


def random_module(index: int, rnn_mode: str | None = None) -> torch.nn.Module:
    rng = np.random.default_rng(index)
    rnn_mode = rnn_mode or tuple(MODULES)[index % 4]
    units = int(rng.integers(2, 9))
    options = {
        "input_size": int(rng.integers(1, 9)),
        "hidden_size": units,
        "num_layers": int(rng.integers(1, 4)),
        "bias": bool(rng.random() < 0.6),
        "batch_first": bool(rng.random() < 0.5),
        "bidirectional": bool(index // 8 % 2),
        "dtype": (torch.float64, torch.float32)[index // 4 % 2],
    }
    if rnn_mode == "lstm" and rng.random() < 0.5:
        options["proj_size"] = int(rng.integers(1, units))
    if rnn_mode.startswith("rnn"):
        options["nonlinearity"] = rnn_mode.removeprefix("rnn_")
    torch.manual_seed(index)
    return MODULES[rnn_mode](**options)


def run_module(module: torch.nn.Module, inputs: np.ndarray) -> list[np.ndarray]:
    """Returns outputs and states, in the layer's layout."""
    with torch.no_grad():
        outputs, states = module(torch.from_numpy(inputs))
    states = states if isinstance(states, tuple) else (states,)
    states = [state.numpy() for state in states]
    if module.batch_first:
        states = [state.swapaxes(0, 1) for state in states]
    return [outputs.numpy(), *states]


def assert_same_parameters(one, other):
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("index", range(32))
def test_module_there_and_back(index):
    module = random_module(index)
    layer = convert.from_torch(module, return_state=True)
    assert layer.time_major == (not module.batch_first)
    assert layer.bias_mode == ("double" if module.bias else "none")
    inputs = normal(3, 4, module.input_size, dtype=layer.dtype)
    for value, expected in zip(layer(inputs), run_module(module, inputs), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE[layer.dtype])
    again = convert.to_torch(layer)
    assert type(again) is type(module)
    for name in ("batch_first", "bidirectional", "bias", "num_layers", "proj_size", "mode"):
        assert getattr(again, name) == getattr(module, name)
    assert_same_parameters(module.state_dict(), again.state_dict())
    for value, expected in zip(run_module(again, inputs), run_module(module, inputs), strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("rnn_mode", LAYERS)
def test_state_dict(rnn_mode):
    """State dicts hold tensors or arrays; their shapes tell all but a plain RNN's nonlinearity."""
    module = random_module(3, rnn_mode)
    given = rnn_mode if rnn_mode.startswith("rnn") else None
    arrays = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    expected = convert.from_torch(module).kernel.numpy()
    for source in (module.state_dict(), arrays):
        layer = convert.from_torch(source, rnn_mode=given, dropout=0.5)
        assert layer.rnn_mode == rnn_mode
        assert not layer.time_major
        assert layer.dropout == 0.5
        np.testing.assert_array_equal(layer.kernel, expected)


def test_within_a_model():
    model = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(3, 4),
            "encoder": torch.nn.ModuleDict(
                {"lstm": torch.nn.LSTM(4, 3), "out": torch.nn.GRU(3, 2)}
            ),
        }
    )
    expected = convert.from_torch(model["encoder"]["lstm"]).kernel.numpy()
    checkpoint = {"epoch": 3, "state_dict": model.state_dict()}
    for source, name in (
        (model, "encoder.lstm"),
        (model.state_dict(), "encoder.lstm"),
        (checkpoint, "state_dict.encoder.lstm"),
    ):
        np.testing.assert_array_equal(convert.from_torch(source, name=name).kernel, expected)
    for source in (model, model.state_dict()):
        with pytest.raises(ValueError, match="'encoder.lstm', 'encoder.out'"):
            convert.from_torch(source)
        with pytest.raises(ValueError, match="named 'lstm'; there are: 'encoder.lstm'"):
            convert.from_torch(source, name="lstm")
    with pytest.raises(ValueError, match="there are none"):
        convert.from_torch(torch.nn.Linear(2, 3))


@pytest.mark.parametrize("bias_mode", ["single_input", "single_recurrent"])
@pytest.mark.parametrize("rnn_mode", ["lstm", "gru"])
def test_single_biases(rnn_mode, bias_mode):
    """PyTorch has both sides' biases. The missing ones are zeros, which the way back may drop."""
    layer = randomize(make(rnn_mode, 2, 3, bias_mode=bias_mode), (None, None, 4))
    module = convert.to_torch(layer)
    zeros = module.bias_hh_l1 if bias_mode == "single_input" else module.bias_ih_l1
    assert not torch.any(zeros)
    inputs = normal(2, 3, 4)
    np.testing.assert_allclose(layer(inputs), run_module(module, inputs)[0], rtol=0, atol=1e-5)
    again = convert.from_torch(module, bias_mode=bias_mode)
    np.testing.assert_array_equal(again.kernel, layer.kernel)
    with pytest.raises(ValueError, match="has no place for a bias"):
        convert.from_torch(module, bias_mode="none")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype):
    module = random_module(0).to(getattr(torch, dtype))
    layer = convert.from_torch(module)
    assert layer.variable_dtype == dtype
    assert_same_parameters(module.state_dict(), convert.to_torch(layer).state_dict())
    wide = convert.from_torch(module, dtype="float32")
    np.testing.assert_array_equal(wide.kernel, tf.cast(layer.kernel.value, tf.float32))


def test_parameters_that_require_gradients_and_are_not_contiguous():
    module = torch.nn.RNN(3, 4)
    module.weight_ih_l0 = torch.nn.Parameter(module.weight_ih_l0.T.contiguous().T)
    layer = convert.from_torch(dict(module.named_parameters()), rnn_mode="rnn_tanh")
    expected = module.weight_ih_l0.detach().numpy()
    np.testing.assert_array_equal(layer.params_to_canonical()[0][0], expected)


def test_random_numbers_stay_the_users():
    layer = randomize(make("lstm"), (None, None, 4))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    convert.to_torch(layer)
    assert torch.equal(torch.rand(3), expected)


def test_dropout_is_kept():
    module = torch.nn.GRU(3, 4, 2, dropout=0.25)
    layer = convert.from_torch(module)
    assert layer.dropout == 0.25
    assert convert.to_torch(layer).dropout == 0.25
    assert convert.from_torch(module, dropout=0.0).dropout == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"input_mode": "skip_input"},
            "input_mode='skip_input' .* no equivalent in torch",
        ),
        ({"cell_clip": 1.0}, "cell_clip=1.0"),
        ({"recurrent_weight_dropout": 0.1}, "recurrent_weight_dropout=0.1"),
        ({"go_backwards": True}, "go_backwards=True"),
        ({"num_proj": 3}, "num_proj=3 .* below num_units"),
    ],
)
def test_what_torch_has_not(options, message):
    layer = randomize(make("lstm", **options), (None, None, 3))
    with pytest.raises(ValueError, match=message):
        convert.to_torch(layer)


def test_wrong_layers():
    with pytest.raises(TypeError, match="expected one of the layers CudnnLSTM, .* received 3"):
        convert.to_torch(3)
    with pytest.raises(ValueError, match="not built"):
        convert.to_torch(make("gru"))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"weight_hh_l0": None}, {}, "matrix weight_hh_l0"),
        ({"weight_hh_l0": np.zeros([12])}, {}, "matrix weight_hh_l0"),
        ({"weight_hh_l0": np.zeros([13, 3])}, {}, r"\[G \* H, H\].*\(13, 3\)"),
        ({"weight_ih_l1": np.zeros([12, 4])}, {}, r"weight_ih_l1 of shape \(12, 3\), .* \(12, 4\)"),
        ({"bias_ih_l1": None}, {}, r"bias_ih_l1 of shape \(12,\), but received none"),
        ({"bias_ih_l0": None, "bias_hh_l0": None}, {}, "bias_hh_l1"),
        ({"weight_ih_l1_reverse": np.zeros([12, 3])}, {}, "weight_ih_l0_reverse"),
        ({"weight_hr_l1": np.zeros([12, 3])}, {}, "weight_hr_l1"),
        ({}, {"rnn_mode": "gru"}, "shapes are those of lstm, but rnn_mode is 'gru'"),
        ({}, {"name": "encoder"}, "named 'encoder'"),
    ],
)
def test_wrong_state_dicts(changes, options, message):
    source = convert.to_torch(randomize(make("lstm", 2, 3), (None, None, 4))).state_dict()
    for name, value in changes.items():
        source[name] = value
    source = {name: value for name, value in source.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        convert.from_torch(source, **options)


def test_wrong_sources(tmp_path):
    with pytest.raises(ValueError, match="pass rnn_mode 'rnn_tanh' or 'rnn_relu'"):
        convert.from_torch(torch.nn.RNN(2, 3).state_dict())
    with pytest.raises(ValueError, match="expected rnn_mode to be 'lstm', .* received 'gru'"):
        convert.from_torch(torch.nn.LSTM(2, 3), rnn_mode="gru")
    with pytest.raises(TypeError, match="expected a torch.nn module, .* received int"):
        convert.from_torch(3)
    for name in ("none.pt", "none.safetensors"):
        with pytest.raises(FileNotFoundError, match=name):
            convert.from_torch(tmp_path / name)


def test_arrays_need_no_torch(monkeypatch):
    layer = randomize(make("gru"), (None, None, 4))
    parameters = {name: t.numpy() for name, t in convert.to_torch(layer).state_dict().items()}
    monkeypatch.setitem(sys.modules, "torch", None)
    assert convert.from_torch(parameters).rnn_mode == "gru"
    with pytest.raises(ImportError, match="torch is needed for this.*pip install torch"):
        convert.to_torch(layer)
    with pytest.raises(TypeError, match="state dict"):
        convert.from_torch(object())
