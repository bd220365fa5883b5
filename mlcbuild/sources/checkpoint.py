"""A checkpoint as a read-only view, streamed tensor by tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlcbuild.errors import SourceError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a checkpoint's header says of one tensor; ``nbytes`` as stored in ``file``."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as read: "float32", "float16", "bfloat16", ...
    nbytes: int
    file: str


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """Sizes of a checkpoint."""

    tensors: int
    parameters: int
    stored_bytes: int
    stored_as: tuple[str, ...]  # formats of the stored tensors, most frequent first


class Checkpoint(ABC):
    """One model's weights and the files that belong to them, in the Hugging Face naming."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where it lies, for messages."""

    @property
    @abstractmethod
    def config(self) -> Mapping[str, Any]:
        """The content of config.json (or its equivalent made from GGUF metadata)."""

    @property
    @abstractmethod
    def config_location(self) -> str:
        """The file that states the config, for messages."""

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every stored tensor by its Hugging Face name; nothing is read for it."""

    @abstractmethod
    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor, read-only where it is a view of the mapped file."""

    @abstractmethod
    def tokenizer_json(self) -> bytes | None:
        """The tokenizer as tokenizer.json, or None if the checkpoint has none."""

    @property
    @abstractmethod
    def tokenizer_config(self) -> Mapping[str, Any]:
        """tokenizer_config.json, the chat template in ``chat_template``; {} if there is none."""

    @property
    @abstractmethod
    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json; {} if there is none."""

    @property
    @abstractmethod
    def license_files(self) -> tuple[Path, ...]:
        """The licence texts that came with the checkpoint, sorted by name."""

    @property
    @abstractmethod
    def license_id(self) -> str | None:
        """The licence's identifier (such as ``apache-2.0``) as the checkpoint states it."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What whoever reads quality figures should know about these weights."""

    @property
    @abstractmethod
    def stats(self) -> CheckpointStats:
        """Sizes."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a Hugging Face folder, a .gguf file, or a folder that holds one .gguf file.

    Headers are checked at once (missing shards, truncated files, tensors that the index does not
    list); weights are read when asked for. Raises SourceError.
    """
    from mlcbuild.sources.gguf_file import GgufCheckpoint
    from mlcbuild.sources.safetensors_dir import SafetensorsCheckpoint

    if path.is_dir():
        if (path / "config.json").exists():
            return SafetensorsCheckpoint(path)
        gguf_files = sorted(path.glob("*.gguf"))
        if len(gguf_files) == 1:
            return GgufCheckpoint(gguf_files[0])
        if len(gguf_files) > 1:
            names = ", ".join(file.name for file in gguf_files)
            raise SourceError(
                f"the folder holds {len(gguf_files)} GGUF files: {names}",
                where=str(path),
                hint="name one of them as the model's source",
            )
        raise SourceError(
            "the folder holds neither a config.json nor a GGUF file",
            where=str(path),
            hint="a Hugging Face model folder has config.json and *.safetensors",
        )
    if not path.exists():
        raise SourceError("there is no such file or folder", where=str(path))
    if path.suffix == ".gguf":
        return GgufCheckpoint(path)
    raise SourceError(
        "the file is not a GGUF file",
        where=str(path),
        hint="name the folder of a Hugging Face model, or a .gguf file",
    )


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array with writing switched off."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view
