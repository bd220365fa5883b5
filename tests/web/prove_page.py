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
_SETTLED = (
    "!document.querySelector('#chat').hidden || !document.querySelector('#failure').hidden ||"
    "document.querySelector('#verdict li')"
)
_SETTINGS = (
    "(document.querySelector('#tune').click(), document.querySelector('#temperature').value = 0,"
    "document.querySelector('#most').value = {most}, document.querySelector('#settings').close())"
)


def prove(bundle: Path, pictures: Path | None, profile: Path) -> None:
    """Raises AssertionError where the page does not do what it should."""
    trees = [plain_tree(item.folder) for item in open_web_bundles(bundle)[0]]
    with Host({"site": FileServer(trees)}) as host, Browser(profile) as browser:
        page = f"{host.url}/site/{trees[0].name}/"

        def load() -> float:
            browser.open(page)
            browser.wait("!document.querySelector('#load').disabled", _SECONDS)
            began = time.monotonic()
            browser.click("#load")
            browser.wait(_SETTLED, _SECONDS)
            assert browser.evaluate("!document.querySelector('#chat').hidden"), browser.text("main")
            return time.monotonic() - began

        def say(text: str) -> str:
            browser.write(text)
            browser.press("Enter", "\r")
            browser.wait(_IDLE, _SECONDS)
            answers = browser.evaluate(
                "[...document.querySelectorAll('.message.answer')].map((e) => e.innerText)"
            )
            assert not browser.evaluate("document.querySelectorAll('.trouble').length")
            return str(answers[-1])

        print(f"loaded in {load():.1f} s")
        browser.evaluate(_SETTINGS.format(most=24))
        browser.click("#input")
        for text in ("What is the capital of France?", "And of Italy?"):
            print(say(text).replace("\n", " "))
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            for name, width, height in (("desktop", 1280, 800), ("phone", 390, 844)):
                browser.window(width, height)
                time.sleep(0.3)
                browser.picture(pictures / f"{name}.png")
            browser.window(1280, 800)
        browser.evaluate(_SETTINGS.format(most=400))
        browser.click("#input")
        browser.write("Tell me a long story.")
        browser.press("Enter", "\r")
        browser.wait("document.querySelectorAll('.message.answer')[2]?.innerText.trim()", _SECONDS)
        browser.click("#send")
        browser.wait(_IDLE, _SECONDS)
        host.asked.clear()
        print(f"from storage in {load():.1f} s")
        fetched = [path for path, _ in host.asked if path.endswith((".bin", "tokenizer.json"))]
        assert fetched == [], f"fetched again: {fetched}"
        assert browser.problems == [], browser.problems
        foreign = [path for path, _ in host.asked if not path.startswith("/site/")]
        assert foreign == [], foreign
    print("no errors in the console")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        prove(arguments.bundle, arguments.pictures, Path(folder) / "profile")
