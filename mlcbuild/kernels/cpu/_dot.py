"""The int8 dot product of an instruction set, from the module of its architecture."""

from __future__ import annotations

from mlcbuild.errors import InternalError
from mlcbuild.kernels.cpu import _dot_arm, _dot_wasm, _dot_x86
from mlcbuild.kernels.cpu._int8_dot import Int8Dot
from mlcbuild.spec.capabilities import Capabilities

_ARCHITECTURES = {
    "x86": _dot_x86.int8_dot,
    "arm": _dot_arm.int8_dot,
    "wasm": _dot_wasm.int8_dot,
}


def int8_dot(capabilities: Capabilities, bits: int) -> Int8Dot:
    """How an instruction set computes dot products of ``bits`` wide codes with activations."""
    choose = _ARCHITECTURES.get(capabilities.architecture)
    if choose is None:
        raise InternalError(f"no int8 dot product for {capabilities.architecture!r}")
    return choose(capabilities, bits)
