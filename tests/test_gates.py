"""What continuous integration runs besides the tests: each check fails on what it is to find."""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from cxx import include_folders

ROOT = pathlib.Path(__file__).resolve().parent.parent


# The documentation.


def documentation_command() -> list[str]:
    """Returns the command of `make docs`, with this Python's MkDocs."""
    (recipe,) = re.findall(r"^docs: .*\n\t(.*)\n", (ROOT / "Makefile").read_text(), re.MULTILINE)
    options = recipe.partition("$(BIN)/mkdocs ")[2].split()
    return [sys.executable, "-m", "mkdocs", *options]


@pytest.mark.parametrize(
    ("links", "passes"),
    [
        (["index.md#a-title"], True),
        (["none.md", "none/", "/none.md", "#none", "other.md#none"], False),
    ],
)
def test_documentation_with_a_dead_link_is_refused(links, passes, tmp_path):
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("MkDocs is not installed")
    (tmp_path / "docs").mkdir()
    text = ", ".join(f"[text]({link})" for link in [*links, "other.md"])
    (tmp_path / "docs" / "index.md").write_text(f"# A title\n\n{text}.\n")
    (tmp_path / "docs" / "other.md").write_text("# Another title\n")
    configuration = (
        f"INHERIT: {ROOT / 'mkdocs.yml'}\nhooks: []\nplugins: []\nnav: [index.md, other.md]\n"
    )
    (tmp_path / "mkdocs.yml").write_text(configuration)
    done = subprocess.run(
        documentation_command(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == passes, done.stderr
    if not passes:
        assert sorted(re.findall(r"WARNING.* link '(.*?)'", done.stderr)) == sorted(links)


# The tests.


def test_plain_pytest_finds_what_tests_import():
    """The matrix runs pytest in this folder, and `python -m pytest` would add the folder above."""
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "--collect-only", "-q", "test_result_pages.py"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# Programs that no build compiles.


@pytest.mark.parametrize(
    "program", sorted((ROOT / "benchmarks").glob("*.cc")), ids=lambda p: p.stem
)
def test_programs_of_benchmarks_compile(program):
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile the program with")
    subprocess.run(
        [
            *("g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}"),
            *(part for folder in include_folders() for part in ("-isystem", folder)),
            program,
        ],
        check=True,
    )
