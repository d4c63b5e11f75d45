"""Tests what the package says of itself, and its errors if it cannot work."""

import ast
import inspect
import os
import pathlib
import platform
import re
import runpy
import subprocess
import sys
import textwrap

import fresh_process
import keras
import numpy as np
import pytest
import tensorflow as tf

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import cells, cudnn_rnn_ops, layers, native
from cudnn_rnn_tf.commands import installation_info, known_gpus
from cudnn_rnn_tf.contrib import saveable
from cudnn_rnn_tf.layers import rnn_layer
from cudnn_rnn_tf.ops import op_library


def test_info():
    info = crnn.info()
    assert info["version"] == crnn.__version__
    assert info["python"] == platform.python_version()
    assert info["tensorflow"] == tf.__version__
    assert info["keras"] == keras.__version__
    assert ".".join(tf.__version__.split(".")[:2]) in info["built_for_tensorflow"]
    assert info["compiler"] and info["build_type"]
    assert pathlib.Path(info["op_library"]).is_file()
    assert info["backends"]["cpu"] == "available"
    assert isinstance(info["backends"]["cudnn"], str)
    # The documentation lists exactly these keys.
    assert set(info) == {
        *("version", "python", "tensorflow", "keras", "built_for_tensorflow", "compiler"),
        *("build_type", "cpu_features", "cpu_isa", "op_library", "backends", "gpu"),
    }


def test_gpus_and_their_kernels(monkeypatch):
    """What `cudnn-rnn-tf bench` prints below its times."""
    details = {"compute_capability": (8, 6), "device_name": "NVIDIA A10"}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
    monkeypatch.setattr(op_library, "imitated_architecture", lambda: 75)
    kernels = {"lstm, 8 units": "teams of 4 blocks"}
    monkeypatch.setattr(installation_info, "_gpu", lambda: {"kernels": kernels})
    row = "GPU A10, compute capability 8.6, half types 1152, TF32 1152, float32 without TF32 672, "
    row += "how it was tried compiled"
    assert [line.split(maxsplit=1) for line in installation_info.gpu_lines()] == [
        ["GPU", "NVIDIA A10, compute capability 8.6"],
        ["in", f"the table   {row}"],
        ["imitated", "architecture 75"],
        ["kernel", "lstm, 8 units: teams of 4 blocks"],
    ]


@pytest.mark.parametrize(
    ("device_name", "compute_capability", "name"),
    [
        ("Tesla T4", "7.5", "T4"),
        ("NVIDIA GeForce RTX 2070", "7.5", "RTX 20 (RTX 2080 Ti)"),
        ("NVIDIA A100-SXM4-40GB", "8.0", "A100"),
        ("NVIDIA A10G", "8.6", "A10"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "8.6", "RTX 30 (RTX 3090)"),
        ("NVIDIA L4", "8.9", "L4"),
        ("NVIDIA L40S", "8.9", "L40S"),
        ("NVIDIA H100 80GB HBM3", "9.0", "H100, H200"),
        ("NVIDIA H200", "9.0", "H100, H200"),
        ("NVIDIA L40", "8.9", None),
        ("NVIDIA RTX 2000 Ada Generation", "8.9", None),
        ("Tesla V100-SXM2-16GB", "7.0", None),
    ],
)
def test_row_of_a_gpu(device_name, compute_capability, name):
    assert known_gpus.row_of(device_name, compute_capability).get("GPU") == name


def test_table_of_gpus_is_that_of_the_page():
    page = pathlib.Path(__file__).parents[2] / "docs/guides/gpu.md"
    rows = "".join(f"| {' | '.join(row)} |\n" for row in known_gpus.ROWS)
    titles = f"| {' | '.join(known_gpus.COLUMNS)} |\n|{'---|' * len(known_gpus.COLUMNS)}\n"
    assert f"\n\n{titles}{rows}\n" in page.read_text()


@pytest.mark.parametrize("module", [crnn, native], ids=lambda module: module.__name__)
def test_all_names_are_there(module):
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    if module is crnn:
        assert dir(module) == sorted(module.__all__)  # A prompt completes these names.


def test_processor_has_the_instruction_set_in_use():
    info = crnn.info()
    needed = {
        "baseline": (),
        "avx2": ("avx2", "fma"),
        "avx512": ("avx512f", "avx512dq"),
        "avx512bf16": ("avx512f", "avx512dq", "avx512bf16"),
        "amx": ("avx512f", "avx512dq", "avx512bf16", "amx"),
    }
    assert all(info["cpu_features"][feature] for feature in needed[info["cpu_isa"]])


