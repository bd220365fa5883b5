"""Which checkpoint tensors make up each parameter: as in Llama."""

from mlcbuild.arch.llama.weights import param_rules

__all__ = ["param_rules"]
