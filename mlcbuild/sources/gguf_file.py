"""A GGUF file as a checkpoint: Hugging Face names and config, weights dequantized one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from mlcbuild.sources.gguf_tokenizer import build_tokenizer_config, build_tokenizer_json

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

_ARCHITECTURES = {"llama": "llama"}  # GGUF's name -> model_type

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"

_FLOAT_TYPES = ("F32", "F16", "BF16", "F64")

# Keys below "llama." that are read, or that do not change the computation.
_KNOWN_KEYS = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "vocab_size",
    }
)


class GgufCheckpoint(Checkpoint):
    """See ``open_checkpoint``. ``read`` returns float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _open(path)
        self._metadata = {key: field.contents() for key, field in self._reader.fields.items()}
        self._arch = self._architecture()
        self._check_split()
        self._rope_factors: tuple[float, ...] = ()
        self._sources = self._map_names()
        self._config = self._build_config()
        self._heads = {
            "self_attn.q_proj": self._config["num_attention_heads"],
            "self_attn.k_proj": self._config["num_key_value_heads"],
        }
        self._tensors = {
            name: TensorInfo(
                name=name,
                shape=_shape(tensor),
                dtype="float32",
                nbytes=int(tensor.n_bytes),
                file=path.name,
            )
            for name, tensor in self._sources.items()
        }

    @property
    def location(self) -> str:
        """Where it lies."""
        return str(self._path)

    @property
    def config(self) -> Mapping[str, Any]:
        """The model as a config.json."""
        return self._config

    @property
    def config_location(self) -> str:
        """The file that states it."""
        return str(self._path)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its Hugging Face name."""
        return self._tensors

    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor; see ``Checkpoint.read``."""
        tensor = self._sources.get(name)
        if tensor is None:
            raise InternalError(f"there is no tensor {name} in {self._path}")
        values = self._dequantize(tensor)
        for part, heads in self._heads.items():
            if part in name:
                values = unpermute_rope(values, heads)
        return read_only(np.ascontiguousarray(values))

    def tokenizer_json(self) -> bytes | None:
        """The tokenizer, or None."""
        return build_tokenizer_json(self._metadata, str(self._path))

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """With the chat template, if there is one."""
        return build_tokenizer_config(self._metadata)

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """Generation defaults; {} if none are stated."""
        return {}

    @cached_property
    def license_files(self) -> tuple[Path, ...]:
        """Licence texts beside the weights."""
        return find_license_files(self._path.parent)

    @property
    def license_id(self) -> str | None:
        """The licence's identifier, if stated."""
        value = self._metadata.get("general.license")
        return None if value is None else str(value)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the weights."""
        stored = [kind for kind in self.stats.stored_as if kind not in _FLOAT_TYPES]
        if not stored:
            return ()
        kinds = ", ".join(f"{kind} ({_bits(kind)})" for kind in stored)
        note = (
            f"the weights were stored as {kinds} in the GGUF source;"
            " quality figures compare with these, not with the original model"
        )
        return (note,)

    @cached_property
    def stats(self) -> CheckpointStats:
        """Sizes."""
        parameters: Counter[str] = Counter()
        for tensor in self._sources.values():
            parameters[tensor.tensor_type.name] += int(tensor.n_elements)
        return CheckpointStats(
            tensors=len(self._sources),
            parameters=sum(parameters.values()),
            stored_bytes=sum(int(tensor.n_bytes) for tensor in self._sources.values()),
            stored_as=tuple(kind for kind, _ in parameters.most_common()),
        )

    def _architecture(self) -> str:
        name = str(self._metadata.get("general.architecture"))
        if name not in _ARCHITECTURES:
            raise SourceError(
                f"GGUF files of architecture {name!r} are not supported",
                where=str(self._path),
                why=f"known: {', '.join(_ARCHITECTURES)}",
                hint="use the model's Hugging Face folder",
            )
        return name

    def _check_split(self) -> None:
        count = self._metadata.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            raise SourceError(
                f"the file is one of {count} parts of a model",
                where=str(self._path),
                hint="merge the parts (llama-gguf-split --merge), then name the merged file",
            )

    def _map_names(self) -> dict[str, ReaderTensor]:
        """Hugging Face name -> stored tensor; names that are not known stay as they are."""
        mapped: dict[str, ReaderTensor] = {}
        for tensor in self._reader.tensors:
            if tensor.name == _ROPE_FACTORS:
                factors = self._dequantize(tensor).reshape(-1)
                self._rope_factors = tuple(float(value) for value in factors)
                continue
            mapped[_hf_name(tensor.name)] = tensor
        return mapped

    def _build_config(self) -> dict[str, Any]:
        self._check_keys()
        heads = self._integer("attention.head_count")
        hidden = self._integer("embedding_length")
        head_dim = self._integer("attention.key_length", hidden // heads)
        if self._integer("attention.value_length", head_dim) != head_dim:
            raise self._unsupported("values of another size than keys")
        if self._integer("rope.dimension_count", head_dim) != head_dim:
            raise self._unsupported("rope over a part of each head")
        epsilon = self._required("attention.layer_norm_rms_epsilon")
        embedding = self._sources.get("model.embed_tokens.weight")
        vocab = len(self._metadata.get("tokenizer.ggml.tokens", ()))
        if embedding is not None:
            vocab = _shape(embedding)[0]
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": _ARCHITECTURES[self._arch],
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": self._integer("feed_forward_length"),
            "num_hidden_layers": self._integer("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._integer("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self._integer("context_length"),
            "rms_norm_eps": _shortest(epsilon),
            "tie_word_embeddings": "lm_head.weight" not in self._sources,
            "attention_bias": any(name.endswith("q_proj.bias") for name in self._sources),
            "mlp_bias": any(name.endswith("up_proj.bias") for name in self._sources),
            "rope_parameters": self._rope(),
            "bos_token_id": self._metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._metadata.get("tokenizer.ggml.eos_token_id"),
        }
        return config

    def _rope(self) -> dict[str, Any]:
        # Files without a base mean 10000, as llama.cpp reads them.
        theta = _shortest(self._key("rope.freq_base") or 10000.0)
        kind = self._key("rope.scaling.type")
        if kind not in (None, "none", "linear"):
            raise self._unsupported(f"rope scaling of type {kind!r}")
        if self._rope_factors:
            if kind == "linear":
                raise self._unsupported("linear rope scaling together with frequency factors")
            return {
                "rope_type": "frequency_factors",
                "rope_theta": theta,
                "frequency_factors": [_shortest(value) for value in self._rope_factors],
            }
        if kind == "linear":
            factor = _shortest(self._required("rope.scaling.factor"))
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        return {"rope_type": "default", "rope_theta": theta}

    def _check_keys(self) -> None:
        prefix = f"{self._arch}."
        unknown = [
            key
            for key in self._metadata
            if key.startswith(prefix) and key.removeprefix(prefix) not in _KNOWN_KEYS
        ]
        # A dense model may state that it has no experts.
        unknown = [key for key in unknown if self._metadata[key] != 0]
        if unknown:
            raise SourceError(
                f"the GGUF file has unknown model keys: {', '.join(sorted(unknown))}",
                where=str(self._path),
                why="ignoring a key that changes the computation would give wrong results",
                hint="use the model's Hugging Face folder",
            )

    def _key(self, key: str) -> Any:
        return self._metadata.get(f"{self._arch}.{key}")

    def _required(self, key: str) -> Any:
        value = self._key(key)
        if value is None:
            raise SourceError(f"the GGUF file lacks {self._arch}.{key}", where=str(self._path))
        return value

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self._key(key) if default is not None else self._required(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or value < 1:
            raise self._unsupported(f"{self._arch}.{key} = {value!r}")
        return value

    def _unsupported(self, what: str) -> SourceError:
        return SourceError(f"{what} is not supported in GGUF files", where=str(self._path))

    def _dequantize(self, tensor: ReaderTensor) -> npt.NDArray[np.float32]:
        from gguf import dequantize

        kind = tensor.tensor_type.name
        try:
            if kind == "F32":
                values: npt.NDArray[np.float32] = np.asarray(tensor.data)
            else:
                values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except NotImplementedError as error:
            raise SourceError(
                f"tensor {tensor.name} is stored as {kind}, which cannot be read",
                where=str(self._path),
                hint="use a file with another quantization, or the Hugging Face folder",
            ) from error
        return values.reshape(_shape(tensor))


def unpermute_rope(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of q or k from GGUF's order (pairs side by side) to Hugging Face's (halves).

    Works on weights [heads * head_dim, columns] and on biases [heads * head_dim].
    """
    rows = values.shape[0]
    pairs = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    result: npt.NDArray[Any] = pairs.swapaxes(1, 2).reshape(values.shape)
    return result


def _open(path: Path) -> GGUFReader:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        # The reader finds a truncated file only by arrays that come out too short.
        size = path.stat().st_size
        raise SourceError(
            f"the file is not a readable GGUF file or is truncated ({size:,} bytes)",
            where=str(path),
            why=str(error),
            hint="fetch the file again",
        ) from error


def _hf_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    block, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    stem, _, suffix = part.rpartition(".")
    if block == "blk" and stem in _LAYER_NAMES and suffix in ("weight", "bias"):
        return f"model.layers.{number}.{_LAYER_NAMES[stem]}.{suffix}"
    return name


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """Outermost dimension first; GGUF writes the innermost first."""
    return tuple(int(size) for size in reversed(tensor.shape.tolist()))


def _shortest(value: float) -> float:
    """The shortest decimal that means the same float32, so that 1e-05 reads as 1e-05."""
    if not math.isfinite(value):
        raise InternalError(f"a model parameter is {value}")
    return float(str(np.float32(value)))


def _bits(kind: str) -> str:
    digits = "".join(character for character in kind.split("_")[0] if character.isdigit())
    return f"{digits}-bit" if digits else "quantized"
