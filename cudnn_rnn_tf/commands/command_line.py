"""The command line's parser, and what precedes the import of TensorFlow in a command's process."""

import argparse
import contextlib
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from cudnn_rnn_tf import native
from cudnn_rnn_tf.config import DTYPES
from cudnn_rnn_tf.exports import target_names

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# `bench` measures these by default.
BATCH_SIZE, STEPS = 32, 100


def is_running() -> bool:
    """Returns whether this process is `cudnn-rnn-tf` or `python -m cudnn_rnn_tf`."""
    # A program in another language that runs Python may leave the list out.
    name = next(iter(getattr(sys, "argv", ())), "")
    if name != "-m":
        return pathlib.Path(name).name == "cudnn-rnn-tf"
    # Python sets this name while it looks for the module, and thus imports the package. The module
    # may share an argument with the option, and the option one with others, as in `-um`.
    module = sys.orig_argv[-len(sys.argv)]
    return re.fullmatch(r"(-\w*m)?cudnn_rnn_tf", module) is not None


@contextlib.contextmanager
def before_tensorflow() -> Iterator[None]:
    """Parses a command, for which the context is to import TensorFlow without its messages.

    The import takes seconds, so `--help`, mistakes and files that are not there end the process
    before it. TensorFlow's C++ code writes some lines whatever the level of its log is; they are
    shown if the import fails.
    """
    if not is_running():
        yield
        return
    options = parser().parse_args(sys.argv[1:])
    path = getattr(options, "source", None)
    # The name of a checkpoint is what the names of its files begin with.
    if path is not None and not os.path.exists(path) and not os.path.exists(f"{path}.index"):
        sys.exit(f"{options.prog}: error: there is no file {path!r}")
    if os.environ.get(_LOG_LEVEL) in ("0", "1"):
        yield
        return
    os.environ[_LOG_LEVEL] = "3"
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        stderr = os.dup(2)
        stack.callback(os.close, stderr)
        stack.callback(os.dup2, stderr, 2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            with open(stderr, "wb", closefd=False) as shown:
                shutil.copyfileobj(log, shown)
            raise


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 on, but received {text!r}"
        )
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, but received {text!r}")


def _target(*suffixes: str, is_folder: bool = False) -> Callable[[str], str]:
    def checked(name: str) -> str:
        try:
            target_names.check(name, *suffixes, is_folder=is_folder)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return name

    return checked


