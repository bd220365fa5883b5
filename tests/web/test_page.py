"""The page of the bundles and its loader in Chromium, on a plain static host; engines are stubs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlcbuild.pipeline.stages.wasm import _copy_files
from mlcbuild.server.file_tree import FileServer
from tests.unit.web_bundles import (
    CPU_TARGET,
    GPU_TARGET,
    SHARD_BYTES,
    SHARDS,
    write_cpu_bundle,
    write_gpu_bundle,
)
from tests.web.page_site import PAGE_FILES, Browser, Host, page_files, plain_tree
from tests.web.prove_page import load, say, serve

SEND = "document.querySelector('#send')"
IDLE = f"{SEND}.innerText === 'Send'"
READY = "!document.querySelector('#start').hidden && !document.querySelector('#load').disabled"
CHATTING = "!document.querySelector('#chat').hidden"


def shown(selector: str) -> str:
    return f"!document.querySelector({json.dumps(selector)}).hidden"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Sites: both engines, of one scheme or two; WebGPU alone, for another device; damaged."""
    root = tmp_path_factory.mktemp("sites")
    page = page_files()
    write_gpu_bundle(root / "both" / GPU_TARGET, page)
    write_cpu_bundle(root / "both" / CPU_TARGET, page)
    limits = {"maxStorageBufferBindingSize": 2**32}
    write_gpu_bundle(root / "needy" / GPU_TARGET, page, features=("shader-f16",), limits=limits)
    write_gpu_bundle(root / "mixed" / GPU_TARGET, page)
    write_cpu_bundle(root / "mixed" / CPU_TARGET, page, scheme="q0f32")
    write_gpu_bundle(root / "damaged" / GPU_TARGET, page)
    shard = root / "damaged" / GPU_TARGET / "params_shard_1.bin"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    sites = {
        site.name: FileServer([plain_tree(folder) for folder in sorted(site.iterdir())])
        for site in root.iterdir()
    }
    with Host(sites) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, host: Host) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running


@pytest.fixture(autouse=True)
def afresh(browser: Browser, host: Host) -> Iterator[None]:
    """Nothing is stored at the start of a test; the console is empty at its end."""
    browser.open(f"{host.url}/both/{GPU_TARGET}/bundle.json")
    browser.evaluate("caches.keys().then((all) => Promise.all(all.map((n) => caches.delete(n))))")
    host.held.clear()
    host.cut.clear()
    host.asked.clear()
    browser.problems.clear()
    yield
    assert browser.problems == []


def open_page(browser: Browser, host: Host, site: str, target: str = GPU_TARGET) -> None:
    browser.open(f"{host.url}/{site}/{target}/")
    browser.wait(
        "document.querySelector('#verdict').innerText && !document.querySelector('#verdict')"
        ".innerText.startsWith('Looking')"
    )


def start_chat(browser: Browser, host: Host, target: str = GPU_TARGET) -> None:
    open_page(browser, host, "both", target)
    browser.click("#load")
    browser.wait(CHATTING)


def tell(browser: Browser, text: str, *, wait: bool = True) -> None:
    browser.write(text)
    browser.press("Enter", "\r")
    if wait:
        browser.wait(IDLE)


def last(browser: Browser, selector: str) -> Any:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)?.innerText"
    return browser.evaluate(script)


# ---- the page ------------------------------------------------------------------------------------


