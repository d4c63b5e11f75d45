"""The Python that README and the pages in docs show runs as shown."""

import pathlib
import re

import keras

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/parameters.md", "docs/gpu.md", "docs/speed_gpu.md"]


def test_snippets_run(tmp_path, monkeypatch, capsys):
    """Page by page in one directory, where the later ones find what the earlier have saved."""
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    for page in PAGES:
        names = {}
        snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert snippets, page
        for snippet in snippets:
            exec(compile(snippet, page, "exec"), names)
    assert (tmp_path / "model.keras").exists()
    printed = capsys.readouterr().out
    for line in re.findall(r"print\(layout.*# (.*)", (ROOT / "docs/parameters.md").read_text()):
        assert line in printed
    assert "'cpu': 'available'" in printed


def test_every_page_is_tested_and_linked():
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert pages == set(PAGES) - {"README.md"}
    readme = (ROOT / "README.md").read_text()
    for page in pages:
        assert f"({page})" in readme
