#!/usr/bin/env python3
"""Prints what CHANGELOG.md says of a version, to publish it: `release_notes.py 0.1.0`.

It fails if the version is not that of pyproject.toml, or the changelog still calls it unreleased.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def notes(version: str, changelog: str, pyproject: str) -> str:
    """Returns a version's part of the changelog.

    Raises:
        ValueError: if the version is not to be published.
    """
    if f'\nversion = "{version}"\n' not in pyproject:
        raise ValueError(f"pyproject.toml has another version than {version}")
    found = re.search(
        rf"^## {re.escape(version)} \(([^)\n]*)\)\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if not found:
        raise ValueError(f"CHANGELOG.md has no title '## {version} (date)'")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise ValueError(f"CHANGELOG.md has {found[1]!r} in place of {version}'s date")
    return found[2].strip()


def main() -> None:
    try:
        files = [(ROOT / name).read_text() for name in ("CHANGELOG.md", "pyproject.toml")]
        print(notes(sys.argv[1], *files))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