def test_choose_load_and_chat(browser: Browser, host: Host) -> None:
    open_page(browser, host, "both")
    assert browser.text("#name") == "smollm2-135m-instruct"
    facts = browser.text("#facts")  # 900 kB of shards; the client that npm has is counted, too
    assert re.fullmatch(r"q4f32_1 · 90[45]\.\d kB · 2,048-token context · Apache-2\.0", facts)
    assert browser.text("#load").startswith("Load the model · 90")
    # Nothing is asked for before the user wants it, and nothing of other hosts ever.
    assert not [path for path, _ in host.asked if "params" in path or CPU_TARGET in path]
    host.held.add(f"/both/{GPU_TARGET}/params_shard_2.bin")
    browser.click("#load")
    browser.wait("document.querySelector('#doing').innerText === 'Download: 66 %'")
    assert browser.text("#amount").startswith("600.")
    assert browser.text("#steps li[aria-current]") == "Download"
    assert browser.evaluate("document.activeElement.id") == "cancel"
    host.held.clear()
    browser.wait(CHATTING)
    assert browser.evaluate("document.activeElement.id") == "input"

    tell(browser, "hello")
    assert last(browser, ".message.user") == "hello"
    # Text stays text.
    paragraphs = "[...document.querySelectorAll('.message.answer p')].map((p) => p.textContent)"
    assert browser.evaluate(paragraphs) == [
        "Hello! I am a small model.",
        "Ask me **anything** <b>plain</b>.",
    ]
    assert re.fullmatch(
        r"10 tokens · \d+(\.\d)? tokens/s · first after \d\.\d+ s", last(browser, ".figures")
    )
    assert browser.text("#status").startswith("Answer: Hello!")
    tell(browser, "code")
    code = "[...document.querySelectorAll('.message.answer pre code')].map((c) => c.textContent)"
    assert browser.evaluate(code) == ["def add(a, b):\n    return a + b"]
    tell(browser, "echo")
    request = json.loads(last(browser, ".message.answer .text"))
    assert [(m["role"], m["content"][:6]) for m in request["messages"]] == [
        ("user", "hello"),
        ("assistant", "Hello!"),
        ("user", "code"),
        ("assistant", "Here i"),
    ]
    assert request["stream_options"] == {"include_usage": True}
    assert request["resets"] == 3  # the template ends answers, which the client would leave out
    sampling = (request["temperature"], request["top_p"], request["max_tokens"])
    assert sampling == (0.6, 0.95, 512)
    # Long words do not widen the page.
    tell(browser, "x" * 400)
    browser.window(390, 844)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.evaluate("document.querySelector('#log').scrollWidth") <= 390
    browser.window(1280, 800)


def test_stop_settings_and_new_chat(browser: Browser, host: Host) -> None:
    start_chat(browser, host)
    tell(browser, "count", wait=False)
    browser.wait("document.querySelector('.message.answer p')?.innerText.length > 40")
    assert browser.evaluate(f"{SEND}.innerText") == "Stop"
    browser.press("Escape")
    browser.wait(IDLE)
    figures = last(browser, ".figures")
    assert figures.endswith(" · stopped")
    assert int(figures.split()[0]) < 4000
    browser.click("#tune")
    browser.write("Be brief: $$5 $& $'.")
    browser.evaluate(
        "for (const [id, value] of [['temperature', 0], ['top-p', 0.5], ['most', 7]]) {"
        "const e = document.getElementById(id); e.value = value;"
        "e.dispatchEvent(new Event('input')); }"
    )
    assert browser.text("#temperature-value") == "0.00"
    browser.press("Escape")
    browser.wait("!document.querySelector('#settings').open")
    browser.click("#fresh")
    assert browser.evaluate("document.querySelectorAll('.message').length") == 0
    assert browser.evaluate("document.activeElement.id") == "input"
    tell(browser, "echo")
    request = json.loads(last(browser, ".message.answer .text"))
    assert request["messages"] == [{"role": "system", "content": "Be brief: $$5 $& $'."}]
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0, 0.5, 7)


def test_errors_of_a_chat(browser: Browser, host: Host) -> None:
    start_chat(browser, host)
    tell(browser, "hello")
    tell(browser, "too long")
    assert browser.text(".trouble strong") == "The conversation is too long"
    assert browser.evaluate("document.querySelector('#input').value") == "too long"
    browser.click(".trouble button")  # New chat
    assert browser.evaluate("document.querySelectorAll('.message').length") == 0
    browser.evaluate("document.querySelector('#input').value = ''")
    tell(browser, "lose the device")
    assert browser.text(".trouble strong") == "The graphics processor was lost"
    offers = "[...document.querySelectorAll('.trouble button')].map((b) => b.innerText)"
    assert browser.evaluate(offers) == ["Load the model again", "Use the other engine"]
    browser.click(".trouble button")
    browser.wait(f"{CHATTING} && document.querySelectorAll('.message').length === 0")


