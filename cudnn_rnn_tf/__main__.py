"""The command `cudnn-rnn-tf`, and `python -m cudnn_rnn_tf`."""

import argparse
import json
import logging
import os
import pathlib
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from cudnn_rnn_tf import convert, messages
from cudnn_rnn_tf.commands import bench, doctor, installation_info
from cudnn_rnn_tf.commands.command_line import BATCH_SIZE, STEPS, parser
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import file_inspection
from cudnn_rnn_tf.convert.keras_files import load_keras_model
from cudnn_rnn_tf.exports import litert_export, onnx_export, portable, targets
from cudnn_rnn_tf.keras import accelerate


class _CheckFailedError(Exception):
    """A device does not work, as the lines above the error's say."""


# A user's mistake, a damaged file or a full disk raises one of these errors.
_EXPECTED = (ImportError, OSError, TypeError, ValueError, _CheckFailedError)


# What writes a whole model, by the target's suffix. Any other target is a SavedModel.
_EXPORTERS: dict[str, Callable[[keras.Model, pathlib.Path], None]] = {
    ".onnx": onnx_export.export_onnx,
    ".tflite": litert_export.export_litert,
}


def _printable(value: object) -> str:
    """Returns text in which characters that a terminal would obey, as in odd names, are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def _info(options: argparse.Namespace) -> None:
    info = installation_info.info()
    if options.json:
        print(json.dumps(info, indent=2))
        return
    cudnn = info["backends"]["cudnn"]
    uses_gpu = cudnn == "available"
    reason = "" if uses_gpu else f", since the GPU is {cudnn}"
    print(f"runs on        {'GPU' if uses_gpu else 'CPU, ' + info['cpu_isa'] + ' kernels'}{reason}")
    for name in ("version", "python", "tensorflow", "keras", "compiler", "build_type"):
        print(f"{name.replace('_', ' '):15}{info[name]}")
    print(f"op libraries   for TensorFlow {', '.join(info['built_for_tensorflow'])}")
    print(f"loaded         {info['op_library']}")
    print(f"CPU features   {', '.join(key for key, has in info['cpu_features'].items() if has)}")
    for line in installation_info.gpu_lines():
        print(line)


def _doctor(options: argparse.Namespace) -> None:
    found = []
    for finding in doctor.findings():
        found.append(finding)
        print(f"{finding.state:9} {_printable(finding.text)}", flush=True)
    if failed := sum(finding.state == "failed" for finding in found):
        raise _CheckFailedError(f"{failed} of the checks above failed")


def _inspect(options: argparse.Namespace) -> None:
    found = file_inspection.inspect_file(options.source)
    if not found:
        raise ValueError(f"{options.source} holds no recurrent network that is known here")
    rows = [tuple(name.replace("_", " ") for name in file_inspection.Network._fields)]
    rows += [tuple("?" if value is None else _printable(value) for value in row) for row in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def _convert(options: argparse.Namespace) -> None:
    names = ("source", "target", "name", "rnn_mode", "stock_keras", "for_inference", "force")
    try:
        done = convert.convert_file(**{name: getattr(options, name) for name in names})
    except ValueError as error:
        # To a program, the option has another name.
        raise ValueError(re.sub(r"(?<!\S)rnn_mode\b", "--rnn-mode", str(error))) from error
    print(_printable(done))


def _export(options: argparse.Namespace) -> None:
    suffix = pathlib.Path(options.target).suffix
    exporter = _EXPORTERS.get(suffix, _export_fused if options.fused else portable.export_portable)
    suffixes = (suffix,) if suffix in _EXPORTERS else ()
    target = targets.check(options.target, *suffixes, force=options.force, argument="TARGET")
    if options.name is not None:
        print(convert.convert_file(options.source, target, name=options.name, force=options.force))
        print(
            "The file has this layer alone, for sequences of equal length, and no other layers of "
            "the model; cudnn_rnn_tf.convert.to_onnx(layer, with_sequence_lengths=True) takes "
            "lengths."
        )
        return
    model = _load(options.source)
    targets.write_whole(target, lambda partial: exporter(model, partial), force=options.force)
    print(f"{options.source} -> {options.target}")


def _export_fused(model: keras.Model, folder: pathlib.Path) -> None:
    model.export(str(folder), verbose=False)


def _accelerate(options: argparse.Namespace) -> None:
    target = options.target
    if target is not None:
        replaces = options.force or options.dry_run
        target = targets.check(target, ".keras", force=replaces, argument="OUT.keras")
    model = _load(options.source, compile=True)
    report = accelerate(model, dry_run=True, stacks=not options.no_stacks, verbose=True)
    if not report.replaces_any:
        raise ValueError(f"accelerate replaces no layer of {options.source}: OUT.keras would be IN")
    if not options.dry_run:
        fast = accelerate(model, stacks=not options.no_stacks)
        targets.write_whole(target, fast.save, force=options.force)
        print(f"{options.source} -> {options.target}")


def _load(path: str, compile: bool = False) -> keras.Model:
    try:
        return load_keras_model(path, compile=compile)
    except Exception as error:
        # Keras can raise any exception for a damaged file, with a message of many lines.
        raise messages.of_file(path, "load", error) from error


def _bench(options: argparse.Namespace) -> None:
    if options.plot is not None:
        bench.check_plot(options.plot)
    measured = _bench_model(options) if options.source else _bench_network(options)
    title = next(measured)
    rows: list[bench.Row] = []
    for device, found in measured:
        if not rows:
            print(title)
        if device:
            print(f"\n{device}")
        print(bench.table(found), flush=True)
        name = device.partition(",")[0]
        rows += [row._replace(library=f"{row.library} {name}".strip()) for row in found]
    for line in installation_info.gpu_lines():
        print(line)
    if options.plot is not None:
        bench.plot(rows, title, options.plot)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _bench_model(options: argparse.Namespace) -> Iterator[Any]:
    """Yields a title, and then the devices' names and rows."""
    yield options.source
    data = options.batch_size, options.steps, options.seconds, options.padding
    yield from bench.bench_model(lambda: _load(options.source), *data, _say)


