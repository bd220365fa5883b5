"""What shaders ask of a WebGPU device: features, and limits beyond those that every device has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlcbuild.errors import InternalError

# https://www.w3.org/TR/webgpu/#limits
DEFAULT_LIMITS = {
    "maxStorageBuffersPerShaderStage": 8,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupSizeZ": 64,
}
_FEATURES = {"f16": "shader-f16", "subgroups": "subgroups"}  # by WGSL's extension
_SHADER = re.compile(r"^// Function: \w+$", re.MULTILINE)
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
    """The needs of a library's shaders, ``source`` being all of them as TVM writes them out."""
    features: set[str] = set()
    largest = dict(DEFAULT_LIMITS)
    for shader in _shaders(source):
        for names in _ENABLE.findall(shader):
            features.update(_feature(name.strip()) for name in names.split(","))
        for name, value in _limits(shader).items():
            largest[name] = max(largest[name], value)
    beyond = {name: value for name, value in largest.items() if value > DEFAULT_LIMITS[name]}
    return Needs(tuple(sorted(features)), beyond)


def _shaders(source: str) -> Iterator[str]:
    """TVM heads every shader with its name, sometimes twice."""
    parts = [part for part in _SHADER.split(source)[1:] if "@compute" in part]
    if len(parts) != source.count("@compute"):
        raise InternalError("a library's shaders do not begin with their names")
    yield from parts


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