def test_the_other_engine(browser: Browser, host: Host) -> None:
    start_chat(browser, host)
    browser.click("#change")
    browser.wait(READY)
    browser.press("ArrowDown")  # by keyboard: the chosen engine has the focus
    browser.wait("document.querySelector('input[value=cpu]').checked")
    browser.wait(READY)
    assert (f"/both/{CPU_TARGET}/bundle.json", "") in host.asked
    browser.click("#load")
    browser.wait(CHATTING)
    assert browser.text("#change") == "Engine: CPU"
    tell(browser, "one two")
    assert last(browser, ".message.answer .text") == "CPU: one two"
    assert browser.text(".thought summary") == "Thinking"
    assert last(browser, ".figures").endswith("cut off at the longest answer")
    tell(browser, "too long")
    assert "the window holds 2048" in browser.text(".trouble")
    # The page of the other bundle begins with its own engine.
    open_page(browser, host, "both", CPU_TARGET)
    assert browser.evaluate("document.querySelector('input[value=cpu]').checked")


def test_leaving_while_an_answer_is_written(browser: Browser, host: Host) -> None:
    start_chat(browser, host)
    tell(browser, "count", wait=False)
    browser.wait("document.querySelector('.message.answer p')?.innerText.length > 40")
    browser.click("#change")
    browser.wait(READY)
    browser.click("#load")
    browser.wait(CHATTING)
    assert browser.evaluate(IDLE)
    tell(browser, "hello")
    assert last(browser, ".message.answer .text").startswith("Hello!")
    assert browser.evaluate("document.querySelectorAll('.message.answer').length") == 1


def test_an_engine_that_is_closed_settles_its_answer(browser: Browser, host: Host) -> None:
    open_page(browser, host, "both")
    ended = browser.evaluate("""(async () => {
      const { openEngine } = await import("./platform/web/page/engines.js");
      const url = new URL("./", location.href).href;
      const { signal } = new AbortController();
      const engine = await openEngine({ url, engine: "gpu" }, { onProgress() {}, signal });
      const messages = [{ role: "user", content: "count" }];
      try {
        for await (const part of engine.answer(messages, {}, signal)) if (part.text) engine.close();
      } catch (error) {
        return error.name;
      }
    })()""")
    assert ended == "AbortError"


def test_a_neighbour_of_another_scheme_is_none(browser: Browser, host: Host) -> None:
    open_page(browser, host, "mixed")
    browser.click("input[value=cpu]")
    browser.wait("document.querySelector('#verdict').innerText.includes('no bundle for CPU')")
    assert "of this model and scheme" in browser.text("#verdict")


def test_cancel_and_go_on(browser: Browser, host: Host) -> None:
    open_page(browser, host, "both")
    host.held.add(f"/both/{GPU_TARGET}/params_shard_2.bin")
    browser.click("#load")
    browser.wait("document.querySelector('#doing').innerText === 'Download: 66 %'")
    browser.click("#cancel")
    browser.wait(READY)
    browser.wait("document.activeElement.id === 'load'")
    host.held.clear()
    host.asked.clear()
    browser.press("Enter", "\r")
    browser.wait(CHATTING)
    shards = [path.rpartition("/")[2] for path, _ in host.asked if "params_shard" in path]
    assert shards == ["params_shard_2.bin"]


def test_what_is_missing_is_named(browser: Browser, host: Host) -> None:
    open_page(browser, host, "needy")
    text = browser.text("#verdict")
    assert "The model cannot run on WebGPU here." in text
    assert "lacks 16-bit numbers in shaders (shader-f16)" in text
    assert "(maxStorageBufferBindingSize) is 1.1 GB, the model needs 4.3 GB" in text
    assert browser.evaluate("document.querySelector('#load').disabled")
    browser.click("#verdict button")  # the other engine, which is not there
    browser.wait("document.querySelector('#verdict').innerText.includes('no bundle for CPU')")
    assert "build it for the target web-wasm32-cpu" in browser.text("#verdict")
    # Asked for by the user, a missing neighbour is the one thing that the console hears of.
    assert len(browser.problems) == 1
    assert "404" in browser.problems.pop()


