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
    "mkdocs.yml": r"^(?:# )?repo_url: (\S*)",
    "CITATION.cff": r"^repository-code: (.*)$",
}
# What these pages say of installing as long as there is no address, and then instead.
PAGES = ("README.md", "docs/index.md", "docs/quickstart.md", "docs/guides/gpu.md")
FROM_A_CLONE = """\
pip install . && cd ..              # in a clone: loads 0.6 GB, compiles for minutes
"""
FROM_THE_ADDRESS = """\
pip install git+{}  # loads 0.6 GB, compiles for minutes
"""


def addresses() -> dict[str, str]:
    """Returns the address that each file has."""
    return {
        name: re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)[0]
        for name, pattern in FILES.items()
    }


def replaced(text: str, old: str, new: str) -> str:
    """Returns a file's text with a new address."""
    text = text.replace("# repo_url:", "repo_url:")
    return text.replace(FROM_A_CLONE, FROM_THE_ADDRESS.format(new)).replace(old, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    url = parser.parse_args().url
    found = addresses()
    (old,) = set(found.values())
    for name in (*found, *PAGES):
        if url:
            (ROOT / name).write_text(replaced((ROOT / name).read_text(), old, url.rstrip("/")))
        else:
            print(f"{name}: {found.get(name, '–')}")


if __name__ == "__main__":
    main()
