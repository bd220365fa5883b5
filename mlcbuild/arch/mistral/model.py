"""The computation of Mistral: Llama's."""

from mlcbuild.arch.llama.model import Model, attention_spec

__all__ = ["Model", "attention_spec"]