def test_a_damaged_shard_is_named(browser: Browser, host: Host) -> None:
    open_page(browser, host, "damaged")
    browser.click("#load")
    browser.wait(shown("#failure"))
    assert browser.text("#failure-title") == "A file of the model is damaged"
    assert browser.text("#failure-text").startswith("params_shard_1.bin is not what bundle.json")
    assert "its sha256 is " in browser.evaluate(
        "document.querySelector('#failure-detail').textContent"
    )
    kept = browser.evaluate(
        "caches.open('webllm/model').then((c) => c.keys()).then((k) => k.map((r) => r.url))"
    )
    assert not [url for url in kept if url.endswith("params_shard_1.bin")]
    browser.click("#back")
    browser.wait(READY)


def test_findings_about_other_browsers(browser: Browser, host: Host) -> None:
    """Browsers that are not at hand: the check is given what they would offer."""
    open_page(browser, host, "both")
    results = browser.evaluate("""(async () => {
      const { checkGpu, checkStorage } = await import("./platform/web/page/checks.js");
      const needs = { features: ["subgroups"], limits: { maxStorageBufferBindingSize: 2 ** 28 } };
      const check = async (browser) => (await checkGpu({ needs }, browser)).map((f) => f.what);
      const adapter = { features: new Set(["subgroups"]), limits: {
        maxBufferSize: 2 ** 30, maxStorageBufferBindingSize: 2 ** 30,
        maxComputeWorkgroupStorageSize: 2 ** 15, maxStorageBuffersPerShaderStage: 10 } };
      const withAdapter = (found) => ({ isSecureContext: true, caches: {},
        navigator: { gpu: { requestAdapter: async () => found } } });
      return [
        await check({ isSecureContext: false, navigator: {} }),
        await check({ isSecureContext: true, caches: {}, navigator: {} }),
        await check({ isSecureContext: true, navigator: { gpu: {} } }),
        await check(withAdapter(null)),
        await check(withAdapter(adapter)),
        await check(withAdapter({ ...adapter, features: new Set() })),
        // MLC's client takes 1 GiB or 128 MiB: what lies between does not help.
        await check(withAdapter({ ...adapter,
          limits: { ...adapter.limits, maxStorageBufferBindingSize: 2 ** 29 } })),
        await check(withAdapter({ ...adapter,
          limits: { ...adapter.limits, maxStorageBuffersPerShaderStage: 8 } })),
        [await checkStorage(10e6, { navigator: {} })],
        [await checkStorage(10e6, { caches: {}, navigator: { storage: {
          estimate: async () => ({ quota: 7e6, usage: 2e6 }) } } })],
        [await checkStorage(0, { caches: {}, navigator: { storage: {
          estimate: async () => ({ quota: 7e6, usage: 8e6 }) } } })],
        [await checkStorage(10e6, { caches: {}, navigator: {} })],
      ];
    })()""")
    assert [[what[:44] for what in found if what] for found in results] == [
        ["This page was not opened over https."],
        ["This browser has no WebGPU."],
        ["This browser lets the page store nothing."],
        ["The browser has WebGPU, but found no graphic"],
        [],
        ["The graphics processor lacks subgroups, whic"],
        ["The graphics processor offers too little: gr"],
        ["The graphics processor offers too little: bl"],
        ["The browser keeps no files for this page, so"],
        ["The browser offers this site 5.0 MB more sto"],
        [],
        [],
    ]
    assert "is 134.2 MB, the model needs 268.4 MB" in results[6][0]


MISSING = """(async () => {
  const { missingBytes, openHome } = await import("./platform/web/page/bundles.js");
  return missingBytes(await openHome());
})()"""


