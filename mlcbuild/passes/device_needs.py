"""What a library asks of a WebGPU device: features, and limits beyond those every device has.

Shaders keep to what every device has, so that none fails when it is loaded; memory need not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from mlcbuild.core.atomic import format_bytes
from mlcbuild.errors import InternalError, ResourceError, StageError
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.limits import Limits
from mlcbuild.weights.tensor_cache import DEFAULT_BINDING_BYTES, MAX_BINDING_BYTES

# https://www.w3.org/TR/webgpu/#limits
DEFAULT_LIMITS = {
    "maxStorageBuffersPerShaderStage": 8,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupSizeZ": 64,
}
_ALLOCATE = "relax.memory.alloc_storage"
_MAX_GROUPS = 65535  # along a dimension; the client lays the first one out over two
_PAGE = 16  # tokens of a page of the client's cache
_CACHE_BYTES = {"float16": 2, "float32": 4}  # of an element of it
_FEATURES = {"f16": "shader-f16", "subgroups": "subgroups"}  # by WGSL's extension
_SHADER = re.compile(r"^// Function: (\w+)$", re.MULTILINE)
_ENABLE = re.compile(r"^enable ([\w, ]+);", re.MULTILINE)
_STORAGE = re.compile(r"\bvar<storage\b")
_SHARED = re.compile(r"\bvar<workgroup>\s+\w+\s*:\s*([^;]+);")
_ARRAY = re.compile(r"array<(.+),\s*(\d+)>")
_VECTOR = re.compile(r"vec([234])<(\w+)>")
_GROUP = re.compile(r"@workgroup_size\((\d+), (\d+), (\d+)\)")
_SCALAR_BYTES = {"f32": 4, "i32": 4, "u32": 4, "f16": 2}


@dataclass(frozen=True, slots=True)
class Needs:
    """WebGPU's names of features, and of limits with the value that is needed."""

    features: tuple[str, ...]
    limits: dict[str, int]


def device_needs(source: str) -> Needs:
    """The needs of a library's shaders, ``source`` being all of them as TVM writes them out.

    Raises StageError naming the kernel that needs more than every device has, and the limit.
    """
    features: set[str] = set()
    for kernel, shader in _shaders(source):
        for names in _ENABLE.findall(shader):
            features.update(_feature(name.strip()) for name in names.split(","))
        for name, value in _limits(shader).items():
            if value > DEFAULT_LIMITS[name]:
                raise StageError(
                    f"kernel {kernel} needs a {name} of {value}",
                    why=f"WebGPU devices need not have more than {DEFAULT_LIMITS[name]}",
                )
    return Needs(tuple(sorted(features)), {})


def check_dispatches(mod: tvm.IRModule) -> None:
    """Raises StageError for a scheduled kernel with more workgroups than a device starts."""
    for gvar, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        for axis, extent in _extents(func):
            most = _MAX_GROUPS**2 if axis == "blockIdx.x" else _MAX_GROUPS
            # Along y there are heads and the like; only x depends on how many tokens there are.
            if axis != "blockIdx.x" and not isinstance(extent, tirx.IntImm):
                raise StageError(f"kernel {gvar.name_hint} has {extent} workgroups along {axis}")
            if isinstance(extent, tirx.IntImm) and int(extent.value) > most:
                raise StageError(
                    f"kernel {gvar.name_hint} has {extent.value} workgroups along {axis}",
                    why=f"WebGPU devices start {most} at most",
                )


