"""The page of a real bundle in Chromium: loads, answers twice, stops, comes back from storage.

python -m tests.web.prove_page BUNDLE [--pictures FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from mlcbuild.bundle.web_bundles import open_web_bundles
from mlcbuild.server.file_tree import FileServer
from tests.web.page_site import Browser, Host, plain_tree

_SECONDS = 600.0  # software GPUs are slow
_IDLE = "document.querySelector('#send').innerText === 'Send'"
_COUNT = "document.querySelectorAll('.message.answer').length"
_LAST = "[...document.querySelectorAll('.message.answer')].at(-1)"
_SETTLED = (
    "!document.querySelector('#chat').hidden || !document.querySelector('#failure').hidden ||"
    "document.querySelector('#verdict li')"
)
_SETTINGS = (
    "(document.querySelector('#tune').click(), document.querySelector('#temperature').value = 0,"
    "document.querySelector('#most').value = {most}, document.querySelector('#settings').close())"
)


def serve(bundle: Path, host: Host) -> str:
    """Puts a bundle, and what lies beside it, on the host; gives its page's address."""
    trees = [plain_tree(item.folder) for item in open_web_bundles(bundle)[0]]
    host.sites["real"] = FileServer(trees)
    return f"{host.url}/real/{trees[0].name}/"


def load(browser: Browser, page: str) -> float:
    """Opens the page and loads the model; gives the seconds of the latter."""
    browser.open(page)
    browser.wait("!document.querySelector('#load').disabled", _SECONDS)
    began = time.monotonic()
    browser.click("#load")
    browser.wait(_SETTLED, _SECONDS)
    assert browser.evaluate("!document.querySelector('#chat').hidden"), browser.text("main")
    return time.monotonic() - began


def say(browser: Browser, text: str, tokens: int) -> str:
    """The answer to a message, of at most so many tokens, with its figures."""
    browser.evaluate(_SETTINGS.format(most=tokens))
    browser.click("#input")
    browser.write(text)
    browser.press("Enter", "\r")
    browser.wait(_IDLE, _SECONDS)
    assert browser.evaluate("document.querySelectorAll('.trouble').length") == 0
    return str(browser.evaluate(f"{_LAST}.innerText"))


def stop_a_story(browser: Browser) -> None:
    """Begins a long answer and stops it."""
    browser.evaluate(_SETTINGS.format(most=400))
    browser.click("#input")
    before = browser.evaluate(_COUNT)
    browser.write("Tell me a long story.")
    browser.press("Enter", "\r")
    browser.wait(f"{_COUNT} > {before} && {_LAST}.innerText.trim()", _SECONDS)
    browser.click("#send")
    browser.wait(_IDLE, _SECONDS)


def prove(bundle: Path, profile: Path, pictures: Path | None) -> None:
    """Raises AssertionError where the page does not do what it should."""
    with Host({}) as host, Browser(profile) as browser:
        page = serve(bundle, host)
        print(f"loaded in {load(browser, page):.1f} s")
        for text in ("What is the capital of France?", "And of Italy?"):
            print(say(browser, text, 24).replace("\n", " "))
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            for name, width, height in (("desktop", 1280, 800), ("phone", 390, 844)):
                browser.window(width, height)
                time.sleep(0.3)
                browser.picture(pictures / f"{name}.png")
            browser.window(1280, 800)
        stop_a_story(browser)
        host.asked.clear()
        print(f"from storage in {load(browser, page):.1f} s")
        fetched = [path for path, _ in host.asked if path.endswith((".bin", "tokenizer.json"))]
        assert fetched == [], f"fetched again: {fetched}"
        assert browser.problems == [], browser.problems
    print("no errors in the console")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        prove(arguments.bundle, Path(folder) / "profile", arguments.pictures)