# The public names.


def test_constants_are_where_contrib_had_them():
    expected = {
        "CUDNN_LSTM": "lstm",
        "CUDNN_GRU": "gru",
        "CUDNN_RNN_RELU": "rnn_relu",
        "CUDNN_RNN_TANH": "rnn_tanh",
        "CUDNN_RNN_UNIDIRECTION": "unidirectional",
        "CUDNN_RNN_BIDIRECTION": "bidirectional",
        "CUDNN_INPUT_LINEAR_MODE": "linear_input",
        "CUDNN_INPUT_SKIP_MODE": "skip_input",
        "CUDNN_INPUT_AUTO_MODE": "auto_select",
        "CUDNN_LSTM_PARAMS_PER_LAYER": 8,
        "CUDNN_GRU_PARAMS_PER_LAYER": 6,
        "CUDNN_RNN_TANH_PARAMS_PER_LAYER": 2,
        "CUDNN_RNN_RELU_PARAMS_PER_LAYER": 2,
    }
    for module in (crnn, cudnn_rnn_ops):
        assert {name: getattr(module, name) for name in expected} == expected


def own_documentation(thing: object) -> str | None:
    """Returns the docstring of a thing, unless it is a class that only inherits one."""
    return vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__


@pytest.mark.parametrize(
    "module", [crnn, cells, cudnn_rnn_ops, installation_info, layers, native, op_library, saveable]
)
def test_public_things_are_documented(module):
    assert module.__doc__
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    things = {name: getattr(module, name) for name in names}
    package = crnn.__name__
    things = {
        name: thing
        for name, thing in things.items()
        if (inspect.isclass(thing) or inspect.isroutine(thing))
        and thing.__module__.partition(".")[0] == package
    }
    assert things
    for name, thing in things.items():
        assert own_documentation(thing), name


def test_arguments_are_documented():
    """Each argument of a constructor or function is explained in its docstring."""
    for thing in (
        *(crnn.CudnnOpaqueParamsSaveable, rnn_layer.CudnnRNN, crnn.AllGates, crnn.PerGate),
        *(cudnn_rnn_ops.CudnnLSTM, cudnn_rnn_ops.cudnn_lstm),
        crnn.CudnnCompatibleLSTMCell,
    ):
        documentation = inspect.getdoc(thing)
        for name in inspect.signature(thing).parameters:
            assert name in ("self", "args", "kwargs") or re.search(rf"\b{name}\b", documentation), (
                f"{thing.__qualname__}: {name}"
            )


@pytest.mark.parametrize("name", ["CudnnLSTM", "CudnnGRU", "CudnnRNNTanh", "CudnnRNNRelu"])
def test_editors_see_the_layers_arguments_and_examples(name):
    """The signature has all arguments, including a cell's own, and the examples run."""
    layer = getattr(layers, name)
    parameters = dict(inspect.signature(layer).parameters)
    gated = ["activation", "recurrent_activation", "use_layer_norm", "layer_norm_epsilon"]
    of_lstm = ["num_proj", "cell_clip", "use_peepholes", "peephole_initializer", *gated]
    of_lstm += ["return_cell_sequences", "cell_zoneout"]
    own = {"CudnnLSTM": of_lstm, "CudnnGRU": ["reset_after", *gated]}
    for each in own.get(name, []):
        parameters.pop(each)
    expected = inspect.signature(rnn_layer.CudnnRNN).parameters
    assert {each: str(given) for each, given in parameters.items()} == {
        each: str(given) for each, given in expected.items()
    }
    # Static tools read the docstring in this way.
    source = ast.parse(inspect.getsource(layer)).body[0]
    own_text = ast.get_docstring(source)
    # A notebook also shows the arguments that all layers have.
    text = inspect.getdoc(layer)
    assert text.startswith(own_text)
    described = set(re.findall(r"^    \**(\w+): ", text, re.MULTILINE))
    assert expected.keys() <= described
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(layer), re.DOTALL)
    exec(textwrap.dedent(example), {"cudnn_rnn_tf": crnn, "np": np})


