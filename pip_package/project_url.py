#!/usr/bin/env python3
"""Sets the project's public address in every file that has it: `project_url.py https://…`.

Without an argument, this prints the address. As long as there is none, example.org stands for it.
"""

import argparse
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACEHOLDER = "https://example.org/cudnn_rnn_tf"
# Each pattern has the address in its only group.
FILES = {
    "pyproject.toml": r'^Homepage = "(.*)"$',
    "mkdocs.yml": r"^repo_url: (.*)$",
    "CITATION.cff": r"^repository-code: (.*)$",
    "README.md": r"^pip install git\+(\S*)",
    "docs/index.md": r"^pip install git\+(\S*)",
}
NOTE = "The address is a placeholder, until the project has a public one. "


def addresses() -> dict[str, str]:
    """Returns the address that each file has."""
    return {
        name: re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)[0]
        for name, pattern in FILES.items()
    }


def replaced(text: str, old: str, new: str) -> str:
    """Returns a file's text with a new address, and without the note that there is none."""
    return text.replace(old, new).replace(NOTE, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    url = parser.parse_args().url
    for name, old in addresses().items():
        if url:
            (ROOT / name).write_text(replaced((ROOT / name).read_text(), old, url.rstrip("/")))
        else:
            print(f"{name}: {old}")


if __name__ == "__main__":
    main()
