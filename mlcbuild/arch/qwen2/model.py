"""The computation of Qwen2: Llama's."""

from mlcbuild.arch.llama.model import Model, attention_spec

__all__ = ["Model", "attention_spec"]
