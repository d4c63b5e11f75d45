"""The Python and the commands that README and the pages in docs show run as shown."""

import ast
import contextlib
import importlib
import io
import pathlib
import re
import shlex
import statistics
import subprocess
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import cudnn_rnn_tf
from cudnn_rnn_tf import __main__, contrib, cudnn_rnn_ops, native
from cudnn_rnn_tf.commands import command_line

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
# So are these names, options and programs; and TensorFlow 2 lacks what begins with the last two.
NAMES_OF_OTHERS = {
    *("AddN", "CMAKE_BUILD_PARALLEL_LEVEL", "CUDA_ERROR_LAUNCH_FAILED", "RaggedTensorToTensor"),
    *("CMAKE_CXX_COMPILER", "Python_INCLUDE_DIRS"),
    *("AdamW", "TF_ENABLE_ONEDNN_OPTS", "exclude_from_weight_decay", "model_base_path"),
    *("DistributedDataParallel", "padded_batch", "steps_per_execution", "var_names"),
}
PROGRAMS_OF_OTHERS = ("docker", "pip", "tensorflow_model_server", "apt", "bazel")
OF_TENSORFLOW_1 = ("tf.contrib", "tf.layers")


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(snippet: str, title: str, names: dict) -> None:
    """Runs Python, and compares comments with what is printed, and with the shapes of results.

    A comment after a print is what is printed, but for one such as this: "such as 3".
    """
    lines = snippet.splitlines()
    for statement in ast.parse(snippet).body:
        printed = []
        names["print"] = lambda *values, printed=printed: printed.append(" ".join(map(str, values)))
        exec(compile(ast.Module([statement], []), title, "exec"), names)
        comment = lines[statement.end_lineno - 1].partition("  # ")[2]
        if printed and comment and not comment.startswith("such as "):
            assert printed == [comment]
        shape = re.match(r"\[\d+(, \d+)*\]", comment)
        if shape and isinstance(statement, ast.Assign):
            targets = ast.walk(statement.targets[0])
            targets = [node.id for node in targets if isinstance(node, ast.Name)]
            for target in targets if comment.endswith(" each") else targets[:1]:
                assert list(names[target].shape) == ast.literal_eval(shape[0]), target


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page, tmp_path, monkeypatch):
    """Runs a page's Python, and then its commands, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    names = {}
    for snippet in snippets(page):
        run(snippet, page, names)
    text = (ROOT / page).read_text()
    for command in re.findall(COMMAND, text, re.MULTILINE):
        arguments = shlex.split(command, comments=True)
        # Numbers of small networks take less time. A model may have steps of its own.
        small = ["--seconds=0.01", "--batch-size=2", "--steps=30"][: 2 + (".keras" not in command)]
        assert __main__.main([*arguments, *small * (arguments[0] == "bench")]) == 0, command


@pytest.mark.parametrize("page", PAGES)
def test_fences_are_lines_of_their_own_and_are_closed(page):
    lines = (ROOT / page).read_text().splitlines()
    fences = [line for line in lines if "```" in line]
    assert not [line for line in fences if not re.fullmatch(r" *```\S*( .*)?", line)]
    assert len(fences) % 2 == 0


def test_most_pages_show_python():
    with_python = [page for page in PAGES if snippets(page)]
    assert len(with_python) >= 13
    assert {"README.md", "docs/quickstart.md", "docs/coming_from/keras.md"} <= set(with_python)


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_code_fit_the_column(page):
    for block in re.findall(r"```\w*\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        assert max(map(len, block.splitlines())) <= 88, block


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


@pytest.fixture(scope="module")
def spans() -> set[str]:
    """All code within lines of prose."""
    pages = [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
    texts = [re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S) for page in pages]
    return {span for text in texts for span in re.findall(r"`([^`\n]+)`", text)}


@pytest.fixture(scope="module")
def code() -> dict[str, str]:
    """The files that are no pages and no results, without this one."""
    command = ["git", "ls-files", ":!*.md", ":!benchmarks/results", f":!{pathlib.Path(__file__)}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listed.split() if not name.endswith((".png", ".svg", ".xz"))]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def test_names_that_pages_mention_are_there(spans, code):
    words = {word for text in code.values() for word in re.findall(r"[A-Za-z_]\w*", text)}
    for mode in ("lstm", "gru"):
        layout = native.ParamLayout(mode, 2, 2, 2, num_proj=mode == "lstm")
        words |= {*layout.weight_names, *layout.bias_names}
    importlib.import_module("cudnn_rnn_tf.contrib.python.ops.cudnn_rnn_ops")
    roots = {"crnn": cudnn_rnn_tf, "cudnn_rnn_tf": cudnn_rnn_tf, "keras": keras, "torch": torch}
    roots |= {"contrib": contrib, "convert": cudnn_rnn_tf.convert, "tf": tf}
    missing = set()
    for span in spans:
        text = re.sub(r"\"[^\"]*\"", "", span)
        for word in re.findall(r"(?<![\w.…/-])[A-Za-z_]\w*(?!\w*\.(?:py|md|cc))", text):
            is_name = "_" in word or re.search(r"[a-z][A-Z]", word)
            if is_name and word not in words | NAMES_OF_OTHERS | {*PROGRAMS_OF_OTHERS}:
                missing.add(word)
        for name in re.findall(r"(?<![\w.])(?:" + "|".join(roots) + r")(?:\.\w+)+", text):
            root, *parts = name.split(".")
            found = [roots[root], tf.compat.v1] if root == "tf" else [roots[root]]
            for part in parts:
                found = [getattr(each, part) for each in found if hasattr(each, part)]
            if not found and not name.startswith(OF_TENSORFLOW_1):
                missing.add(name)
    assert not missing


def test_paths_that_pages_mention_are_there(spans, code):
    folders = {path.partition("/")[0] for path in code if "/" in path}
    drawings = "".join(path.read_text() for path in ROOT.glob("docs/internals/*.svg"))
    drawn = re.findall(r"(?<=[>, ])[\w/.]+(?=[^<>]*</text>)", drawings)
    missing = set()
    for span in {*spans, *drawn}:
        is_path = span.partition("/")[0] in folders and "/" in span
        if re.fullmatch(r"[\w./*-]+", span) and (
            is_path or re.search(r"\w\.(py|cc|h|cu|cuh|md|yml|toml)$", span)
        ):
            pattern = span.rstrip("/")
            if not any(ROOT.glob(pattern)) and not any(ROOT.glob(f"[a-z]*/**/{pattern}")):
                missing.add(span)
    # Of TensorFlow's sources, of what a later Bazel needs, and what is built.
    of_others = {"cudnn_rnn_ops_test.py", "cudnn_rnn_test.py", "MODULE.bazel", "build/site"}
    assert not missing - of_others


def test_options_that_pages_mention_are_there(spans, code):
    texts = "\n".join(code.values())
    known = set(re.findall(r"[\"'](?:--)?([a-z][a-z0-9_-]+)[\"']", texts))
    known |= {name.replace("_", "-") for name in known}
    for span in spans:
        if span.startswith(PROGRAMS_OF_OTHERS):
            continue
        options = re.findall(r"(?:^|\s)--([\w-]+)", span)
        for option in options:
            assert {option, option.removeprefix("no")} & (known | NAMES_OF_OTHERS), span
        if command := re.match(r"cudnn-rnn-tf (\w+) ", span):
            with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
                command_line.parser().parse_args([command[1], "--help"])
            assert all(f"--{option}" in shown.getvalue() for option in options), span


def test_every_public_name_is_in_the_reference():
    reference = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    for module in ("", ".contrib", ".convert", ".cudnn_rnn_ops", ".keras", ".native"):
        for name in importlib.import_module(f"cudnn_rnn_tf{module}").__all__:
            assert re.search(rf"\b{name}\b", reference), f"cudnn_rnn_tf{module}.{name}"


def test_readme_says_the_essentials_on_its_first_screens():
    lines = (ROOT / "README.md").read_text().splitlines()
    titles = ["## Install", "## On your machine", "## How fast it is", "## Where to go next"]
    places = [lines.index("```python"), *(lines.index(title) for title in titles)]
    assert places == sorted(places)
    assert places[-1] <= 60
    commands = {line.partition("#")[0].strip() for line in lines}
    assert {"make run", "make test", "make docs"} <= commands


def test_readme_leads_to_every_page():
    readme = (ROOT / "README.md").read_text()
    for page in DOCS:
        assert re.search(rf"\({page}[#)]", readme), page


def measured_gains() -> set[tuple[float, float]]:
    """Returns the geometric means in the pages of results, each with the smallest ratio."""
    gains = set()
    for page in (ROOT / "benchmarks" / "results").glob("*.md"):
        text = page.read_text()
        found = re.findall(r"([\d.]+) (?:against|as) [\w ]+ \(smallest: ([\d.]+)\)", text)
        found += re.findall(
            r"^\| Keras / .* \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \| \d+ \|$", text, re.MULTILINE
        )
        found += re.findall(r"(?<=\| )([\d.]+) \(([\d.]+)\)(?= \|)", text)
        found += re.findall(r"(?:training|inference) ([\d.]+) \(least ([\d.]+)\)", text)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            rows = [line.strip("|\n ").split(" | ") for line in table.splitlines()]
            if rows[0][2:4] == ["this package", "compiled"]:
                # The faster of compiled and not, of both sides.
                times = [
                    [min(float(cell) for cell in row[at : at + 2] if cell != "–") for at in (2, 5)]
                    for row in rows[2:]
                ]
                ratios = [keras / own for own, keras in times]
                found.append((statistics.geometric_mean(ratios), min(ratios)))
        gains |= {(float(mean), float(least)) for mean, least in found}
    return gains


@pytest.mark.parametrize(("page", "count"), [("README.md", 5), ("docs/guides/speed.md", 23)])
def test_quoted_gains_are_those_of_the_results(page, count):
    """A gain is quoted as a geometric mean, with the smallest ratio in parentheses."""
    number = r"(\d+(?:\.\d+)?)"
    text = (ROOT / page).read_text()
    quoted = re.findall(rf"{number}×? \((?:[^()|]*\bleast\s+)?{number}×?\)", text)
    assert len(quoted) >= count
    measured = measured_gains()
    for gain in quoted:
        # The pages of results are rounded themselves.
        reach = [0.5 * 10.0 ** -len(part.partition(".")[2]) + 0.006 for part in gain]
        assert any(
            all(abs(float(q) - m) <= r for q, m, r in zip(gain, of_page, reach, strict=True))
            for of_page in measured
        ), gain


IN_FLOAT32 = " (512|256), B64 T200, float32 "


@pytest.mark.parametrize(
    ("page", "text", "source", "title", "rows"),
    [
        ("README.md", r"\[{} to {} times as long", "gpu_doors", "/ drop-in", ""),
        ("README.md", r"\[{} to {}\]\(docs/guides/speed", "docs/guides/speed.md", "training", "an"),
        ("docs/guides/speed.md", r"{} times, uncompiled", "gpu_fit", "Keras / drop-in", "float32 "),
        ("README.md", r"train {} to {} times as fast", "docs/gallery.md", "ratio", "H200"),
        ("README.md", r"and {} to {} times on two", "docs/gallery.md", "ratio", "(e|2|s).py.*EPYC"),
        ("docs/guides/speed.md", "units {} and {} times", "networks", "times as fast", IN_FLOAT32),
        ("docs/guides/speed.md", "train {} times as fast", "models", "times as fast", "MusicVAE"),
        ("docs/guides/speed.md", "projected to 512, {} times", "models", "times as fast", "ELMo"),
        ("docs/guides/lengths.md", r"took \[{} to {} times as long", "gpu_doors", "/ drop-in", ""),
        ("docs/guides/xla.md", r"\[{} to {} times\]", "xla", "gain", ""),
    ],
)
def test_quoted_numbers_and_ranges_are_those_of_a_column(page, text, source, title, rows):
    """They are the least and the most, in the rows that are named, of the first such column."""
    path = ROOT / (source if "/" in source else f"benchmarks/results/{source}.md")
    tables = re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE)
    tables = [[line[2:-2].split(" | ") for line in each.splitlines()] for each in tables]
    titles, _, *lines = next(each for each in tables if re.search(title, " | ".join(each[0])))
    place = next(place for place, each in enumerate(titles) if title in each)
    cells = [line[place] for line in lines if re.search(rows, " ".join(line))]
    column = [float(re.match(r"[\d.]+", cell)[0]) for cell in cells]
    number = r"(\d+(?:\.\d+)?)"
    quoted = re.search(text.replace("{}", number).replace(" ", r"\s+"), (ROOT / page).read_text())
    for part, value in zip(quoted.groups(), (min(column), max(column)), strict=False):
        assert abs(float(part) - value) <= 0.5 * 10.0 ** -len(part.partition(".")[2]) + 1e-9


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
        "layers/__init__.py",
        "cudnn_rnn_ops.py",
        "contrib/functions.py",
        "contrib/python/layers/cudnn_rnn.py",
        "keras/layers.py",
    ],
)
def test_examples_in_docstrings_run(path):
    """Classes and functions have examples, unless their arguments are those of another one."""
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
    assert len(definitions) >= 3
    for node in definitions:
        docstring = ast.get_docstring(node)
        examples = re.findall(r"Example:\n    ```python\n(.*?)    ```", docstring, re.DOTALL)
        assert len(examples) == 1 or " are those of " in " ".join(docstring.split())
        for example in examples:
            run(textwrap.dedent(example), node.name, dict(names))