class _CommandParser(argparse.ArgumentParser):
    """The parser of one command."""

    # Says what is wrong with options that do not fit each other.
    problem: Callable[[argparse.Namespace], str] = staticmethod(lambda options: "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments, and shows this command's options beside those that it does not know.

        The main parser, which would name them otherwise, would show the commands.
        """
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        if problem := self.problem(options):
            self.error(problem)
        return options, unknown


class _WithoutTarget(argparse.Action):
    """A flag with which the target may be left out."""

    def __init__(self, option_strings: Any, dest: str, *, target: argparse.Action, **kwargs: Any):
        super().__init__(option_strings, dest, nargs=0, default=False, **kwargs)
        self._target = target

    def __call__(self, parser: Any, namespace: Any, *_: Any) -> None:
        setattr(namespace, self.dest, True)
        self._target.required = False


def _problem_of_target(options: argparse.Namespace) -> str:
    suffix, given = pathlib.Path(options.target).suffix, vars(options)
    if given.get("stock_keras") and suffix != ".keras":
        return f"--stock-keras is for .keras files, but TARGET is {options.target!r}"
    if given.get("fused") and suffix in target_names.EXPORTED:
        return f"--fused is for SavedModels, but TARGET is {options.target!r}"
    if options.command == "export" and options.name is not None and suffix != ".onnx":
        return "--name is for ONNX: other formats have the whole model"
    return ""


def _problem_of_bench(options: argparse.Namespace) -> str:
    if not options.source:
        if options.padding != "post":
            return "--padding is for a MODEL.keras; --shortest pads behind"
        longest = options.steps or STEPS
        if options.shortest is not None and options.shortest > longest:
            return f"--shortest is {options.shortest}, but --steps, the longest, {longest}"
        return ""
    for name, default in vars(parser().parse_args(["bench"])).items():
        kept = ("source", "batch_size", "steps", "padding", "seconds", "plot")
        if name not in kept and getattr(options, name) != default:
            option = f"--{name.replace('_', '-')}"
            return f"{option} is for a network of its own, but {options.source} is measured"
    return ""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line. Its result names the `command`."""
    result = argparse.ArgumentParser(
        prog="cudnn-rnn-tf",
        description="Checks, measures, converts and exports fast LSTMs and GRUs of Keras.",
        epilog=f"The environment variable {_LOG_LEVEL}=0 shows what TensorFlow logs.",
    )
    version = f"cudnn_rnn_tf {native.build_info.VERSION}"
    result.add_argument("--version", action="version", version=version)
    commands = result.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)

    def command(name: str, help_text: str, more: str = "") -> _CommandParser:
        added = commands.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}. {more}".strip(),
        )
        added.set_defaults(command=name, prog=added.prog)
        return added

    info = command("info", "show what is installed and what would run a network")
    info.add_argument("--json", action="store_true", help="print all of cudnn_rnn_tf.info()")

    command(
        "doctor",
        "run a network on each device, and say what is missing",
        "The exit status is 1 if a network fails on a device.",
    )

    inspect = command(
        "inspect",
        "list the recurrent networks in a file",
        "FILE is a file of Keras's (.keras, .h5), a PyTorch state dict (.pt, .safetensors), an "
        "ONNX model, a SavedModel's directory, a TensorFlow checkpoint, or a frozen graph (.pb). "
        "What is in a file decides, whatever its name ends in, but for .pb. The last column says "
        "whether convert takes a network.",
    )
    inspect.add_argument("source", metavar="FILE")

    to_other = command(
        "convert",
        "convert a recurrent network between PyTorch, Keras and ONNX",
        "SOURCE is a file of which inspect says that convert takes the network. The end of "
        "TARGET's name says its format: .pt, .pth or .safetensors (a PyTorch state dict), .keras "
        "(a Keras model), .onnx.",
    )
    to_other.add_argument("source", metavar="SOURCE")
    to_other.add_argument("target", metavar="TARGET", type=_target(*target_names.CONVERTED))
    to_other.problem = _problem_of_target
    to_other.add_argument("--name", help="the network's name, where SOURCE has several")
    to_other.add_argument(
        "--rnn-mode",
        choices=(
            *("lstm", "lstm_peephole", "lstm_layer_norm", "gru", "gru_reset_before"),
            *("rnn_tanh", "rnn_relu"),
        ),
        help="the kind of network with tanh and sigmoid, or the nonlinearity of a plain RNN, where "
        "a file of weights alone does not say it",
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
        "export",
        "write a Keras model for serving",
        "A TARGET that ends in .onnx becomes an ONNX model, one that ends in .tflite a model for "
        "LiteRT, for one sequence at a time, and one without a suffix a SavedModel. They run "
        "without this package, unless with --fused.",
    )
    export.add_argument("source", metavar="MODEL.keras")
    target = _target(*target_names.EXPORTED, is_folder=True)
    export.add_argument("target", metavar="TARGET", type=target)
    export.problem = _problem_of_target
    export.add_argument(
        "--fused", action="store_true", help="keep this package's fused ops, in a SavedModel"
    )
    export.add_argument("--name", help="for ONNX: the recurrent layer to write alone")
    export.add_argument(
        "--force", action="store_true", help="replace TARGET if it exists: a file or a SavedModel"
    )

    fast = command(
        "accelerate",
        "rewrite a Keras model so that the fused ops run its layers",
        "IN is a .keras file, or a .h5 file of any version of Keras. Programs that import this "
        "package load OUT.keras. The exit status is 1 if the fused ops run no layer of the result.",
    )
    fast.add_argument("source", metavar="IN")
    fast.usage = "%(prog)s [-h] [--dry-run] [--no-stacks] [--force] IN [OUT.keras]"
    out = fast.add_argument("target", metavar="OUT.keras", type=_target(".keras"))
    fast.add_argument(
        "--dry-run",
        action=_WithoutTarget,
        target=out,
        help="only show what would become of it; OUT.keras may be left out",
    )
    fast.add_argument("--no-stacks", action="store_true", help="leave each layer on its own")
    fast.add_argument("--force", action="store_true", help="replace OUT.keras if it exists")

    measure = command(
        "bench",
        "measure a network here, beside Keras and, if installed, PyTorch",
        "With MODEL.keras, that model instead, as it is and accelerated, on each device, each as "
        "it runs by default and compiled by XLA.",
    )
    measure.add_argument("source", metavar="MODEL.keras", nargs="?", help="a file of a Keras model")
    measure.problem = _problem_of_bench
    network = measure.add_argument_group("the network, where there is no MODEL.keras")
    data, measuring = map(measure.add_argument_group, ("the data", "the measurement"))
    modes = ("lstm", "gru", "rnn_tanh", "rnn_relu")
    network.add_argument(
        "--rnn-mode", choices=modes, default="lstm", help="kind of network (default: lstm)"
    )
    for group, name, default, what in (
        (network, "--num-layers", 1, "layers in the stack"),
        (network, "--num-units", 256, "units of each"),
        (data, "--batch-size", BATCH_SIZE, "sequences"),
        (data, "--steps", STEPS, "time steps of the longest sequence"),
    ):
        kept = None if group is data else default  # A model may say these itself.
        group.add_argument(name, type=_count, default=kept, help=f"{what} (default: {default})")
    network.add_argument(
        "--input-size", type=_count, help="features of a step (default: as many as --num-units)"
    )
    directions = ("unidirectional", "bidirectional")
    network.add_argument(
        "--direction", choices=directions, default=directions[0], help="(default: unidirectional)"
    )
    network.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of weights and data (default: float32)"
    )
    network.add_argument(
        "--shortest",
        type=_count,
        help="steps of the shortest sequence; Keras gets a mask (default: as many as --steps)",
    )
    data.add_argument(
        "--padding",
        choices=("pre", "post"),
        default="post",
        help="where a model with a mask has it; lengths are random (default: post)",
    )
    measuring.add_argument(
        "--seconds", type=_seconds, default=2.0, help="for each number (default: 2)"
    )
    measuring.add_argument("--plot", metavar="FILE", help="also draw the numbers, as .png, .svg …")
    return result