def _extents(func: tirx.PrimFunc) -> list[tuple[str, Any]]:
    """Workgroups along each axis that a kernel has."""
    found: list[tuple[str, Any]] = []

    def visit(loop: tirx.For) -> None:
        axis = "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)
        if axis.startswith("blockIdx."):
            found.append((axis, loop.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="pre")
    return found


def memory_needs(mod: tvm.IRModule, attention: AttentionSpec, limits: Limits) -> dict[str, int]:
    """Limits for the cache and for what a module with planned memory allocates; {} mostly.

    Each is a buffer of its own, bound as a whole. Raises ResourceError for what no browser binds.
    """
    cache = layer_bytes(attention, limits)
    sizes = [
        ("a layer of the KV cache", cache, "lower runtime.context_window_size"),
        *(
            (f"a buffer of {gvar.name_hint}", size, "lower runtime.prefill_chunk_size")
            for gvar, func in mod.functions.items()
            if isinstance(func, relax.Function)
            for size in planned_sizes(func)
        ),
    ]
    what, largest, hint = max(sizes, key=lambda entry: entry[1])
    if largest > MAX_BINDING_BYTES:
        raise ResourceError(
            f"{what} takes {format_bytes(largest)}",
            why=f"browsers bind {format_bytes(MAX_BINDING_BYTES)} to a shader at most",
            hint=hint,
        )
    if largest <= DEFAULT_BINDING_BYTES:
        return {}
    return {"maxStorageBufferBindingSize": largest, "maxBufferSize": largest}


def token_bytes(attention: AttentionSpec, limits: Limits) -> int:
    """Bytes of a token's keys and values in one layer."""
    return 2 * attention.kv_heads * attention.head_dim * _CACHE_BYTES[limits.kv_dtype]


def layer_bytes(attention: AttentionSpec, limits: Limits) -> int:
    """Bytes of the buffer that a layer's cache is: pages for the context, and one more.

    (``num_total_pages`` of TVM's paged_kv_cache.cc.)
    """
    pages = -(-limits.context_window_size // _PAGE) + 1
    return pages * _PAGE * token_bytes(attention, limits)


def planned_sizes(func: relax.Function) -> list[int]:
    """Bytes of each buffer that a function allocates."""
    sizes: list[int] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(node.op, "name", "") == _ALLOCATE:
            size = node.args[0].values[0]
            # What has no bound in the module is small, such as the ids of a bias.
            sizes.append(int(size) if isinstance(size, tirx.IntImm) else 0)

    relax.analysis.post_order_visit(func, visit)
    return sizes


def planned_bytes(mod: tvm.IRModule) -> int:
    """Bytes that the hungriest function of a module with planned memory takes for its values."""
    functions = mod.functions.values()
    return max(sum(planned_sizes(f)) for f in functions if isinstance(f, relax.Function))


def _shaders(source: str) -> Iterator[tuple[str, str]]:
    """Names and texts; TVM heads every shader with its name, sometimes twice."""
    parts = _SHADER.split(source)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    found = [(name, text) for name, text in pairs if "@compute" in text]
    if len(found) != source.count("@compute"):
        raise InternalError("a library's shaders do not begin with their names")
    yield from found


def _feature(extension: str) -> str:
    if extension not in _FEATURES:
        raise InternalError(f"a shader enables {extension}, which is not known here")
    return _FEATURES[extension]


def _limits(shader: str) -> dict[str, int]:
    match = _GROUP.search(shader)
    if match is None:
        raise InternalError("a shader does not tell the size of its workgroups")
    x, y, z = (int(size) for size in match.groups())
    return {
        "maxStorageBuffersPerShaderStage": len(_STORAGE.findall(shader)),
        "maxComputeWorkgroupStorageSize": sum(_size(kind) for kind in _SHARED.findall(shader)),
        "maxComputeInvocationsPerWorkgroup": x * y * z,
        "maxComputeWorkgroupSizeX": x,
        "maxComputeWorkgroupSizeY": y,
        "maxComputeWorkgroupSizeZ": z,
    }


def _size(kind: str) -> int:
    """Bytes of a WGSL type; in arrays, a vector of three takes the place of four."""
    kind = kind.strip()
    if array := _ARRAY.fullmatch(kind):
        return _size(array.group(1)) * int(array.group(2))
    if vector := _VECTOR.fullmatch(kind):
        lanes = int(vector.group(1))
        return _size(vector.group(2)) * (4 if lanes == 3 else lanes)
    if kind not in _SCALAR_BYTES:
        raise InternalError(f"the size of WGSL's {kind} is not known here")
    return _SCALAR_BYTES[kind]
