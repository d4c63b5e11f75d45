"""The Python and the commands that README and the pages in docs show run as shown."""

import ast
import pathlib
import re
import shlex
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import cudnn_rnn_tf
from cudnn_rnn_tf import __main__, contrib, cudnn_rnn_ops

COMMAND = r"^(?:python -m cudnn_rnn_tf|cudnn-rnn-tf) (.*)"
ROOT = pathlib.Path(__file__).resolve().parent.parent
# The package may be installed outside of this repository.
PACKAGE = pathlib.Path(cudnn_rnn_tf.__file__).parent
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", *DOCS]
# These messages are TensorFlow's and Keras's, so they are not in this package's code.
MESSAGES_OF_OTHERS = (
    "Op type not registered 'CudnnRnnTf>Forward'",
    "Could not locate class 'CudnnLSTM'",
    "Detected unsupported operations when trying to compile graph … CudnnRnnTf>Forward",
)


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    """Runs a page's Python, and then its commands, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    names = {}
    for snippet in snippets(page):
        exec(compile(snippet, page, "exec"), names)
    text = (ROOT / page).read_text()
    for command in re.findall(COMMAND, text, re.MULTILINE):
        arguments = shlex.split(command, comments=True)
        # Numbers of small networks take less time.
        small = ["--seconds=0.01", "--batch-size=2", "--steps=30"]
        assert __main__.main([*arguments, *small * (arguments[0] == "bench")]) == 0, command
    printed = capsys.readouterr().out
    for line in re.findall(r"print\(layout.*# (.*)", text):
        assert line in printed
    if page == "docs/guides/gpu.md":
        assert "'cpu': 'available'" in printed


def test_most_pages_show_python():
    with_python = [page for page in PAGES if snippets(page)]
    assert len(with_python) >= 13
    assert {"README.md", "docs/quickstart.md", "docs/coming_from.md"} <= set(with_python)


def headings(page: pathlib.Path) -> set[str]:
    """Returns the anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
        *sorted(
            path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks/results").glob("*.md")
        ),
    ],
)
def test_links_lead_somewhere(page):
    """Checks links within the repository. `make docs` checks the site, which lacks README."""
    path = ROOT / page
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        file = (path.parent / target) if target else path
        assert file.exists(), link
        if anchor:
            assert anchor in headings(file), link


def test_readme_says_the_essentials_on_its_first_screens():
    lines = (ROOT / "README.md").read_text().splitlines()
    titles = ["## Install", "## Change one import", "## On your machine", "## Where to go next"]
    places = [lines.index(title) for title in titles]
    assert places == sorted(places)
    assert places[-1] <= 60


def test_readme_leads_to_every_page():
    readme = (ROOT / "README.md").read_text()
    for page in DOCS:
        if page != "docs/index.md":
            assert re.search(rf"\({page}[#)]", readme), page


def measured_gains() -> set[tuple[float, float]]:
    """Returns the geometric means in the pages of results, each with the smallest ratio."""
    gains = set()
    for page in (ROOT / "benchmarks" / "results").glob("*.md"):
        text = page.read_text()
        found = re.findall(r"([\d.]+) (?:against|as) [\w ]+ \(smallest: ([\d.]+)\)", text)
        found += re.findall(
            r"^\| Keras / .* \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \|$", text, re.MULTILINE
        )
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            rows = [line.strip("|\n ").split(" | ") for line in table.splitlines()]
            if rows[-1][0] == "geometric mean":
                columns = zip(*(row[1:] for row in rows[2:]), strict=True)
                numbers = [[float(cell) for cell in column if cell != "–"] for column in columns]
                found += [(means, min(ratios)) for *ratios, means in numbers]
        gains |= {(float(mean), float(least)) for mean, least in found}
    return gains


@pytest.mark.parametrize(
    ("page", "count"), [("README.md", 13), ("docs/index.md", 7), ("docs/guides/speed.md", 37)]
)
def test_quoted_gains_are_those_of_the_results(page, count):
    """A gain is quoted as a geometric mean, with the smallest ratio in parentheses."""
    number = r"(\d+(?:\.\d+)?)"
    text = (ROOT / page).read_text()
    quoted = re.findall(rf"{number} \((?:[^()|]*\bleast )?{number}\)", text)
    assert len(quoted) >= count
    measured = measured_gains()
    for gain in quoted:
        # The pages of results are rounded themselves.
        reach = [0.5 * 10.0 ** -len(part.partition(".")[2]) + 0.006 for part in gain]
        assert any(
            all(abs(float(q) - m) <= r for q, m, r in zip(gain, of_page, reach, strict=True))
            for of_page in measured
        ), gain


def source_text() -> str:
    """Returns the code, with adjacent string literals joined."""
    files = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "kernels").rglob("*.cc"),
        *(ROOT / "kernels").rglob("*.h"),
        *(ROOT / "pip_package").glob("*.py"),
    ]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)


def test_messages_are_the_codes():
    """The page on errors explains messages under titles that quote the code."""
    page = (ROOT / "docs/guides/troubleshooting.md").read_text()
    messages = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert len(messages) >= 15
    source = source_text()
    for message in messages:
        if message in MESSAGES_OF_OTHERS:
            continue
        for part in filter(None, map(str.strip, message.split("…"))):
            assert part.strip("[]") in source, message


def test_environment_variables_are_the_codes():
    page = (ROOT / "docs/guides/environment.md").read_text()
    # Include guards have no quotes, so these are names that getenv and os.environ ask for.
    variables = set(re.findall(r"[\"'](CUDNN_RNN_TF_[A-Z0-9_]+)[\"']", source_text()))
    assert len(variables) >= 7
    assert variables == set(re.findall(r"CUDNN_RNN_TF_[A-Z0-9_]+", page))


@pytest.mark.parametrize(
    "path",
    [
        "layers.py",
        "cudnn_rnn_ops.py",
        "contrib_functions.py",
        "contrib/python/layers/cudnn_rnn.py",
    ],
)
def test_examples_in_docstrings_run(path):
    """Every public class and function has an example, which is read here as by static tools."""
    module = ast.parse((PACKAGE / path).read_text())
    names = {
        "np": np,
        "tf": tf,
        "cudnn_rnn_tf": cudnn_rnn_tf,
        "cudnn_rnn_ops": cudnn_rnn_ops,
        "cudnn_rnn": contrib,
    }
    definitions = [
        node
        for node in module.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
    ]
    assert len(definitions) >= 4
    for node in definitions:
        docstring = ast.get_docstring(node)
        (example,) = re.findall(r"Example:\n    ```python\n(.*?)    ```", docstring, re.DOTALL)
        exec(compile(textwrap.dedent(example), node.name, "exec"), dict(names))
