"""A Hugging Face model folder: config.json, safetensors shards, tokenizer files."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mlcbuild.errors import InternalError, SourceError
from mlcbuild.sources.checkpoint import (
    Checkpoint,
    CheckpointStats,
    TensorInfo,
    read_only,
)
from mlcbuild.sources.files import find_license_files
from mlcbuild.sources.sentencepiece import model_to_tokenizer_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_HEADER = 100 * 1024 * 1024  # bytes; the limit of the safetensors library too

# safetensors type -> (our name, numpy type, bits)
_DTYPES: dict[str, tuple[str, Any]] = {
    "F32": ("float32", np.dtype("<f4")),
    "F16": ("float16", np.dtype("<f2")),
    "BF16": ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
}
_KNOWN_BITS = {"F64": 64, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16}
_KNOWN_BITS |= {"I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
_KNOWN_BITS |= {name: 8 * dtype.itemsize for name, (_, dtype) in _DTYPES.items()}

# Tensor names that only pre-quantized checkpoints have.
_QUANTIZED_SUFFIXES = (
    ".qweight",
    ".qzeros",
    ".g_idx",
    ".weight_scale_inv",
    ".weight_scale",
    ".weight_packed",
    ".weight_format",
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.SCB",
)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor's header entry: ``begin`` is its absolute offset in ``path``."""

    path: Path
    dtype: str  # safetensors name
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class SafetensorsCheckpoint(Checkpoint):
    """See ``open_checkpoint``. Tensors are views of mapped files; nothing is ever written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = _read_json_object(folder / "config.json")
        quantized = self._config.get("quantization_config")
        if quantized is not None:
            raise _prequantized(_method_of(quantized), str(folder / "config.json"))
        self._stored = _read_headers(folder)
        self._tensors: dict[str, TensorInfo] = {}
        for name, stored in self._stored.items():
            if stored.dtype not in _DTYPES:
                if stored.dtype.startswith(("F8", "F4")):
                    raise _prequantized(stored.dtype, f"{stored.path}: {name}")
                # Buffers of integers are listed so that mapping can name them.
                dtype = stored.dtype.lower()
            else:
                dtype = _DTYPES[stored.dtype][0]
            file = stored.path.name
            self._tensors[name] = TensorInfo(name, stored.shape, dtype, stored.nbytes, file)

    @property
    def location(self) -> str:
        """Where it lies."""
        return str(self._folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """The model as a config.json."""
        return self._config

    @property
    def config_location(self) -> str:
        """The file that states it."""
        return str(self._folder / "config.json")

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its Hugging Face name."""
        return self._tensors

    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor; see ``Checkpoint.read``."""
        stored = self._stored.get(name)
        if stored is None:
            raise InternalError(f"there is no tensor {name} in {self._folder}")
        if stored.dtype not in _DTYPES:
            raise SourceError(
                f"tensor {name} has type {stored.dtype}, which is not a weight type",
                where=str(stored.path),
                why=f"types that can be read: {', '.join(_DTYPES)}",
            )
        dtype = _DTYPES[stored.dtype][1]
        if stored.nbytes == 0:
            return np.empty(stored.shape, dtype)
        raw = np.memmap(stored.path, np.uint8, "r", stored.begin, (stored.nbytes,))
        return read_only(raw.view(np.ndarray).view(dtype).reshape(stored.shape))

    def tokenizer_json(self) -> bytes | None:
        """The tokenizer, or None; a SentencePiece model is converted."""
        path = self._folder / "tokenizer.json"
        if path.exists():
            return path.read_bytes()
        model = self._folder / "tokenizer.model"
        if not model.exists():
            return None
        return model_to_tokenizer_json(model.read_bytes(), str(model), self.tokenizer_config)

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """With the chat template, if there is one."""
        config = _read_json_object(self._folder / "tokenizer_config.json", optional=True)
        template = self._folder / "chat_template.jinja"
        if template.exists():
            config = {**config, "chat_template": template.read_text(encoding="utf-8")}
        return config

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """Generation defaults; {} if none are stated."""
        return _read_json_object(self._folder / "generation_config.json", optional=True)

    @cached_property
    def license_files(self) -> tuple[Path, ...]:
        """Licence texts beside the weights."""
        return find_license_files(self._folder)

    @cached_property
    def license_id(self) -> str | None:
        """The licence's identifier, if stated."""
        return read_front_matter_license(self._folder / "README.md")

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the weights."""
        return ()

    @cached_property
    def stats(self) -> CheckpointStats:
        """Sizes."""
        kinds = Counter(stored.dtype for stored in self._stored.values())
        return CheckpointStats(
            tensors=len(self._stored),
            parameters=sum(math.prod(stored.shape) for stored in self._stored.values()),
            stored_bytes=sum(stored.nbytes for stored in self._stored.values()),
            stored_as=tuple(kind for kind, _ in kinds.most_common()),
        )


def read_front_matter_license(readme: Path) -> str | None:
    """The ``license:`` (or, for "other", ``license_name:``) of a model card's YAML front matter."""
    try:
        lines = readme.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    if not lines or lines[0].strip() != "---":
        return None
    found: dict[str, str] = {}
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, colon, value = line.partition(":")
        if colon and key in ("license", "license_name") and value.strip():
            found[key] = value.split(" #")[0].strip().strip("'\"")
    license_id = found.get("license")
    if license_id == "other":
        return found.get("license_name", license_id)
    return license_id