# The package without TensorFlow.


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess:
    root = pathlib.Path(crnn.__file__).parents[1]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_native_works_without_tensorflow():
    result = run_python(
        """
        import sys
        sys.modules["tensorflow"] = None  # Its import raises ModuleNotFoundError.

        import numpy as np
        import cudnn_rnn_tf
        from cudnn_rnn_tf import native

        layout = native.ParamLayout(
            rnn_mode="gru", num_layers=1, num_units=2, input_size=3, input_mode="linear_input",
            direction="unidirectional", bias_mode="double", num_proj=0, dropout=0.0, cell_clip=0.0
        )
        assert layout.size == 3 * (2 * 3 + 2 * 2 + 2 + 2), layout.size
        packed = layout.canonical_to_params(*layout.params_to_canonical(np.arange(layout.size)))
        assert np.array_equal(packed, np.arange(layout.size))
        assert all(path.is_file() for path in native.op_library_files().values())
        assert native.info()["compiler"]
        assert cudnn_rnn_tf.native is native
        for name in ("CudnnLSTM", "info", "cudnn_rnn_ops"):
            try:
                getattr(cudnn_rnn_tf, name)
            except AttributeError as error:
                print(error)
            else:
                raise AssertionError(name)
        assert not hasattr(cudnn_rnn_tf, "CudnnGRU")
        assert not any(name.split(".")[0] in ("keras", "torch") for name in sys.modules)
        """
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("CudnnLSTM", "info", "cudnn_rnn_ops"), strict=True):
        assert line.startswith(f"cudnn_rnn_tf.{name} needs TensorFlow, which cannot be imported")
        assert line.endswith("only cudnn_rnn_tf.native works without it")


# The package together with another Keras.


def test_other_keras_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ImportError) as error:
        runpy.run_path(crnn.__file__)
    message = str(error.value)
    assert message.startswith("cudnn_rnn_tf needs Keras's TensorFlow backend, but Keras runs on")
    assert "'torch': set the environment variable KERAS_BACKEND to 'tensorflow'" in message


def test_tf_keras_is_refused(monkeypatch):
    """In models of `tf_keras`, functional or not, a layer's weights would never train."""
    pytest.importorskip("tf_keras")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    result = run_python(
        """
        import tensorflow as tf
        import cudnn_rnn_tf as crnn

        x, h = tf.keras.Input((None, 3)), tf.keras.Input((1, 2))
        for inputs, states in ((x, None), (x, h), (tf.zeros([2, 4, 3]), [h])):
            try:
                crnn.CudnnGRU(1, 2)(inputs, initial_state=states)
            except TypeError as error:
                print(" ".join(str(error).split()))

        layer = crnn.CudnnGRU(1, 2)

        class Model(tf.keras.Model):
            def call(self, inputs):
                return layer(inputs)

        model = Model()
        model.compile("sgd", "mse")
        data = tf.zeros([2, 4, 3])
        for run in (lambda: model(data), lambda: model.fit(data, tf.zeros([2, 4, 2]), verbose=0)):
            try:
                run()
            except TypeError as error:
                print(" ".join(str(error).split()))
        print(layer(data).shape)  # It runs on its own.
        """
    )
    assert result.returncode == 0, result.stderr
    *lines, alone = result.stdout.splitlines()
    assert len(lines) == 5, result.stdout
    for line in lines:
        assert "TF_USE_LEGACY_KERAS" in line
    assert all("received KerasTensor of tf_keras" in line for line in lines[:3])
    # The layers get plain tensors in these cases.
    assert all("called in a layer or model of tf_keras" in line for line in lines[3:])
    assert alone == "(2, 4, 2)"


def test_info_does_not_initialize_tensorflow():
    """Without a GPU to ask, devices can still be configured afterwards."""
    program = """
import tensorflow as tf
import cudnn_rnn_tf as crnn

assert crnn.info()["backends"]["cudnn"].startswith("not available")
tf.config.threading.set_intra_op_parallelism_threads(1)  # Too late once initialized.
"""
    fresh_process.run_program(program, CUDA_VISIBLE_DEVICES="-1")


# The op library.


@pytest.mark.parametrize("content", [None, b"not a library"], ids=["missing", "broken"])
def test_library_that_cannot_be_loaded(content, monkeypatch, tmp_path):
    path = tmp_path / "libops.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(op_library, "find", lambda version: path)
    with pytest.raises(ImportError, match=f"cannot load cudnn_rnn_tf's op library {path}: "):
        op_library.load()
