#!/usr/bin/env python3
"""Reads the built site in Chromium, as readers on a computer and, in the dark, on a phone do.

    tests/check_site.py build/site

A server on this machine serves the pages, each with a script in front that notes errors. One page
of it opens all others in a frame, one after the other at each width, and reports what it saw. What
is wrong is printed, and then the exit status is 1: an error in a page's console, a file that is not
there, a page wider than the screen, an empty cell beside an argument, or text whose contrast is too
small. Before the last width, it switches to dark pages. MkDocs has checked the links. In a page
that is opened as a file, the search must find guides before all else.
"""

import argparse
import functools
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

WIDTHS = (1280, 390)
CONTRAST = 3
# The search finds these pages first.
FIRST = {"accelerate": "api/keras.html", "convert": "guides/files.html", "wheel": "install.html"}
FIRST |= {"padding": "guides/lengths.html"}
SECONDS = 400
NOTES_ERRORS = b"""<script>
window.notes = [];
window.addEventListener("error", (e) =>
  window.notes.push(e.message || "cannot load " + (e.target.src || e.target.href)), true);
window.addEventListener("unhandledrejection", (e) => window.notes.push(String(e.reason)));
console.error = (...what) => window.notes.push(what.join(" "));
</script>"""
READER = """<!doctype html><iframe id="frame" height="900"></iframe><script>
const frame = document.getElementById("frame");
// The luminance of a colour, and the contrast of two, as WCAG 2 defines them.
const luminance = (colour) => colour.slice(0, 3).map((part) => part / 255).map(
  (part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
).reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0.05);
const contrast = (colours) => {
  const [dark, light] = colours.map(luminance).sort((a, b) => a - b);
  return light / dark;
};
const numbers = (colour) => {
  const [red, green, blue, alpha = 1] = colour.match(/[\\d.]+/g).map(Number);
  return [red, green, blue, alpha];
};
const over = (above, below) => above.map((part, place) =>
  place == 3 ? 1 : part * above[3] + below[place] * (1 - above[3]));
const paper = (view, element) => {
  if (!element) return [255, 255, 255, 1];
  const own = numbers(view.getComputedStyle(element).backgroundColor);
  return own[3] == 1 ? own : over(own, paper(view, element.parentElement));
};
const is_faint = (view, element) => {
  const style = view.getComputedStyle(element), below = paper(view, element);
  return style.opacity == 1 && element.checkVisibility()
    && contrast([over(numbers(style.color), below), below]) < LEAST;
};
const faint = (view) => [...view.document.querySelectorAll("article *")]
  .filter((each) => [...each.childNodes].some((node) => node.nodeType == 3 && node.data.trim()))
  .filter((each) => is_faint(view, each))
  .map((each) => "faint: " + each.textContent.slice(0, 40));
const empty = (view) => [...view.document.querySelectorAll(".doc-section-item td")]
  .filter((each) => !each.textContent.trim())
  .map((each) => "empty beside: " + each.parentElement.textContent.trim().slice(0, 40));
const read = (page, width) => new Promise((done) => {
  frame.width = width;
  frame.onload = () => setTimeout(() => {
    const view = frame.contentWindow, root = view.document.documentElement;
    const { mdColorScheme } = view.document.body.dataset;
    const is_right = (mdColorScheme == "slate") == (width == WIDTHS.at(-1));
    done({
      page, width,
      notes: [
        ...(view.notes || ["no page"]), ...faint(view), ...empty(view),
        ...(is_right ? [] : [mdColorScheme]),
      ],
      too_wide: Math.max(0, root.scrollWidth - root.clientWidth),
    });
  }, 150);
  frame.src = page;
});
(async () => {
  const seen = [];
  for (const width of WIDTHS) {
    if (width == WIDTHS.at(-1))
      frame.contentDocument.querySelector("input[data-md-color-scheme=slate]").click();
    for (const page of PAGES) seen.push(await read(page, width));
  }
  await fetch("/report", {method: "POST", body: JSON.stringify(seen)});
})();
</script>"""


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, site: pathlib.Path):
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(site)))
        found = sorted(site.rglob("*.html"))
        self.pages = [f"/{page.relative_to(site)}" for page in found if page.name != "404.html"]
        self.missing: set[str] = set()
        self.report: list[dict] = []
        self.is_done = threading.Event()


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: _Server

    def do_GET(self):
        path = pathlib.Path(self.translate_path(self.path))
        if path.is_dir():
            path /= "index.html"
        if self.path == "/reader":
            text = READER.replace("WIDTHS", json.dumps(WIDTHS)).replace("LEAST", str(CONTRAST))
            self._answer(text.replace("PAGES", json.dumps(self.server.pages)).encode())
        elif path.suffix == ".html" and path.is_file():
            self._answer(path.read_bytes().replace(b"<head>", b"<head>" + NOTES_ERRORS, 1))
        else:
            super().do_GET()

    def do_POST(self):
        self.server.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")
        self.server.is_done.set()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code, message=None, explain=None):
        if not self.path.endswith("/favicon.ico"):
            self.server.missing.add(f"{self.path}: not there ({code})")
        super().send_error(code, message, explain)

    def log_message(self, *args):
        pass


def faults(site: pathlib.Path) -> list[str]:
    """Returns what is wrong with a site.

    Raises:
        TimeoutError: if Chromium does not read all pages in time.
    """
    server = _Server(site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as profile, server:
        browser = subprocess.Popen(
            [
                *(chromium(), "--headless", "--no-sandbox", "--disable-gpu"),
                *("--no-proxy-server", f"--user-data-dir={profile}", f"{origin}/reader"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if not server.is_done.wait(SECONDS):
                raise TimeoutError(f"Chromium has not read {site} in {SECONDS} s")
        finally:
            browser.terminate()
            browser.wait()
        server.shutdown()
    found = set(server.missing)
    for words, page in FIRST.items():
        if page not in (first := _first_in_file(site, words)):
            found.add(f"/index.html, opened as a file: {words!r} finds {first!r} first")
    for seen in server.report:
        where = f"{seen['page']} at {seen['width']} pixels"
        found |= {f"{where}: {note}" for note in seen["notes"]}
        if seen["too_wide"]:
            found.add(f"{where}: {seen['too_wide']} pixels too wide")
    return sorted(found)


def _first_in_file(site: pathlib.Path, words: str) -> str:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000"]
    with tempfile.TemporaryDirectory() as profile:
        page = subprocess.run(
            [chromium(), *options, f"--user-data-dir={profile}", "--dump-dom"]
            + [f"file://{site}/index.html?q={words}"],
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        ).stdout
    return "".join(re.findall(r'href="([^"]*)" class="md-search-result__link"', page)[:1])


def chromium() -> str | None:
    """Returns the path of Chromium, or of Chrome; None if neither is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=pathlib.Path)
    flags = parser.parse_args()
    if not chromium():
        print("Chromium is not installed, so no page was read in a browser.")
        return
    if found := faults(flags.site.resolve()):
        sys.exit("\n".join(found))
    print(f"{flags.site}: all pages were read at widths of {WIDTHS} pixels")


if __name__ == "__main__":
    main()
