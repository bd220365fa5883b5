"""Which files of a model's folder or repository a build needs."""

from __future__ import annotations

from pathlib import Path

LICENSE_PREFIXES = ("license", "licence", "notice", "use_policy", "copying")

_NAMES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",  # SentencePiece: read where tokenizer.json is missing
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "README.md",
    }
)


def is_license(name: str) -> bool:
    """Whether a file's name says that it holds a licence or a notice."""
    return name.lower().startswith(LICENSE_PREFIXES)


def is_wanted(name: str) -> bool:
    """Whether a build needs this file (top level only, no other formats of the weights)."""
    if "/" in name:
        return False
    if name in _NAMES or is_license(name):
        return True
    return name.startswith("model") and name.endswith(".safetensors")


def wanted_patterns() -> list[str]:
    """Shell patterns that match at least the files that ``is_wanted`` accepts."""
    licenses = [f"{case}*" for name in LICENSE_PREFIXES for case in (name, name.upper())]
    return [*sorted(_NAMES), "model*.safetensors", *licenses]


def find_license_files(folder: Path) -> tuple[Path, ...]:
    """The licence texts in a folder, sorted by name."""
    found = (file for file in folder.iterdir() if file.is_file() and is_license(file.name))
    return tuple(sorted(found))
