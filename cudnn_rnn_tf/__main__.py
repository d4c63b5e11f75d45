"""The command `cudnn-rnn-tf`, and `python -m cudnn_rnn_tf`."""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import app, flags, logging
from absl.flags import argparse_flags

from cudnn_rnn_tf import bench, convert, file_inspection, installation_info, ops, portable
from cudnn_rnn_tf.config import RnnConfig
from cudnn_rnn_tf.convert import network
from cudnn_rnn_tf.convert.files import write_whole
from cudnn_rnn_tf.keras import accelerate

# A user's mistake, a damaged file or a full disk raises one of these errors.
_EXPECTED = (ImportError, OSError, TypeError, ValueError)


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
    for configuration, choice in info["gpu"]["choices"].items():
        print(f"choice         {configuration}: {choice['algorithm']} ({choice['source']})")


def _inspect(options: argparse.Namespace) -> None:
    found = file_inspection.inspect_file(options.file)
    if not found:
        raise ValueError(f"{options.file} holds no recurrent network that is known here")
    rows = [tuple(name.replace("_", " ") for name in file_inspection.Network._fields)]
    rows += [tuple("?" if value is None else str(value) for value in row) for row in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def _convert(options: argparse.Namespace) -> None:
    names = ("source", "target", "name", "rnn_mode", "stock_keras", "for_inference", "force")
    print(convert.convert_file(**{name: getattr(options, name) for name in names}))


def _export(options: argparse.Namespace) -> None:
    if options.target.endswith(".onnx"):
        if options.fused:
            raise ValueError(f"--fused is for SavedModels, but the target is {options.target!r}")
        print(convert.convert_file(options.source, options.target, name=options.name))
        print(
            "The file has this layer alone, for sequences of equal length, and no other layers of "
            "the model; cudnn_rnn_tf.convert.to_onnx(layer, with_sequence_lengths=True) takes "
            "lengths."
        )
        return
    if options.name is not None:
        raise ValueError("--name is for ONNX: a SavedModel has the whole model")
    portable.check_directory_name("TARGET", options.target)
    model = _load(options.source)
    if options.fused:
        if pathlib.Path(options.target).exists():
            raise FileExistsError(f"{options.target!r} exists already")
        model.export(options.target, verbose=False)
    else:
        portable.export_portable(model, options.target)
    print(f"{options.source} -> {options.target}")


def _accelerate(options: argparse.Namespace) -> None:
    target = pathlib.Path(options.target)
    if target.suffix != ".keras":
        raise ValueError(f"expected a target that ends in .keras, but received {options.target!r}")
    if target.exists() and not (options.force or options.dry_run):
        raise FileExistsError(f"{options.target!r} exists already")
    model = _load(options.source, compile=True)
    fast = accelerate(model, dry_run=options.dry_run, stacks=not options.no_stacks, verbose=True)
    if isinstance(fast, keras.Model):
        write_whole(target, fast.save)
        print(f"{options.source} -> {options.target}")


def _load(path: str, **options: Any) -> keras.Model:
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path!r}")
    try:
        return keras.saving.load_model(path, **{"compile": False, **options})
    except Exception as error:
        # Keras can raise any exception for a damaged file, with a message of many lines.
        raise ValueError(f"cannot load {path}: {network.reason(error)}") from error


def _bench(options: argparse.Namespace) -> None:
    workload = bench.Workload(
        RnnConfig(
            rnn_mode=options.rnn_mode,
            num_layers=options.num_layers,
            num_units=options.num_units,
            input_size=options.input_size or options.num_units,
            direction=options.direction,
        ),
        options.batch_size,
        options.steps,
        options.dtype,
        options.shortest,
    )
    lengths = f", lengths {options.shortest} to" if options.shortest is not None else ","
    title = (
        f"{options.rnn_mode}, {options.num_layers} x {options.num_units} {options.direction}, "
        f"input {workload.config.input_size}, batch {options.batch_size}{lengths} "
        f"{options.steps} steps, {options.dtype}"
    )
    print(title, flush=True)
    rows = []
    for row in bench.bench(workload, options.seconds):
        rows.append(row)
        print(f"measured {row.library}", file=sys.stderr, flush=True)
    print(bench.table(rows))
    if options.plot:
        bench.plot(rows, title, options.plot)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, but received {text}")
    return number