def test_what_is_kept_needs_no_room(browser: Browser, host: Host) -> None:
    """Of either engine; of a download that broke off, what came of it."""
    open_page(browser, host, "both")
    whole = browser.evaluate(MISSING)
    assert whole > SHARDS * SHARD_BYTES
    host.held.add(f"/both/{GPU_TARGET}/params_shard_2.bin")
    browser.click("#load")
    browser.wait("document.querySelector('#doing').innerText === 'Download: 66 %'")
    browser.click("#cancel")
    browser.wait(READY)
    assert browser.evaluate(MISSING) == SHARD_BYTES
    host.held.clear()
    browser.click("#load")
    browser.wait(CHATTING)
    assert browser.evaluate(MISSING) == 0
    open_page(browser, host, "both", CPU_TARGET)
    whole = browser.evaluate(MISSING)
    browser.evaluate("""(async () => {
      const { ApiCache } = await import("./platform/web/cache_api.js");
      const { files } = await (await fetch("bundle.json")).json();
      const { sha256 } = files.find(({ path }) => path === "params/params_shard_0.bin");
      await (await (await ApiCache.open()).entry(sha256)).write(0, new Uint8Array(1000));
    })()""")
    assert browser.evaluate(MISSING) == whole - 1000


def test_what_a_bundle_gets_is_complete(tmp_path: Path) -> None:
    """The page and its modules refer to nothing that assembly does not put there."""
    _copy_files(SimpleNamespace(out=tmp_path))  # type: ignore[arg-type]
    page = (tmp_path / "index.html").read_text()
    references = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len(references) >= 3
    missing = [path for path in references if not (tmp_path / path).is_file()]
    for module in (tmp_path / "platform" / "web").rglob("*.js"):
        for path in re.findall(r'^[^/]*(?:from|import) "(\.[^"]+)"', module.read_text(), re.M):
            if not (module.parent / path).is_file():
                missing.append(f"{module.name}: {path}")
    assert missing == []
    assert sorted(page_files(stubs=False)) == sorted(
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.parent.name != "include"
    )


def test_what_the_page_is_made_of() -> None:
    """No step of a build, no other host, no HTML made of text."""
    page = (PAGE_FILES / "index.html").read_text()
    assert "Content-Security-Policy" in page
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son[a-z]+=|\sstyle=|https?://", page)
    for path in (PAGE_FILES / "page").iterdir():
        text = path.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text
        )
        assert not re.search(r"https?://(?!www\.w3\.org/)[a-z]", text), path.name


def test_the_npm_client_itself(
    browser: Browser, host: Host, tiny_web_bundle: Callable[[str], Path]
) -> None:
    """No stub: it takes the record, and finds what client.js has stored, on a plain host."""
    page = serve(tiny_web_bundle("q4f32_1"), host)
    load(browser, page)
    assert re.match(r"\d+ tokens", say(browser, "Hello!", 8).splitlines()[-1])
    paths = [path for path, _ in host.asked]
    assert paths.count(f"/real/{GPU_TARGET}/params_shard_0.bin") == 1
    assert not [path for path in paths if "/resolve/" in path]


# ---- the loader ----------------------------------------------------------------------------------

LOADER = """
const { modelRecord, prefetch, removeStored } = await import("./platform/web/client.js");
const told = [];
const load = (options = {}) =>
  prefetch(location.href, { onProgress: (progress) => told.push(progress), ...options }).then(
    (value) => ({ value }),
    ({ code, name, message }) => ({ error: name === "MlcbError" ? code : name, text: message }));
"""


def loader(browser: Browser, host: Host, script: str, site: str = "both") -> Any:
    browser.open(f"{host.url}/{site}/{GPU_TARGET}/")
    browser.wait("document.querySelector('#name')")
    host.asked.clear()
    return browser.evaluate(f"(async () => {{ {LOADER} {script} }})()")


