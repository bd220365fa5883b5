"""bundle.json: its schema, its versions, reading and writing it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mlcbuild.core import canonical_json
from mlcbuild.errors import UsageError, VerificationError

MANIFEST_NAME = "bundle.json"
ATTEST_DIR = "attest"

PLAN_KIND: Literal["plan"] = "plan"

BUNDLE_VERSION = 1
ABI_VERSION = 2
PLAN_VERSION = 1
PARAMS_VERSION = 1
CHAT_VERSION = 2
GOLDEN_VERSION = 1

_VERSIONS = {
    "bundle_version": BUNDLE_VERSION,
    "abi_version": ABI_VERSION,
    "plan_version": PLAN_VERSION,
    "params_version": PARAMS_VERSION,
}


def path_problem(path: str) -> str | None:
    """Why ``path`` may not stand in a manifest or an archive; None if it may.

    Allowed: a relative POSIX path without ``.``, ``..``, empty parts, backslashes, drive letters
    or NUL, so that joining it to a folder never leaves that folder.
    """
    if not path:
        return "it is empty"
    if "\\" in path or "\0" in path:
        return "it holds a backslash or a NUL"
    if path.startswith("/") or path[1:2] == ":":
        return "it is absolute"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "it has an empty, '.' or '..' part"
    return None


def _checked_path(path: str) -> str:
    problem = path_problem(path)
    if problem is not None:
        raise ValueError(f"path {path!r} is refused: {problem}")
    return path


BundlePath = Annotated[str, AfterValidator(_checked_path)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Record(BaseModel):
    """A part of a manifest: nothing in it is unknown, and nothing of it changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(Record):
    """One payload file: POSIX path below the bundle, bytes, sha256 (hex)."""

    path: BundlePath
    size: Count
    sha256: Sha256


class ModelInfo(Record):
    """Where the weights came from.

    ``vocab_size``: rows of the embedding; ``tokenizer_vocab_size``: ids that the tokenizer can
    produce (not larger).
    """

    source: str
    revision: str | None = None
    license: str | None = None
    vocab_size: Positive
    tokenizer_vocab_size: Positive
    parameters: Count
    notes: list[str] = []


class LimitsInfo(Record):
    """Bounds in tokens and sequences; see ``mlcbuild.spec.limits.Limits``.

    ``sliding_window_size``: how many positions a token attends to, besides the first
    ``attention_sink_size`` ones; 0: to all.
    """

    context_window_size: Positive
    prefill_chunk_size: Positive
    max_batch_size: Positive
    page_size: Positive
    kv_dtype: str
    sliding_window_size: Count = 0
    attention_sink_size: Count = 0


class VariantInfo(Record):
    """One kernel library with its plan; ``capability`` lists the CPU flags that it needs.

    ``schedules`` counts kernels by where their schedule is from: a tuning ``record``, the
    template's ``default``, or a ``generic`` one because no template fits.
    """

    name: str
    activations: Literal["int8", "float"]
    capability: list[str]
    kernels: BundlePath
    plan: BundlePath
    schedules: dict[str, Count] = {}


class RuntimeInfo(Record):
    """Where the runtime's own files lie."""

    library: BundlePath
    executable: BundlePath | None
    header: BundlePath


class MemoryPlan(Record):
    """Bytes.

    ``kv_bytes``: the KV cache when every sequence fills its context, or what its sliding window
    keeps of it; ``arena_bytes``: scratch of the most demanding variant; ``total_bytes``: weights +
    kv + arena.
    """

    weights_bytes: Count
    kv_bytes_per_token: Count
    kv_bytes: Count
    arena_bytes: Count
    total_bytes: Count