def _read_headers(folder: Path) -> dict[str, _Stored]:
    """Headers of all shards; one error lists everything that is missing or does not fit."""
    if (folder / _INDEX).exists():
        return _read_sharded(folder, folder / _INDEX)
    if (folder / _SINGLE).exists():
        return _read_header(folder / _SINGLE)
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        raise SourceError(
            f"the folder has {', '.join(others)} but neither {_SINGLE} nor {_INDEX}",
            where=str(folder),
            hint="copy the index file of the model too",
        )
    pickled = sorted(file.name for file in folder.glob("*.bin"))
    raise SourceError(
        "the folder has no safetensors weights",
        where=str(folder),
        why=f"it has {', '.join(pickled)}, which can run code when it is read" if pickled else None,
        hint="convert them to safetensors" if pickled else "copy the *.safetensors files here",
    )


def _read_sharded(folder: Path, index_path: Path) -> dict[str, _Stored]:
    index = _read_json_object(index_path)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in weight_map.values()
    ):
        raise SourceError("the index has no usable weight_map", where=str(index_path))
    files = sorted(set(weight_map.values()))
    missing = [file for file in files if not (folder / file).exists()]
    if missing:
        raise SourceError(
            f"{len(missing)} of {len(files)} shards are missing: {', '.join(missing)}",
            where=str(folder),
            why="the download or copy was not complete",
            hint="fetch the missing files; nothing was built",
        )
    found: dict[str, _Stored] = {}
    problems: list[str] = []
    for file in files:
        for name, stored in _read_header(folder / file).items():
            if name not in weight_map:
                problems.append(f"{file} holds {name}, which the index does not list")
            elif weight_map[name] != file:
                problems.append(f"{file} holds {name}, which the index puts in {weight_map[name]}")
            else:
                found[name] = stored
    problems.extend(
        f"{file} lacks {name}, which the index puts there"
        for name, file in weight_map.items()
        if name not in found
    )
    if problems:
        raise SourceError(
            "the shards do not fit the index:\n  " + "\n  ".join(problems),
            where=str(index_path),
            hint="fetch index and shards of one revision",
        )
    return found


def _read_header(path: Path) -> dict[str, _Stored]:
    """The tensors of one file: 8 bytes of header length, JSON, then the data to the file's end."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= _MAX_HEADER:
            raise _bad_header(path, f"its header would have {length:,} bytes")
        raw = file.read(length)
    if len(raw) < length:
        raise _truncated(path, size, 8 + length, "at least ")
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise _bad_header(path, f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _bad_header(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    _refuse_quantized_names(header, path)
    tensors = {name: _read_entry(name, entry, 8 + length, path) for name, entry in header.items()}
    end = 8 + length
    for name, stored in sorted(tensors.items(), key=lambda item: item[1].begin):
        if stored.begin != end:
            raise _bad_header(path, f"tensor {name} does not start where the one before it ends")
        end = stored.begin + stored.nbytes
    if size < end:
        raise _truncated(path, size, end)
    if size > end:
        raise _bad_header(path, f"{size - end:,} bytes follow the last tensor")
    return tensors


def _read_entry(name: str, entry: Any, base: int, path: Path) -> _Stored:
    try:
        dtype = str(entry["dtype"])
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise _bad_header(path, f"the entry of tensor {name} is malformed: {error!r}") from error
    bits = _KNOWN_BITS.get(dtype)
    if bits is None:
        raise SourceError(
            f"tensor {name} has the unsupported type {dtype}",
            where=str(path),
            why=f"types that can be read: {', '.join(_DTYPES)}",
        )
    if min(shape, default=0) < 0 or math.prod(shape) * bits // 8 != end - begin or begin < 0:
        raise _bad_header(path, f"shape and size of tensor {name} disagree")
    return _Stored(path, dtype, shape, base + begin, end - begin)


def _refuse_quantized_names(header: Mapping[str, Any], path: Path) -> None:
    for name in header:
        if name.endswith(_QUANTIZED_SUFFIXES):
            raise _prequantized(name.rpartition(".")[2], f"{path}: {name}")


def _prequantized(method: str, where: str) -> SourceError:
    return SourceError(
        f"the checkpoint is already quantized ({method})",
        where=where,
        why="quantizing its weights again would lose quality, and importing them is not supported",
        hint="use the model's float16 or bfloat16 checkpoint",
    )


def _method_of(quantized: Any) -> str:
    if isinstance(quantized, Mapping):
        return str(quantized.get("quant_method", "quantization_config"))
    return str(quantized)


def _truncated(path: Path, size: int, expected: int, qualifier: str = "") -> SourceError:
    return SourceError(
        f"the file is truncated: it has {size:,} bytes, {qualifier}{expected:,} were expected",
        where=str(path),
        why="the download or copy was not complete",
        hint="fetch the file again",
    )


def _bad_header(path: Path, why: str) -> SourceError:
    return SourceError(
        "the file is not a valid safetensors file",
        where=str(path),
        why=why,
        hint="fetch the file again; a small text file here is often a Git LFS pointer",
    )


def _read_json_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise SourceError(f"{path.name} is missing", where=str(path.parent)) from None
    except ValueError as error:
        raise SourceError("the file is not JSON", where=str(path), why=str(error)) from error
    if not isinstance(value, dict):
        raise SourceError("the file holds no JSON object", where=str(path))
    return value