def asked_shards(host: Host) -> list[tuple[int, str]]:
    found = [(re.search(r"shard_(\d)", path), span) for path, span in host.asked]
    return sorted((int(match[1]), span) for match, span in found if match is not None)


def test_the_record_of_a_bundle(browser: Browser, host: Host) -> None:
    record = loader(browser, host, "return modelRecord(location.href);")
    base = f"{host.url}/both/{GPU_TARGET}/"
    # What MLC's client makes of the address: the folder itself.
    assert re.match(r".+/resolve/.+/", record["model"])
    clean = browser.evaluate(f"new URL({json.dumps(record['model'])}).href")
    assert clean == base
    assert record["model_lib"] == f"{base}lib/model.wasm"
    assert record["model_id"] == "smollm2-135m-instruct-q4f32_1"
    assert record["buffer_size_required_bytes"] == 2**27
    assert record["integrity"]["model_lib"].startswith("sha256-")
    other = loader(
        browser, host, "return modelRecord(location.href).then((r) => r.model);", "needy"
    )
    assert other.endswith("resolve/main/../../")


def test_prefetch_resumes_within_a_file(browser: Browser, host: Host) -> None:
    path = f"/both/{GPU_TARGET}/params_shard_1.bin"
    browser.open(f"{host.url}/both/{GPU_TARGET}/")
    host.cut[path] = 100_000
    result = loader(browser, host, "return { ...await load(), last: told.at(-1) };")
    total = result["value"]["totalBytes"]
    assert result["value"]["storedBytes"] == 0
    assert result["last"]["loadedBytes"] == result["last"]["totalBytes"] == total
    assert total > SHARDS * SHARD_BYTES
    assert asked_shards(host) == [(0, ""), (1, ""), (1, "bytes=100000-"), (2, "")]
    assert "CONTENT_LENGTH_MISMATCH" in browser.problems.pop()  # Chromium's word for the cut
    again = loader(browser, host, "return load();")
    assert again["value"] == {"totalBytes": total, "storedBytes": total}
    assert asked_shards(host) == []


def test_prefetch_goes_on_in_another_session(browser: Browser, host: Host) -> None:
    path = f"/both/{GPU_TARGET}/params_shard_1.bin"
    browser.open(f"{host.url}/both/{GPU_TARGET}/")
    host.cut[path] = 120_000
    stopped = loader(
        browser,
        host,
        """
        const controller = new AbortController();
        const loading = load({ signal: controller.signal });
        const bytes = () => told.at(-1)?.loadedBytes ?? 0;
        while (bytes() < 720000) await new Promise((r) => setTimeout(r, 10));
        controller.abort();
        return loading;""",
    )
    assert stopped["error"] == "AbortError"
    # The break may be noticed before the stop, or not.
    browser.problems[:] = [text for text in browser.problems if "LENGTH_MISMATCH" not in text]
    assert loader(browser, host, "return load();")["value"]["totalBytes"] > 0
    assert asked_shards(host) == [(1, "bytes=120000-")]
    # What was kept of the file is gone once it is whole.
    rests = browser.evaluate(
        "caches.open('mlcb-cache').then((c) => c.keys()).then((k) => k.map((r) => r.url))"
    )
    assert [url for url in rests if "manifest-" not in url] == []


def test_prefetch_trusts_nothing_that_it_did_not_check(browser: Browser, host: Host) -> None:
    """Entries of the client itself are hashed; those that are wrong are fetched again."""
    result = loader(
        browser,
        host,
        """
        await load();
        const cache = await caches.open("webllm/model");
        const url = (n) => new URL(`params_shard_${n}.bin`, location.href).href;
        const good = await (await cache.match(url(0))).arrayBuffer();
        await cache.put(url(0), new Response(good));
        await cache.put(url(1), new Response(good));
        await cache.put(url(2), new Response("x", { headers: { "x-mlcb-sha256": "0" } }));
        told.length = 0;
        const again = await load();
        return again;""",
    )
    assert result["value"]["storedBytes"] < result["value"]["totalBytes"]
    assert asked_shards(host) == [(0, ""), (1, ""), (1, ""), (2, ""), (2, "")]


