"""What commands write: targets that are there already, cannot be written, or are half written."""

import os
import pathlib
import resource
import signal
import time

import fresh_process
import keras
import pytest
import tensorflow as tf
from test_command_line import run

from cudnn_rnn_tf import __main__, convert
from cudnn_rnn_tf import keras as drop_ins
from cudnn_rnn_tf.commands import bench


def one_layer(path: pathlib.Path, units: int) -> None:
    keras.Sequential([keras.Input((None, units)), drop_ins.GRU(units)]).save(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "s3://bucket/m"], "expected TARGET to be a path on this machine"),
        (["export", "none/m"], "there is no directory 'none'"),
        (["export", "none/m.onnx"], "there is no directory 'none'"),
        (["export", "m.keras/m.tflite"], "there is no directory 'm.keras'"),
        (["export", "n" * 256], "File name too long"),
        (["convert", "gs://b/m.pt"], "expected the target to be a path on this machine"),
        (["convert", "none/m.pt"], "there is no directory 'none'"),
        (["accelerate", "gs://b/m.keras"], "expected OUT.keras to be a path on this machine"),
        (["accelerate", "none/m.keras"], "there is no directory 'none'"),
        (["bench", "--plot="], "expected the picture's name to end in "),
        (["bench", "--plot=b.xyz"], "expected the picture's name to end in "),
        (["bench", "--plot=none/b.png"], "there is no directory 'none'"),
    ],
)
def test_targets_are_looked_at_before_the_work(capsys, monkeypatch, tmp_path, arguments, message):
    for module, name in (
        (__main__, "load_keras_model"),
        (convert.files, "_read"),
        (bench, "bench"),
    ):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it began"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.keras").touch()
    command, target = arguments
    source = [] if command == "bench" else ["m.keras"]
    status, out, err = run(capsys, command, *source, target)
    assert (status, out) == (1, "") and message in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]


WRITERS = (
    (["convert", "--name=ours"], ".pt"),
    (["convert", "--name=ours"], ".safetensors"),
    (["accelerate"], ".keras"),
    (["export"], ".tflite"),
    (["export"], ""),
    (["export", "--fused"], ""),
)


@pytest.mark.parametrize(("command", "suffix"), WRITERS)
def test_what_is_replaced(capsys, file, tmp_path, command, suffix):
    """The longest names are written; a link is followed, and a file keeps its permissions."""
    folder = tmp_path / "targets"
    folder.mkdir()
    place = folder / ("n" * (255 - len(suffix)) + suffix)
    assert run(capsys, *command, file, place)[0] == 0
    link = folder / f"link{suffix}"
    link.symlink_to(place)
    old = place.stat()
    place.chmod(0o711)
    status, _, err = run(capsys, *command, file, link)
    assert status == 1 and "exists already; --force replaces it" in err
    assert place.stat().st_ino == old.st_ino
    assert run(capsys, *command, file, link, "--force")[0] == 0
    assert link.is_symlink() and place.stat().st_ino != old.st_ino
    if suffix:
        assert place.stat().st_mode & 0o777 == 0o711
    else:
        tf.saved_model.load(place)
    assert sorted(path.name for path in folder.iterdir()) == sorted([link.name, place.name])


@pytest.mark.parametrize(("command", "suffix"), WRITERS)
def test_what_is_never_replaced(capsys, file, tmp_path, command, suffix):
    """A folder or a device is no file, and a folder with other things in it no SavedModel."""
    target = tmp_path / f"t{suffix}"
    for make_target in (lambda: target.symlink_to("/dev/null"), target.mkdir):
        make_target()
        if target.is_dir():
            (target / "precious").touch()
        status, out, err = run(capsys, *command, file, target, "--force")
        assert (status, out) == (1, "") and "so nothing replaces it" in err
        assert pathlib.Path("/dev/null").is_char_device()
        if target.is_symlink():
            target.unlink()
    assert [path.name for path in target.iterdir()] == ["precious"]


ENDED_BY_A_SIGNAL = """
import pathlib, sys, time
import keras
from cudnn_rnn_tf import __main__

def half(self, path, **_):
    path = pathlib.Path(path)
    if path.suffix:
        path.touch()
    else:
        path.mkdir()
    pathlib.Path("begun").touch()
    time.sleep(100)

keras.Model.save = keras.Model.export = half
sys.argv = ["cudnn-rnn-tf", *sys.argv[1:]]
__main__.run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "command", [["export", "m.keras", "t"], ["accelerate", "m.keras", "t.keras"]]
)
def test_ended_by_a_signal(file, tmp_path, command, number):
    """Under the target's name there is nothing that is half-written, and after SIGTERM nowhere."""
    folder = tmp_path / "work"
    folder.mkdir()
    file.rename(folder / "m.keras")
    process = fresh_process.start(["-c", ENDED_BY_A_SIGNAL, *command], tmp_path, folder=folder)
    end = time.monotonic() + 120
    while not (folder / "begun").exists():
        assert process.is_alive() and time.monotonic() < end, (tmp_path / "stderr").read_text()
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.join(60)
    is_caught = number == signal.SIGTERM
    assert process.exitcode == (128 + number if is_caught else -number)
    names = {path.name for path in folder.iterdir()} - {"m.keras", "begun"}
    assert not names if is_caught else all(name.startswith(".") for name in names)


@pytest.mark.parametrize("leads_to", ["nothing", "itself"])
def test_links_as_targets(leads_to, tmp_path, capsys):
    one_layer(tmp_path / "m.keras", 3)
    for command, name in (
        (["convert"], "out.pt"),
        (["accelerate"], "out.keras"),
        (["export"], "out"),
        (["export", "--fused"], "out"),
    ):
        target = tmp_path / name
        target.symlink_to(name if leads_to == "itself" else "nothing")
        status, out, err = run(capsys, *command, tmp_path / "m.keras", target)
        assert (status, out) == (1, "") and "exists already" in err and err.count("\n") == 1
        assert target.is_symlink() and not (tmp_path / "nothing").exists()
        target.unlink()


@pytest.mark.parametrize("option", [[], ["--fused"]])
def test_export_to_where_nothing_can_be_written(option, tmp_path, capsys):
    one_layer(tmp_path / "m.keras", 3)
    status, out, err = run(capsys, "export", tmp_path / "m.keras", "/proc/out", *option)
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert err.endswith("error: cannot write /proc/out: No such file or directory\n")


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (["export"], "out"),
        (["export", "--fused"], "out"),
        (["export"], "out.tflite"),
        (["accelerate"], "out.keras"),
        *((["convert"], f"out{suffix}") for suffix in (".pt", ".safetensors", ".onnx")),
    ],
)
def test_targets_on_a_full_disk(command, target, tmp_path, capsys):
    """A limit on file sizes takes the place of a full disk: writes fail half-way, too.

    What was there stays as it was.
    """
    one_layer(tmp_path / "m.keras", 64)
    place = tmp_path / target
    if place.suffix:
        place.write_text("precious")
    before = sorted(tmp_path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert __main__.main([*command, str(tmp_path / "m.keras"), str(place), "--force"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    line = capsys.readouterr().err
    assert f"error: cannot write {place}: " in line and line.count("\n") == 1
    assert ".cudnn_rnn_tf." not in line and line[:-1].isprintable()
    assert sorted(tmp_path.iterdir()) == before
    assert not place.suffix or place.read_text() == "precious"
