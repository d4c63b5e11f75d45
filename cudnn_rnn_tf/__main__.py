"""`python -m cudnn_rnn_tf`: commands on files."""

import argparse
import sys
from collections.abc import Sequence

from cudnn_rnn_tf import convert


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m cudnn_rnn_tf")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "convert",
        help="convert a recurrent network between PyTorch, Keras and ONNX",
        description="Converts the recurrent network in SOURCE. The names' ends say the formats: "
        ".pt, .pth or .safetensors (a PyTorch state dict), .keras (a Keras model), .onnx.",
    )
    command.add_argument("source", metavar="SOURCE")
    command.add_argument("target", metavar="TARGET")
    command.add_argument("--name", help="the network's name, where SOURCE has several")
    command.add_argument(
        "--rnn-mode",
        choices=("rnn_tanh", "rnn_relu"),
        help="the nonlinearity of a torch.nn.RNN, which its state dict does not say",
    )
    command.add_argument(
        "--stock-keras", action="store_true", help="write keras.layers.LSTM and its like"
    )
    command.add_argument("--force", action="store_true", help="replace TARGET if it exists")
    options = parser.parse_args(arguments)
    try:
        print(convert.convert_file(**vars(options)))
    except (ImportError, OSError, TypeError, ValueError) as error:
        hint = "; --force replaces it" if isinstance(error, FileExistsError) else ""
        print(f"{command.prog}: error: {error}{hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
