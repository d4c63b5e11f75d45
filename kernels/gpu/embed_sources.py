"""Writes a C++ file that holds other files as strings, for the device's compiler at run time.

Usage: embed_sources.py OUTPUT.cc INPUT...
"""

import pathlib
import sys


def main(output: str, *inputs: str) -> None:
    text = '#include "kernels/gpu/compiler.h"\n\nnamespace cudnn_rnn_tf {\n\n'
    text += "std::vector<SourceFile> EmbeddedSources() {\n  return {\n"
    for path in map(pathlib.Path, inputs):
        text += f'      {{"{path.name}", R"embedded({path.read_text()})embedded"}},\n'
    text += "  };\n}\n\n}  // namespace cudnn_rnn_tf\n"
    pathlib.Path(output).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
