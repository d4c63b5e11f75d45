"""The check of the built site finds what a reader would stumble over."""

import check_site
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not check_site.chromium(), reason="Chromium is not installed"),
]

PAGE = "<!doctype html><html><head></head><body id='top'>{}</body></html>"


def faults_of(folder, body):
    (folder / "index.html").write_text(PAGE.format(body))
    (folder / "other.html").write_text(PAGE.format("<h1 id='here'>Other</h1>"))
    return check_site.faults(folder)


def test_a_good_page_has_no_fault(tmp_path):
    links = (
        "<a href='other.html#here'>x</a> <a href='#top'>y</a> <a href='https://a.example/'>z</a>"
    )
    assert faults_of(tmp_path, links) == []


def test_faults_are_found(tmp_path):
    body = """
    <a href='none.html'>x</a> <a href='other.html#away'>y</a> <a href='#nowhere'>z</a>
    <img src='none.png'><script>console.error('broken')</script>
    <div style='width: 600px'>too wide for a phone</div>
    """
    found = "\n".join(faults_of(tmp_path, body))
    for expected in (
        "/index.html: no page /none.html",
        "/index.html: no anchor /other.html#away",
        "/index.html: no anchor /index.html#nowhere",
        "/none.png: not there (404)",
        "/index.html at 390 pixels: broken",
        "pixels too wide",
    ):
        assert expected in found, found
    assert "1280 pixels: 2" not in found