def _bench_network(options: argparse.Namespace) -> Iterator[Any]:
    """Yields a title, and then "" and the rows."""
    workload = bench.Workload(
        RnnConfig(
            rnn_mode=options.rnn_mode,
            num_layers=options.num_layers,
            num_units=options.num_units,
            input_size=options.input_size or options.num_units,
            direction=options.direction,
        ),
        options.batch_size or BATCH_SIZE,
        options.steps or STEPS,
        options.dtype,
        options.shortest,
    )
    lengths = f", lengths {options.shortest} to" if options.shortest is not None else ","
    yield (
        f"{options.rnn_mode}, {options.num_layers} x {options.num_units} {options.direction}, "
        f"input {workload.config.input_size}, batch {workload.batch_size}{lengths} "
        f"{workload.steps} steps, {options.dtype}"
    )
    yield "", list(bench.bench(workload, options.seconds, _say))


_COMMANDS = {
    "info": _info,
    "doctor": _doctor,
    "inspect": _inspect,
    "convert": _convert,
    "export": _export,
    "accelerate": _accelerate,
    "bench": _bench,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and runs a command; returns the process's exit status."""
    options = parser().parse_args(arguments)
    try:
        _COMMANDS[options.command](options)
        sys.stdout.flush()
    except _EXPECTED as error:
        has_force = isinstance(error, FileExistsError) and "force" in options
        text = f"{_printable(error)}{'; --force replaces it' if has_force else ''}"
        if isinstance(error, OSError) and error.errno and error.filename is None:
            # It is about what is printed, and Python would say it again at the exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                return 128 + signal.SIGPIPE
            text = f"cannot write what is printed: {error.strerror}"
        print(f"{options.prog}: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _end(number: int, _: Any) -> None:
    """Ends the process by an exception, so that what is half-written is removed."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def run() -> None:
    """Runs the installed command: does what `main` does, and ends the process."""
    signal.signal(signal.SIGTERM, _end)
    tf.get_logger().setLevel("WARNING")
    logging.getLogger("absl").setLevel("ERROR")  # Keras's hints to those who load a model.
    warnings.simplefilter("ignore", FutureWarning)
    warnings.filterwarnings("ignore", module="torch")
    sys.exit(main())


if __name__ == "__main__":
    run()