STORED = """
const stored = async () => {
  const urls = [];
  for (const name of await caches.keys())
    for (const { url } of await (await caches.open(name)).keys()) urls.push(url);
  return urls.filter((url) => !url.endsWith("/of-another"));
};
const other = new URL("of-another", location.href).href; // below the bundle, and not of it
await (await caches.open("webllm/model")).put(other, new Response("x"));
"""


def test_what_was_stored_is_removed(browser: Browser, host: Host) -> None:
    """All of it and nothing else: files, what is left of a broken download, the manifest."""
    browser.open(f"{host.url}/both/{GPU_TARGET}/")
    host.cut[f"/both/{GPU_TARGET}/params_shard_1.bin"] = 120_000
    result = loader(
        browser,
        host,
        STORED
        + """
        const controller = new AbortController();
        const loading = load({ signal: controller.signal });
        const bytes = () => told.at(-1)?.loadedBytes ?? 0;
        while (bytes() < 720000) await new Promise((r) => setTimeout(r, 10));
        controller.abort();
        await loading;
        const before = await stored();
        await removeStored(location.href);
        const after = await stored();
        await load();
        await caches.delete("mlcb-cache"); // as Engine.clearCache() does
        await removeStored(location.href);
        const kept = await caches.match(other) !== undefined;
        return { before, after, last: await stored(), kept };
        """,
    )
    browser.problems[:] = [text for text in browser.problems if "LENGTH_MISMATCH" not in text]
    assert len([url for url in result["before"] if "mlcb.invalid" in url]) == 2
    assert (result["after"], result["last"], result["kept"]) == ([], [], True)


def test_files_of_a_former_version_go(browser: Browser, host: Host) -> None:
    result = loader(
        browser,
        host,
        STORED
        + """
        await load();
        // As if there had been two versions before: one loaded, and one begun later.
        const cache = await caches.open("mlcb-cache");
        const [note] = (await cache.keys()).filter(({ url }) => url.includes("/manifest-"));
        const { location: base, manifest } = await (await cache.match(note)).json();
        const with_ = (path) => {
          const old = JSON.parse(manifest);
          old.files.push({ path, size: 1, sha256: "0".repeat(64) });
          return JSON.stringify(old);
        };
        const text = { location: base, manifest: with_("new.bin"), former: with_("old.bin") };
        await cache.put(note, new Response(JSON.stringify(text)));
        const model = await caches.open("webllm/model");
        for (const name of ["new.bin", "old.bin"])
          await model.put(new URL(name, base).href, new Response("x"));
        const { value } = await load();
        return { value, urls: await stored() };""",
    )
    assert result["value"]["storedBytes"] == result["value"]["totalBytes"]
    assert not [url for url in result["urls"] if url.endswith(("new.bin", "old.bin"))]
    assert len([url for url in result["urls"] if "params_shard" in url]) == SHARDS


def test_prefetch_refuses_what_is_damaged(browser: Browser, host: Host) -> None:
    result = loader(browser, host, "return { ...await load(), told };", "damaged")
    assert result["error"] == "bundle_damaged"
    assert result["text"].startswith("params_shard_1.bin of the bundle is damaged: its sha256 is ")
    # It was fetched once more past the browser's own cache, and that was told.
    assert asked_shards(host).count((1, "")) == 2
    assert any("is fetched again" in item.get("warning", "") for item in result["told"])
    missing = loader(
        browser,
        host,
        "return prefetch(new URL('nowhere/', location.href)).catch((e) => e.code);",
    )
    assert missing == "bundle_not_found"
    assert "404" in browser.problems.pop()


def test_types_of_the_loader_name_what_it_exports() -> None:
    exported = set(re.findall(r"^export async function (\w+)", _client(".js"), re.MULTILINE))
    assert exported == set(re.findall(r"^export function (\w+)", _client(".d.ts"), re.MULTILINE))


def _client(suffix: str) -> str:
    return (PAGE_FILES / f"client{suffix}").read_text()
