"""Brings files of the repository that pages link to into the site that MkDocs builds.

In the repository, pages link to files outside docs/ by relative paths. The site has
those files under their paths in the repository, beside the pages of docs/, and this
hook adapts the links.
"""

import os
import pathlib
import re
from collections.abc import Iterator

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# The search finds the guides before these.
LATER = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/", "internals/")
# The navigation names these.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *(ROOT / "benchmarks" / "results").glob("*.md"),
)
LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[#)])")


class CallArguments(griffe.Extension):
    """Makes a list of what docstrings say of the arguments of calls."""

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        # A class has no type for what its calls return: a column would be empty.
        if cls.docstring:
            text = cls.docstring.value
            cls.docstring.value = text.replace("\nReturns:\n", "\nA call returns:\n")

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring and "Call arguments:\n" in obj.docstring.value:
            before, title, rest = obj.docstring.value.partition("Call arguments:\n")
            listed, gap, after = rest.partition("\n\n")
            listed = re.sub(r"^    (\S)", r"    * \1", listed, flags=re.MULTILINE)
            obj.docstring.value = before + title + listed + gap + after


def _uri(path: pathlib.Path) -> str:
    """Where the site has a file."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def _targets(page: pathlib.Path) -> Iterator[pathlib.Path]:
    for link in LINK.findall(page.read_text()):
        target = (page.parent / link).resolve()
        if target.is_file():
            yield target


def on_files(files: Files, config: MkDocsConfig) -> None:
    pages = [pathlib.Path(file.abs_src_path) for file in files.documentation_pages()]
    waiting = [*(ROOT / page for page in PAGES), *pages]
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(_uri(path)) is None:
            files.append(File.generated(config, _uri(path), abs_src_path=str(path)))
        elif path not in pages:
            continue
        if path.suffix == ".md":
            waiting += [target for target in _targets(path) if target not in pages]


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    source = pathlib.Path(page.file.abs_src_path).resolve()
    if page.file.src_uri.startswith(LATER):
        # Words of a title count a thousand times as much as those of a text.
        page.meta.setdefault("search", {"boost": 1e-4})

    def adapted(link: re.Match[str]) -> str:
        target = (source.parent / link[0]).resolve()
        if not target.is_file():
            return link[0]  # MkDocs warns of it.
        return os.path.relpath(_uri(target), os.path.dirname(page.file.src_uri))

    return LINK.sub(adapted, markdown)