class ManifestBase(Record, ABC):
    """What bundle.json says of every kind of bundle.

    ``kind``: "plan" for what our own runtime runs; others have a module of their own.
    """

    bundle_version: Literal[1] = 1
    kind: str
    name: str
    target: str
    architecture: str
    scheme: dict[str, Any]
    model: ModelInfo
    limits: LimitsInfo
    tree_digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    files: list[FileEntry]

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal content means equal bytes."""
        return canonical_json.encode(self.model_dump(mode="json"))

    @property
    def payload_bytes(self) -> int:
        """Size of all listed files together, in bytes."""
        return sum(entry.size for entry in self.files)

    def entry(self, path: str) -> FileEntry | None:
        """The entry of ``path``, or None."""
        return next((entry for entry in self.files if entry.path == path), None)

    @abstractmethod
    def referenced(self) -> list[str]:
        """Files that other fields name."""


class BundleManifest(ManifestBase):
    """The bundle.json of a bundle that our runtime runs; the fields are in docs/formats.md."""

    kind: Literal["plan"] = PLAN_KIND
    abi_version: Literal[2] = 2
    plan_version: Literal[1] = 1
    params_version: Literal[1] = 1
    variants: Annotated[list[VariantInfo], Field(min_length=1)]
    runtime: RuntimeInfo
    params: BundlePath
    tokenizer: BundlePath
    chat: BundlePath
    golden: BundlePath | None
    memory: MemoryPlan

    @property
    def is_wasm(self) -> bool:
        """Whether the runtime is a WebAssembly module, for node and browsers."""
        return self.runtime.library.endswith(".wasm")

    def referenced(self) -> list[str]:
        """Files that other fields name."""
        runtime = self.runtime
        paths = [runtime.library, runtime.header, self.params, self.tokenizer, self.chat]
        for optional in (runtime.executable, self.golden):
            if optional is not None:
                paths.append(optional)
        for variant in self.variants:
            paths += [variant.kernels, variant.plan]
        return paths


Manifest = TypeVar("Manifest", bound=ManifestBase)


def tree_digest(files: Sequence[FileEntry]) -> str:
    """``sha256:`` + sha256 of the canonical JSON of the sorted file list (docs/formats.md)."""
    listed = [entry.model_dump() for entry in sorted(files, key=lambda entry: entry.path)]
    return "sha256:" + canonical_json.digest_of(listed)


def parse_manifest(data: bytes, where: str) -> BundleManifest:
    """Checks and decodes the bundle.json of a bundle that our runtime runs.

    Versions come first, because a newer file may differ in anything else; both versions are named.
    Raises ``VerificationError`` listing every problem, ``UsageError`` for another kind of bundle.
    """
    raw = decode_manifest(data, where)
    if kind_of(raw) != PLAN_KIND:
        raise UsageError(
            "the bundle is not for mlcbuild's own runtime",
            where=where,
            why=f"it is made for {raw.get('target')}",
            hint="try it in a browser: mlcbuild serve-web BUNDLE",
        )
    return check_manifest(BundleManifest, raw, where)


def decode_manifest(data: bytes, where: str) -> dict[str, Any]:
    """The object in the bytes of a bundle.json; ``VerificationError`` if there is none."""
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise VerificationError(
            "the bundle's manifest is not JSON",
            where=where,
            why=str(error),
            hint="fetch or build the bundle again",
        ) from None
    if not isinstance(raw, dict):
        raise VerificationError("the bundle's manifest is not a JSON object", where=where)
    return raw


def kind_of(raw: Mapping[str, Any]) -> object:
    """The kind of bundle that a decoded manifest describes; one without the field is a plan's."""
    return raw.get("kind", PLAN_KIND)


def check_manifest(form: type[Manifest], raw: Mapping[str, Any], where: str) -> Manifest:
    """``raw`` as a manifest of the given form; ``VerificationError`` listing every problem."""
    check_versions(form, raw, where)
    try:
        manifest = form.model_validate(raw)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'bundle.json'}: {item['msg']}"
            for item in error.errors()
        ]
        raise VerificationError(
            "the bundle's manifest does not fit its schema",
            where=where,
            why="; ".join(problems),
            hint="fetch or build the bundle again",
        ) from None
    _check_consistency(manifest, where)
    return manifest


def check_versions(form: type[ManifestBase], raw: Mapping[str, Any], where: str) -> None:
    """Refuses a manifest written for other format versions, naming both sides."""
    wrong = [
        f"{key} is {raw.get(key, 'missing')}, this mlcbuild reads {known}"
        for key, known in _VERSIONS.items()
        if key in form.model_fields and (type(raw.get(key)) is not int or raw[key] != known)
    ]
    if wrong:
        raise VerificationError(
            "the bundle was written for other format versions",
            where=where,
            why="; ".join(wrong),
            hint="use the mlcbuild that made the bundle, or build it again with this one",
        )


def _check_consistency(manifest: ManifestBase, where: str) -> None:
    paths = [entry.path for entry in manifest.files]
    problems: list[str] = []
    if paths != sorted(set(paths)):
        problems.append("files is not sorted by path, or names a path twice")
    digest = tree_digest(manifest.files)
    if digest != manifest.tree_digest:
        problems.append(f"tree_digest is {manifest.tree_digest}, the file list gives {digest}")
    known = set(paths)
    for path in manifest.referenced():
        if path not in known:
            problems.append(f"{path} is referred to but not listed in files")
    if problems:
        raise VerificationError(
            "the bundle's manifest contradicts itself",
            where=where,
            why="; ".join(problems),
            hint="the file was edited or damaged: fetch or build the bundle again",
        )


def read_manifest(bundle: Path) -> BundleManifest:
    """The manifest of the bundle in folder ``bundle``, which our runtime runs.

    Raises ``VerificationError`` if there is none, or if it is malformed or of another version,
    ``UsageError`` if the bundle is of another kind.
    """
    return parse_manifest(manifest_bytes(bundle), str(bundle / MANIFEST_NAME))


def manifest_bytes(bundle: Path) -> bytes:
    """The bytes of a bundle's bundle.json; ``VerificationError`` if the folder is no bundle."""
    file = bundle / MANIFEST_NAME
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise VerificationError(
            "this is not a bundle",
            where=str(bundle),
            why=_why_not(bundle),
            hint="give the folder that `mlcbuild make` printed (the one with bundle.json in it)",
        ) from None
    except OSError as error:
        raise VerificationError(
            "the bundle's manifest cannot be read", where=str(file), why=error.strerror
        ) from None


def is_attestation(path: str) -> bool:
    """Whether a file of a bundle is outside the payload (below ``attest/``)."""
    return PurePosixPath(path).parts[:1] == (ATTEST_DIR,)


def _why_not(bundle: Path) -> str:
    if bundle.is_dir():
        return f"it holds no {MANIFEST_NAME}"
    return "it is a file" if bundle.exists() else "there is no such folder"