class _CommandParser(argparse_flags.ArgumentParser):
    """The parser of one command. The main parser handles Abseil's flags."""

    def __init__(self, **kwargs: Any):
        super().__init__(inherited_absl_flags=None, **kwargs)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line. Its result has the function to call as `run`."""
    result = argparse_flags.ArgumentParser(
        prog="cudnn-rnn-tf", description="Fused recurrent networks for TensorFlow and Keras."
    )
    result.add_argument(
        "--version", action="version", version=f"cudnn_rnn_tf {installation_info.__version__}"
    )
    # Abseil's flags come before the command.
    commands = result.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)

    def command(
        run: Callable[[argparse.Namespace], None], help_text: str, more: str = ""
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(
            run.__name__.removeprefix("_"),
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}. {more}".strip(),
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        added.set_defaults(run=run, prog=added.prog)
        return added

    info = command(_info, "show what is installed and what would run a network")
    info.add_argument("--json", action="store_true", help="print all of cudnn_rnn_tf.info()")

    inspect = command(
        _inspect,
        "list the recurrent networks in a file",
        "FILE is a .keras file, a PyTorch state dict (.pt, .pth, .safetensors), an ONNX model "
        "(.onnx), a SavedModel's directory, or a TensorFlow checkpoint.",
    )
    inspect.add_argument("file", metavar="FILE")

    to_other = command(
        _convert,
        "convert a recurrent network between PyTorch, Keras and ONNX",
        "The names' ends say the formats: .pt, .pth or .safetensors (a PyTorch state dict), .keras "
        "(a Keras model), .onnx.",
    )
    to_other.add_argument("source", metavar="SOURCE")
    to_other.add_argument("target", metavar="TARGET")
    to_other.add_argument("--name", help="the network's name, where SOURCE has several")
    to_other.add_argument(
        "--rnn-mode",
        choices=("rnn_tanh", "rnn_relu"),
        help="the nonlinearity of a torch.nn.RNN, which its state dict does not say",
    )
    to_other.add_argument(
        "--stock-keras", action="store_true", help="write keras.layers.LSTM and its like"
    )
    to_other.add_argument(
        "--for-inference",
        action="store_true",
        help="leave out the dropout of Keras's recurrent layers, as is always done for .onnx",
    )
    to_other.add_argument("--force", action="store_true", help="replace TARGET if it exists")

    export = command(
        _export,
        "write a Keras model for serving",
        "A TARGET that ends in .onnx becomes an ONNX model of one recurrent network, another one a "
        "SavedModel of the whole model that runs without this package.",
    )
    export.add_argument("source", metavar="MODEL.keras")
    export.add_argument("target", metavar="TARGET")
    export.add_argument("--fused", action="store_true", help="keep this package's fused ops")
    export.add_argument("--name", help="for ONNX: the network's name, where there are several")

    fast = command(
        _accelerate,
        "rewrite a Keras model so that the fused ops run its layers",
        "Programs that import this package load OUT.keras.",
    )
    fast.add_argument("source", metavar="IN.keras")
    fast.add_argument("target", metavar="OUT.keras")
    fast.add_argument("--dry-run", action="store_true", help="only show what would become of it")
    fast.add_argument("--no-stacks", action="store_true", help="leave each layer on its own")
    fast.add_argument("--force", action="store_true", help="replace OUT.keras if it exists")

    measure = command(_bench, "measure a network here, beside Keras and, if installed, PyTorch")
    modes = ("lstm", "gru", "rnn_tanh", "rnn_relu")
    measure.add_argument("--rnn-mode", choices=modes, default="lstm", help="kind of network")
    for name, default, what in (
        ("--num-layers", 1, "layers in the stack"),
        ("--num-units", 256, "units of each"),
        ("--batch-size", 32, "sequences"),
        ("--steps", 100, "time steps of the longest sequence"),
    ):
        measure.add_argument(name, type=_count, default=default, help=what)
    measure.add_argument("--input-size", type=_count, help="features of a step; as --num-units")
    measure.add_argument(
        "--direction", choices=("unidirectional", "bidirectional"), default="unidirectional"
    )
    measure.add_argument(
        "--dtype", choices=ops.DTYPES, default="float32", help="of weights and data"
    )
    measure.add_argument(
        "--shortest", type=_count, help="steps of the shortest sequence (Keras gets a mask)"
    )
    measure.add_argument("--seconds", type=float, default=2.0, help="for each number")
    measure.add_argument("--plot", metavar="FILE", help="also draw the numbers, as .png, .svg …")
    return result


def execute(options: argparse.Namespace) -> int:
    """Runs a parsed command; returns the process's exit status."""
    try:
        options.run(options)
    except _EXPECTED as error:
        has_force = isinstance(error, FileExistsError) and "force" in options
        hint = "; --force replaces it" if has_force else ""
        print(f"{options.prog}: error: {error}{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and runs a command; returns the process's exit status."""
    return execute(parser().parse_args(arguments))


def run() -> None:
    """Runs the installed command: does what `main` does, and sets up Abseil's flags and logging."""
    flags.FLAGS.set_default("verbosity", logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    app.run(execute, flags_parser=lambda arguments: parser().parse_args(arguments[1:]))


if __name__ == "__main__":
    run()
