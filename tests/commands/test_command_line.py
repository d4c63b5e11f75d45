"""The command `cudnn-rnn-tf`: what it prints, its exit status, and what it says of mistakes."""

import json
import os
import pathlib
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_reference import normal

import cudnn_rnn_tf as crnn
from cudnn_rnn_tf import __main__, ops
from cudnn_rnn_tf.commands import bench, doctor


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = __main__.main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def run_alone(command: list, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a process that has not imported TensorFlow yet."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# The command info, and what all commands have in common.


def test_info(capsys):
    status, out, _ = run(capsys, "info")
    assert status == 0
    assert f"version        {crnn.__version__}\n" in out
    assert out.startswith("runs on        ")
    if not tf.config.list_physical_devices("GPU"):
        assert f"CPU, {crnn.info()['cpu_isa']} kernels, since the GPU is not available: " in out
    status, out, _ = run(capsys, "info", "--json")
    assert status == 0 and json.loads(out) == json.loads(json.dumps(crnn.info()))


def test_doctor(capsys):
    status, out, err = run(capsys, "doctor")
    assert (status, err) == (0, "")
    first, *others = out.splitlines()
    assert first == "ok        CPU: a network of float32 trains, with the outputs of Keras's layers"
    assert all(line.split()[0] in ("ok", "missing", "optional") for line in others)
    if not tf.config.list_physical_devices("GPU"):
        assert "networks run on the CPU" in others[0]


def test_doctor_finds_what_is_wrong(capsys, monkeypatch):
    """A device whose numbers are wrong, or that raises an error, makes the exit status 1."""
    forward = ops.forward

    def wrong(*args, **kwargs):
        outputs, states = forward(*args, **kwargs)
        return outputs * 1.5, states

    @tf.custom_gradient
    def without_slope(outputs):
        return tf.identity(outputs), lambda _: tf.fill(tf.shape(outputs), np.float32("nan"))

    def does_not_train(*args, **kwargs):
        outputs, states = forward(*args, **kwargs)
        return without_slope(outputs), states

    def fails(*args, **kwargs):
        raise tf.errors.InternalError(None, None, "cuBLAS is not there")

    for changed, shown in (
        (wrong, "failed    CPU: the outputs differ from those of Keras's layers by 0."),
        (does_not_train, "failed    CPU: a network's gradients are not finite"),
        (fails, "failed    CPU: cuBLAS is not there"),
    ):
        monkeypatch.setattr(ops, "forward", changed)
        status, out, err = run(capsys, "doctor")
        assert status == 1
        assert out.startswith(shown)
        assert err == "cudnn-rnn-tf doctor: error: 1 of the checks above failed\n"


@pytest.mark.parametrize(
    ("with_cuda", "has_driver", "hidden", "shown"),
    [
        (False, True, None, "this TensorFlow is built without CUDA"),
        (True, False, None, "no NVIDIA driver is installed"),
        (True, True, "", "CUDA_VISIBLE_DEVICES='' hides all GPUs"),
        (True, True, None, "pip install 'tensorflow[and-cuda]'"),
    ],
)
def test_doctor_says_why_there_is_no_gpu(monkeypatch, with_cuda, has_driver, hidden, shown):
    def load(name):
        if not has_driver:
            raise OSError(name)

    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: with_cuda)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: [])
    monkeypatch.setattr(doctor, "ctypes", types.SimpleNamespace(CDLL=load))
    monkeypatch.setattr(doctor, "_PACKAGES", {"no_such_package": "nothing"})
    if hidden is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    _, gpu, package = doctor.findings()
    assert gpu.state == "missing" and shown in gpu.text
    assert package == ("optional", "no_such_package is not installed: it is for nothing")


MODULE, PROGRAM = ["-m", "cudnn_rnn_tf"], ["cudnn-rnn-tf"]


