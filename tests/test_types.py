"""What editors and type checkers see of the installed package."""

import ast
import importlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import venv

import pytest

import cudnn_rnn_tf
from cudnn_rnn_tf import native

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path(cudnn_rnn_tf.__file__).parent
MODULES = ("", ".contrib", ".convert", ".cudnn_rnn_ops", ".keras", ".native")
# Of a line that ends in "error", a checker must find fault; of no other one.
MISTAKES = """
import keras
import numpy as np
import cudnn_rnn_tf as crnn

model = keras.Sequential([keras.Input((4, 16)), keras.layers.LSTM(32)])
crnn.acclerate(model)  # error
crnn.accelerate(model, dry_run=True).fit  # error
crnn.accelerate(model, dry_run=True).layers[0].name.upper()
crnn.accelerate(model).fit
crnn.accelerate(model, dry_run=bool(model.layers)).layers
crnn.accelerate(model, dry_run=bool(model.layers)).fit  # error
crnn.CudnnLSTM(2)  # error
crnn.CudnnLSTM(2, 32).cell_clip
crnn.CudnnLSTM(2, 32, return_sequence=False)  # error
crnn.CudnnRNNTanh(2, 32, return_sequence=False)  # error
crnn.CudnnGRU(2, 32, trainable=False, input_shape=(None, 16))
crnn.CudnnLSTM(2, 32, direction="both")  # error
crnn.CudnnGRU(2, 32, activation="selu")  # error
crnn.CudnnGRU(2, 32, direction=crnn.CudnnLSTM(2, 32).direction, algorithm="cudnn")
crnn.CudnnLSTM(2, 32)(np.zeros((2, 4, 16)), resets=np.zeros((2, 4), bool))
crnn.CudnnLSTM(2, 32)(np.zeros((2, 4, 16)), reset=np.zeros((2, 4), bool))  # error
crnn.keras.LSTM(32)(np.zeros((2, 4, 16)), sequence_lengths=[4, 3])
crnn.keras.LSTM(32)(np.zeros((2, 4, 16)), lengths=[4, 3])  # error
crnn.CudnnLSTM(2, 32)(np.zeros((2, 4, 16)))()  # basedpyright: error
crnn.keras.LSTM(32)(np.zeros((2, 4, 16)))()  # basedpyright: error
outputs, h, c = crnn.CudnnLSTM(2, 32, return_state=True)(np.zeros((2, 4, 16)))
crnn.cudnn_rnn_ops.CudnnGRU(1, 2, 3, direction=crnn.cudnn_rnn_ops.CUDNN_RNN_BIDIRECTION)
crnn.cudnn_rnn_ops.cudnn_rnn_opaque_params_size("lsmt", 1, 2, 3)  # error
crnn.contrib.CudnnLSTM(2, 32)(np.zeros((4, 2, 16)), training=False, scope="read")[1][0]
crnn.contrib.CudnnLSTM(2, 32)(np.zeros((4, 2, 16)), sequence_length=[4, 3])  # error
crnn.convert.from_torch("model.pt", rnn_mode="rnn_tanh")
crnn.convert.convert_file("model.h5", "model.pt", rnn_mode="lsmt")  # error
crnn.keras.LSTM()  # error
crnn.keras.LSTM(32, "tanh", unit_forget_bias=False, dropout=0.1, dtype="float16", name="read")
crnn.keras.LSTM(32, reset_after=False)  # error
crnn.keras.GRU(32, reset_after=False, zero_output_for_mask=True)
crnn.keras.SimpleRNN(32, return_sequence=True)  # error
crnn.keras.RNN([crnn.keras.LSTMCell(32)], return_sequence=True)  # error
crnn.keras.Bidirectional(crnn.keras.LSTM(32), merge_mode="sum", name="both")
crnn.keras.Bidirectional(crnn.keras.LSTM(32), merge_mode="add")  # error
crnn.keras.LSTM(32).runs_fused.not_in_training.upper()
crnn.keras.LSTM(32).runs_fused.upper()  # error
crnn.keras.GRU(32).runs_fused.upper()  # error
crnn.keras.SimpleRNN(32).runs_fused.upper()  # error
crnn.keras.CuDNNLSTM()  # error
crnn.native.ParamLayout("lstm", 1, 32)  # error
crnn.native.ParamLayout("lsmt", 1, 32, 16)  # error
crnn.native.ParamLayout("lstm", 1, 32, 16).size.bit_length()
"""


def programs() -> dict[str, str]:
    """Returns what README and the quickstart show, and a use of every public name."""
    uses = []
    for module in MODULES:
        name = f"cudnn_rnn_tf{module}"
        uses.append(f"import {name}")
        for public in importlib.import_module(name).__all__:
            uses.append(f"print({name}.{public})")
            uses.append(f"from {name} import {public} as name_{len(uses)}")
    shown = {
        page: "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
        for page in ("README.md", "docs/quickstart.md")
    }
    return {
        "names": "\n".join(uses),
        "mistakes": MISTAKES,
        **{pathlib.Path(page).stem: text for page, text in shown.items()},
    }


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Returns a Python with the package as a wheel installs it, beside what is installed here."""
    installed = [path for path in sys.path if path.endswith("site-packages")]
    if str(PACKAGE.parent) in installed:
        return sys.executable
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "installed.pth").write_text("\n".join(installed))
    left_out = re.search(r"wheel.exclude = (\[.*\])", (ROOT / "pyproject.toml").read_text())
    shutil.copytree(
        PACKAGE,
        packages / "cudnn_rnn_tf",
        ignore=shutil.ignore_patterns(
            *(pattern.removeprefix("**/") for pattern in json.loads(left_out[1]))
        ),
    )
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["basedpyright", "mypy"])
def test_checkers_find_the_mistakes_alone(checker, python, tmp_path):
    """Neither takes a public name for private or for anything, so editors complete and check it."""
    pytest.importorskip(checker)
    expected = set()
    for name, text in programs().items():
        (tmp_path / f"{name}.py").write_text(text)
        for number, line in enumerate(text.splitlines(), 1):
            # What Keras loads has no type.
            is_loaded = checker == "basedpyright" and "again(sequences)" in line
            if is_loaded or re.search(rf"# (?:{checker}: )?error$", line):
                expected.add((name, number))
    if checker == "mypy":
        options = ["--python-executable", python, "--cache-dir", tmp_path / "cache"]
        # Keras and TensorFlow declare no types.
        options += ["--check-untyped-defs", "--disable-error-code=import-untyped"]
    else:
        (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
        options = ["--pythonpath", python, "--project", tmp_path]
    found = subprocess.run(
        [sys.executable, "-m", checker, *options, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    ).stdout
    faults = re.findall(r"(\w+)\.py:(\d+):.* error", found)
    assert {(name, int(line)) for name, line in faults} == expected, found


def test_stub_names_what_the_compiled_module_has():
    stub = ast.parse((ROOT / "cudnn_rnn_tf/native/_native.pyi").read_text())
    classes = [node for node in stub.body if isinstance(node, ast.ClassDef)]
    for node in (stub, *classes):
        module = native._native
        thing = module if node is stub else getattr(module, node.name)
        names = {getattr(each, "name", "") for each in node.body}
        names |= {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        public = {name for name in vars(thing) if not name.startswith("_")}
        assert {name for name in names if name and not name.startswith("_")} == public