@pytest.mark.parametrize(
    ("program", "arguments", "status", "shown"),
    [
        (["-um", "cudnn_rnn_tf"], ["--version"], 0, f"cudnn_rnn_tf {crnn.__version__}\n"),
        (["-mcudnn_rnn_tf"], ["--help"], 0, "accelerate"),
        (PROGRAM, ["convert", "--help"], 0, "--stock-keras"),
        (PROGRAM, ["accelerate", "--help"], 0, "[--force] IN [OUT.keras]\n"),
        (MODULE, ["acelerate"], 2, "invalid choice: 'acelerate'"),
        (PROGRAM, ["bench", "--batch-size=none"], 2, "--batch-size"),
        (PROGRAM, ["export", "m.keras", "m.onxx"], 2, "the name to end in .onnx, .tflite or to"),
        (PROGRAM, ["inspect", "none.pt"], 1, "tf inspect: error: there is no file 'none.pt'\n"),
        (MODULE, ["accelerate", "none.h5", "m.keras"], 1, "error: there is no file 'none.h5'"),
    ],
)
def test_help_and_mistakes_import_no_tensorflow(program, arguments, status, shown, tmp_path):
    for name in ("tensorflow", "keras"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} is imported')")
    if not program[0].startswith("-"):
        program = [pathlib.Path(sys.executable).with_name(program[0])]
    command = [sys.executable, *program, *arguments]
    done = run_alone(command, os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == status, done.stderr
    assert shown in done.stdout + done.stderr
    assert "imported" not in done.stderr


def test_an_import_that_fails_is_shown(tmp_path):
    """TensorFlow's messages are held back, unless it fails."""
    program = "import os\nos.write(2, b'this and that')\nraise RuntimeError('broken')"
    (tmp_path / "tensorflow.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = [sys.executable, "-m", "cudnn_rnn_tf", "info"]
    done = run_alone(command, environment)
    assert done.returncode == 1
    assert "this and that" in done.stderr and "RuntimeError: broken" in done.stderr


COMMANDS_IN_TURN = """
import json, sys
lines = json.loads(sys.argv[1])
sys.argv = lines[0]
from cudnn_rnn_tf import __main__
for sys.argv in lines:
    try:
        __main__.run()
    except SystemExit as ended:
        print("status", ended.code)
"""


@pytest.mark.slow
def test_commands_are_quiet(file, tmp_path):
    keras.Sequential([keras.Input((None, 2)), keras.layers.LSTM(3)]).save(tmp_path / "old.h5")
    commands = (
        (["inspect", file], "unidirectional"),
        (["accelerate", file, tmp_path / "fast.keras"], "runs fused"),
        (["accelerate", tmp_path / "old.h5", tmp_path / "new.keras"], "runs fused"),
        (["export", file, tmp_path / "portable"], " -> "),
        (["export", file, tmp_path / "m.onnx"], " -> "),
        (["convert", file, tmp_path / "m.pt", "--name=ours"], "2 layers"),
    )
    lines = [["cudnn-rnn-tf", *map(str, arguments)] for arguments, _ in commands]
    command = [sys.executable, "-c", COMMANDS_IN_TURN, json.dumps(lines)]
    done = run_alone(command, os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"})
    assert (done.returncode, done.stderr) == (0, "")
    outputs = done.stdout.split("status 0\n")
    assert outputs.pop() == ""
    for output, (_, shown) in zip(outputs, commands, strict=True):
        assert shown in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["info", "--nothing=3"], "cudnn-rnn-tf info: error: unrecognized arguments: --nothing=3"),
        (["convert", "a.pt"], "required: TARGET"),
        (["bench", "--steps=0"], "expected a whole number from 1 on, but received '0'"),
        (["bench", "--num-units=1e3"], "expected a whole number from 1 on, but received '1e3'"),
        (["bench", "--shortest=101"], "--shortest is 101, but --steps, the longest, 100"),
        (["bench", "--padding=pre"], "--padding is for a MODEL.keras"),
        (["bench", "a.keras", "--num-units=3"], "--num-units is for a network of its own"),
        (["convert", "a.pt", "b.foo"], "expected the name to end in .pt, .pth, .safetensors, .ker"),
        (["convert", "a.pt", "b.onnx", "--stock-keras"], "--stock-keras is for .keras files"),
        (["accelerate", "a.keras", "b.h5"], "expected the name to end in .keras, but received"),
        (["accelerate", "a.keras"], "required: OUT.keras"),
        (["export", "a.keras", "b.onnx", "--fused"], "--fused is for SavedModels"),
        (["export", "a.keras", "b.tflite", "--name=ours"], "--name is for ONNX"),
        *(
            (["export", "a.keras", name], f"which has no suffix, but received '{name}'")
            for name in ("", "b.ONNX", "b.keras", "b.xyz")
        ),
        *(
            (["bench", f"--seconds={text}"], f"expected a number above 0, but received '{text}'")
            for text in ("-1", "0", "nan", "inf", "two")
        ),
    ],
)
def test_wrong_usage(capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        __main__.main(arguments)
    assert error.value.code == 2
    shown = capsys.readouterr().err
    assert "usage: cudnn-rnn-tf" in shown and message in shown.splitlines()[-1]


def test_outputs_that_cannot_be_written(capsys, file, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe, open("/dev/full", "w") as full:
        for output, status, message in (
            (pipe, 141, ""),
            (full, 1, "cannot write what is printed: No space left on device\n"),
        ):
            monkeypatch.setattr(sys, "stdout", output)
            assert __main__.main(["inspect", str(file)]) == status
            shown = capsys.readouterr().err
            assert shown == (message and f"cudnn-rnn-tf inspect: error: {message}")


def test_interrupted(capsys, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__.installation_info, "info", interrupt)
    assert run(capsys, "info")[0] == 130


# export and accelerate.


def test_export(capsys, model, file, tmp_path):
    inputs = normal(2, 6, 5)
    for target, options in (("portable", []), ("fused", ["--fused"])):
        assert run(capsys, "export", file, tmp_path / target, *options)[0] == 0
        loaded = tf.saved_model.load(tmp_path / target)
        np.testing.assert_allclose(loaded.serve(inputs), model(inputs), atol=1e-5)
    pytest.importorskip("onnx")
    status, out, _ = run(capsys, "export", file, tmp_path / "m.onnx", "--name=ours")
    assert status == 0 and "lstm, 2 layers" in out
    assert run(capsys, "export", file, tmp_path / "whole.onnx")[0] == 0
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(tmp_path / "whole.onnx"))
    (received,) = session.run(None, {session.get_inputs()[0].name: inputs})
    np.testing.assert_allclose(received, model(inputs), atol=1e-5)
    status, _, err = run(capsys, "convert", file, tmp_path / "m.pt", "--rnn-mode=gru")
    assert status == 1 and f": --rnn-mode is for files of weights alone; {file} says itself" in err
    status, _, err = run(capsys, "export", tmp_path / "m.onnx", tmp_path / "other")
    assert status == 1 and "but an ONNX model: convert takes" in err and err.count("\n") == 1


def test_accelerate(capsys, model, file, tmp_path):
    target = tmp_path / "fast.keras"
    for arguments in ([file, "--dry-run"], ["--dry-run", file], [file, "--dry-run", target]):
        status, out, _ = run(capsys, "accelerate", *arguments)
        assert status == 0 and "runs fused" in out and not target.exists()
    assert run(capsys, "accelerate", file, target)[0] == 0
    inputs = normal(2, 6, 5)
    fast = keras.saving.load_model(target)
    np.testing.assert_allclose(fast(inputs), model(inputs), atol=1e-5)
    before = target.read_bytes()
    status, out, _ = run(capsys, "accelerate", file, target, "--dry-run")
    assert status == 0 and "runs fused" in out and target.read_bytes() == before
    assert run(capsys, "accelerate", file, target, "--force", "--no-stacks")[0] == 0
    assert run(capsys, "accelerate", tmp_path / "none.keras", tmp_path / "a.keras")[0] == 1


# bench.


def test_bench(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.svg"
    options = ["--rnn-mode=gru", "--num-layers=2", "--num-units=4", "--batch-size=3", "--steps=5"]
    options += ["--direction=bidirectional", "--shortest=2", "--seconds=0.01"]
    status, out, err = run(capsys, "bench", *options, "--plot", picture)
    assert status == 0
    title, head, *lines = out.splitlines()
    rows = [
        line for line in lines if " % " in line and line.startswith(("cudnn", "keras", "torch"))
    ]
    assert len(rows) >= 3
    assert lines[len(rows)].endswith("divided by cudnn_rnn_tf's; above 1, cudnn_rnn_tf is faster")
    assert title == "gru, 2 x 4 bidirectional, input 4, batch 3, lengths 2 to 5 steps, float32"
    assert head.split() == ["inference,", "ms", "±", "x", "training,", "ms", "±", "x"]
    names = [re.split("  +", row)[0] for row in rows]
    assert names[:3] == ["cudnn_rnn_tf", "keras", "keras, compiled"]
    assert err.count("measuring ") == len(rows)
    assert "<svg" in picture.read_text()


class Refused(keras.layers.Layer):
    """A layer that XLA does not compile."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_number(tf.strings.as_string(inputs))


def test_bench_of_a_model(capsys, tmp_path):
    """An embedding reads integers below its `input_dim`, whatever type its input is of."""
    words, numbers = keras.Input((None,)), keras.Input((4,))
    states = keras.layers.Embedding(3, 4, mask_zero=True)(words)
    state = keras.layers.Bidirectional(keras.layers.LSTM(4))(states)
    outputs = keras.layers.Dense(1)(keras.layers.concatenate([state, numbers]))
    file = tmp_path / "model.keras"
    model = keras.Model([words, numbers], outputs)
    model.save(file)
    for padding, step in (("post", 0), ("pre", -1)):
        (read, _), (others, _) = (bench._numbers(model, x, 50, 8, padding) for x in model.inputs)
        read = read.numpy()
        is_read = read > 0
        assert set(read[is_read]) == {1.0, 2.0} and set(is_read.sum(1)) == {2, 3, 4, 5, 6, 7, 8}
        assert is_read[:, step].all() and (np.diff(is_read, axis=1).sum(1) <= 1).all()
        assert others.shape == (50, 4)
    masking = keras.Sequential([keras.Input((None, 2)), keras.layers.Masking(-1.0)])
    read = bench._numbers(masking, masking.inputs[0], 50, 8, "pre")[0].numpy()
    assert set((read != -1).all(2).sum(1)) == {2, 3, 4, 5, 6, 7, 8} and (read[:, -1] != -1).all()
    status, out, err = run(capsys, "bench", file, "--batch=2", "--steps=3", "--seconds=0.01")
    assert status == 0 and "measuring on CPU:0 (1 of 1), about 0 s left there" in err
    title, _, device, _, *rows = out.splitlines()[:8]
    shown = "CPU:0, inputs 2×3, 2×4, random lengths, padding='post'"
    assert (title, device) == (str(file), shown)
    names = ["accelerated", "accelerated, compiled", "stock", "stock, compiled"]
    assert [re.split("  +", row)[0] for row in rows] == names
    assert all(" %" in row for row in rows)
    refused = keras.Sequential([keras.Input((None, 4)), keras.layers.GRU(2), Refused()])
    ((_, rows),) = bench.bench_model(lambda: refused, 2, 3, 0.01)
    assert [row.library for row in rows] == [*names[::2], *names[1::2]]
    assert all(row.training for row in rows[:2])
    assert all(row.training is None and "AsString" in row.problem for row in rows[2:])
    named = keras.Input((None, 4))
    odd = keras.Model({"x": named}, {"y": keras.layers.GRU(2)(named)}, name="odd name")
    with pytest.raises(ValueError, match="runs model 'odd name': ValueError: 'odd name' is not"):
        list(bench.bench_model(lambda: odd, 2, 3, 0.01))
    keras.utils.clear_session()  # Keras leaves the scope of the odd name open.
    odd.name = "odd"
    assert len(next(bench.bench_model(lambda: odd, 2, 3, 0.01))[1]) == 4
    fixed = keras.Sequential([keras.Input((4, 2)), keras.layers.GRU(2)], name="fixed")
    with pytest.raises(ValueError, match="--steps is 3, but model 'fixed' takes 4 alone"):
        next(bench.bench_model(lambda: fixed, None, 3, 0.01))
    with pytest.raises(ValueError, match=r"shape \(None, 3, None\)"):
        bench._numbers(model, keras.Input((3, None)), 2, 3, "post")


@pytest.mark.parametrize("own", [True, False])
def test_a_model_in_which_nothing_is_replaced(capsys, tmp_path, own):
    layer = crnn.CudnnLSTM(1, 3) if own else keras.layers.Dense(3)
    file, target = tmp_path / "model.keras", tmp_path / "fast.keras"
    keras.Sequential([keras.Input((None, 2)), layer], name="net").save(file)
    reason = "left: it is this package's already" if own else "model 'net': none"
    for arguments in ([file, target], [file, "--dry-run"]):
        status, out, err = run(capsys, "accelerate", *arguments)
        assert status == 1 and reason in out and err.endswith("OUT.keras would be IN\n")
    assert not target.exists() and err.count("\n") == 1
    status, out, err = run(capsys, "bench", file)
    assert (status, out) == (1, "") and reason in err
    assert "replaces no layer of model 'net', so there is nothing to compare" in err


def test_columns_of_bench_never_touch():
    rows = [
        bench.Row("cudnn_rnn_tf", bench.Time(0.001, 0.01), bench.Time(1.0, 0.5)),
        bench.Row("keras", bench.Time(123456.0, 0.01), None, "a problem"),
    ]
    head, first, second, _, unsteady = bench.table(rows).splitlines()
    assert first.split() == ["cudnn_rnn_tf", "0.001", "1", "%", "1.00", "1.000", "50", "%", "1.00"]
    assert second.split()[:5] == ["keras", "123456.000", "1", "%", "123456000.00"]
    assert second.endswith("a problem") and "unsteady: times vary by up to 50 %" in unsteady
    assert head.index("training") == first.index("1.000", 40) + len("1.000") - len("training, ms")


def test_bench_asks_for_what_draws_the_plot_before_it_measures(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "bench", lambda *_: pytest.fail("it measured"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = run(capsys, "bench", "--plot", tmp_path / "bench.png")
    assert (status, out) == (1, "") and "pip install 'cudnn_rnn_tf[plot]'" in err
