"""Turns one lowered Relax function into a straight line of kernel calls over planned memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import tvm
from tvm import relax

from mlcbuild.errors import InternalError
from mlcbuild.kernels.tagged import KernelTag
from mlcbuild.nn.attention import ATTENTION_CALL
from mlcbuild.passes.editor import int_of, op_name, shape_of, single_block
from mlcbuild.passes.plan_expression import Token, Variables, evaluate, product, to_tokens
from mlcbuild.passes.plan_memory import Buffer, align, plan_memory
from mlcbuild.spec.attention import AttentionSpec
from mlcbuild.spec.kv import SCALE_BYTES, KvPageShape
from mlcbuild.spec.limits import Limits

Item = TypeVar("Item", bound=Hashable)

_ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    if dtype not in _ITEM_BYTES:
        raise InternalError(f"a plan holds no tensors of dtype {dtype}")
    return _ITEM_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """Names of the kernels that one attention call expands to."""

    rope_append: str
    paged_attention: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: str
    ref: int | str
    dtype: str
    shape: tuple[int, ...]  # expression numbers


class Numbered(Generic[Item]):
    """Distinct items in order of first use, each with its number."""

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}
        self._items: list[Item] = []

    def number(self, item: Item) -> int:
        """The number of ``item``; the next one if it is new."""
        number = self._numbers.setdefault(item, len(self._items))
        if number == len(self._items):
            self._items.append(item)
        return number

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)


@dataclass
class PlanFunction:
    """One function of a plan; buffers get their offsets in ``finish``."""

    name: str
    spec: AttentionSpec
    limits: Limits
    kernels: Numbered[str]  # shared by all functions of the plan
    attention: AttentionKernels | None
    variables: Variables = field(default_factory=Variables)
    exprs: Numbered[tuple[Token, ...]] = field(default_factory=Numbered)
    tensors: Numbered[_Tensor] = field(default_factory=Numbered)
    calls: list[tuple[int, list[tuple[str, int | float]]]] = field(default_factory=list)
    buffers: list[tuple[Token, ...]] = field(default_factory=list)  # size in bytes
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    # -- building ---------------------------------------------------------------------------

    def expression(self, expr: Any) -> int:
        """The number of a shape expression."""
        return self.exprs.number(to_tokens(expr, self.variables))

    def tensor(self, kind: str, ref: int | str, dtype: str, shape: list[Any]) -> int:
        """The number of a tensor (equal ones share it)."""
        return self.tensors.number(
            _Tensor(kind, ref, dtype, tuple(self.expression(dim) for dim in shape))
        )

    def allocate(self, dtype: str, shape: list[Any]) -> int:
        """A tensor in a new buffer of the arena."""
        parts = [to_tokens(dim, self.variables) for dim in shape]
        self.buffers.append(product([*parts, (item_bytes(dtype),)]))
        return self.tensor("arena", len(self.buffers) - 1, dtype, shape)

    def view(self, tensor: int, shape: list[Any]) -> int:
        """The same memory with another shape."""
        old = self.tensors[tensor]
        return self.tensor(old.kind, old.ref, old.dtype, shape)

    def call(self, kernel: str, args: list[tuple[str, int | float]]) -> None:
        """Appends a kernel call."""
        self.calls.append((self.kernels.number(kernel), args))

    # -- lowering ---------------------------------------------------------------------------

    def lower(self, func: relax.Function, param_names: list[str]) -> list[tuple[str, str, Any]]:
        """Emits ``func``; returns (name, dtype, shape) of the parameters in order of the tuple."""
        env: dict[Any, Any] = {}
        params: list[tuple[str, str, Any]] = []
        for var in func.params:
            if isinstance(var.ty, relax.TupleType):
                fields = list(var.ty.fields)
                params = [
                    (name, str(ty.dtype), [int(dim) for dim in ty.shape.values])
                    for name, ty in zip(param_names, fields, strict=True)
                ]
                env[var] = [
                    ("param", index, dtype, shape) for index, (_, dtype, shape) in enumerate(params)
                ]
            elif isinstance(var.ty, relax.TensorType):
                index = len(self.inputs)
                self.inputs.append(self.tensor("input", index, str(var.ty.dtype), shape_of(var)))
                env[var] = self.inputs[-1]
            else:
                env[var] = None  # the KV cache: the runtime's own
        for binding in single_block(func).bindings:
            env[binding.var] = self._binding(env, binding.value)
        result = env[func.body.body] if isinstance(func.body.body, relax.Var) else func.body.body
        results = result if isinstance(result, list) else [result]
        self.outputs = [item for item in results if item is not None]
        return params

    def _binding(self, env: dict[Any, Any], value: Any) -> Any:
        if isinstance(value, relax.Var):
            return env[value]
        if isinstance(value, relax.TupleGetItem):
            item = env[value.tuple_value][value.index]
            return self.tensor(*item) if isinstance(item, tuple) else item
        if isinstance(value, relax.Tuple):
            return [env[item] for item in value.fields]
        name = op_name(value)
        if name == "relax.reshape":
            return self.view(env[value.args[0]], list(value.args[1].values))
        if name == "relax.call_tir":
            return self._call_tir(env, value)
        if name == "relax.call_dps_packed":
            return self._attention(env, value)
        raise InternalError(f"{self.name}: no plan form for {name or type(value).__name__}")

    def _call_tir(self, env: dict[Any, Any], value: Any) -> Any:
        if len(value.args) > 2:
            raise InternalError(f"{self.name}: no plan form for the shape arguments of {value}")
        # Shape variables that no buffer has as its size stand between the tensors.
        inputs: list[tuple[str, int | float]] = [
            ("i", self.expression(arg))
            if tvm.ir.is_prim_expr(arg)
            else ("t", self._argument(env, arg))
            for arg in value.args[1].fields
        ]
        out_type = value.ty_args[0]
        types = out_type.fields if isinstance(out_type, relax.TupleType) else [out_type]
        outs = [self.allocate(str(ty.dtype), list(ty.shape.values)) for ty in types]
        self.call(value.args[0].name_hint, [*inputs, *(("t", out) for out in outs)])
        return outs if isinstance(out_type, relax.TupleType) else outs[0]

    def _argument(self, env: dict[Any, Any], arg: Any) -> int:
        """The number of the tensor that a kernel reads."""
        found = env.get(arg) if isinstance(arg, relax.Var) else None
        if not isinstance(found, int):
            raise InternalError(f"{self.name}: no plan form for the kernel argument {arg}")
        return found

    def _attention(self, env: dict[Any, Any], value: Any) -> int:
        extern = value.args[0]
        if str(extern.global_symbol) != ATTENTION_CALL or self.attention is None:
            raise InternalError(f"{self.name}: no plan form for a call of {extern.global_symbol}")
        spec = self.spec
        fields = value.args[1].fields
        layer, qkv = int(_constant(fields[1])), self._argument(env, fields[3])
        rows, *inner = shape_of(fields[3])
        total = spec.heads + 2 * spec.kv_heads
        if [int_of(dim) for dim in inner] != [total, spec.head_dim] or layer >= spec.layers:
            raise InternalError(
                f"{self.name}: attention of layer {layer} over {inner} does not fit {spec}"
            )
        width = spec.heads * spec.head_dim
        pages = self._pages(layer)
        positions = self.tensor("meta", "positions", "int32", [rows])
        rope_shape: list[Any] = ["rope_positions", spec.rotary_dim]
        query = self.allocate("float32", [rows, width])
        out = self.allocate("float32", [rows, width])
        rope_args = [
            self.view(qkv, [rows, total * spec.head_dim]),
            positions,
            self.tensor("meta", "slots", "int32", [rows]),
            self.tensor("meta", "rope_cos_sin", "float32", rope_shape),
            *pages,
            query,
        ]
        attention_args = [
            query,
            *pages,
            positions,
            self.tensor("meta", "page_begin", "int32", [rows]),
            self.tensor("meta", "page_values", "int32", ["kv_nnz"]),
        ]
        if spec.window.size:
            attention_args.append(self.tensor("meta", "page_skip", "int32", [rows]))
        attention_args.append(out)
        self.call(self.attention.rope_append, [("t", arg) for arg in rope_args])
        self.call(self.attention.paged_attention, [("t", arg) for arg in attention_args])
        return self.view(out, shape_of(value))

    def _pages(self, layer: int) -> list[int]:
        """The tensors of a layer's pages; int8 pages are one memory as codes and as scales."""
        shape = page_shape(self.spec, self.limits)
        if not shape.is_quantized:
            columns = shape.page_size * shape.head_dim
            dims = ["kv_pages", 2, shape.kv_heads, columns]
            return [self.tensor("kv", layer, shape.dtype, dims)]
        return [
            self.tensor("kv", layer, "int8", ["kv_pages", shape.page_bytes]),
            self.tensor("kv", layer, "float32", ["kv_pages", shape.page_bytes // SCALE_BYTES]),
        ]

    # -- finishing --------------------------------------------------------------------------

    def output_bytes(self, bounds: Mapping[str, int]) -> int:
        """Bytes that this function's outputs take, aligned."""
        return sum(align(self._size(self._buffer(out), bounds)) for out in set(self.outputs))

    def _buffer(self, tensor: int) -> int:
        entry = self.tensors[tensor]
        if entry.kind != "arena" or not isinstance(entry.ref, int):
            raise InternalError(f"{self.name}: an output is not computed by the function")
        return entry.ref

    def _size(self, buffer: int, bounds: Mapping[str, int]) -> int:
        unknown = sorted(set(self.variables.names) - set(bounds))
        if unknown:
            raise InternalError(
                f"{self.name}: a shape depends on {', '.join(unknown)}, which the runtime does "
                f"not know; it knows {', '.join(bounds)}"
            )
        values = {i: bounds[name] for i, name in enumerate(self.variables.names)}
        return evaluate(self.buffers[buffer], values)

    def finish(
        self, bounds: Mapping[str, int], output_base: int, temporary_base: int
    ) -> dict[str, Any]:
        """The function as plan JSON (docs/formats.md).

        Outputs lie from ``output_base`` on, where no other function writes; temporaries from
        ``temporary_base`` on, shared by all functions.
        """
        life: dict[int, tuple[int, int]] = {}
        for index, (_, args) in enumerate(self.calls):
            for kind, ref in args:
                entry = self.tensors[int(ref)] if kind == "t" else None
                if entry is not None and entry.kind == "arena":
                    buffer = int(entry.ref)
                    life[buffer] = (life.get(buffer, (index, index))[0], index)
        offsets: dict[int, int] = {}
        for out in dict.fromkeys(self.outputs):
            buffer = self._buffer(out)
            offsets[buffer] = output_base
            output_base += align(self._size(buffer, bounds))
        temporaries = [buffer for buffer in life if buffer not in offsets]
        memory = plan_memory(
            [Buffer(self._size(b, bounds), *life[b]) for b in temporaries], temporary_base
        )
        offsets.update(zip(temporaries, memory.offsets, strict=True))
        arena = max([memory.arena_bytes, output_base])
        return {
            "name": self.name,
            "vars": list(self.variables.names),
            "exprs": [list(tokens) for tokens in self.exprs],
            "arena_bytes": arena,
            "tensors": [
                [
                    t.kind,
                    0 if t.kind == "arena" else t.ref,
                    offsets[int(t.ref)] if t.kind == "arena" else 0,
                    t.dtype,
                    list(t.shape),
                ]
                for t in self.tensors
            ],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "calls": [[kernel, [list(arg) for arg in args]] for kernel, args in self.calls],
        }


def _constant(expr: Any) -> float:
    value = getattr(expr, "value", expr)
    return float(getattr(value, "value", value))


def page_shape(spec: AttentionSpec, limits: Limits) -> KvPageShape:
    """How a page of one layer lies in memory."""
    return KvPageShape(spec.kv_heads, spec.head_dim, limits.page_size, limits.kv_dtype)


def attention_tags(
    spec: AttentionSpec, limits: Limits, scale: float
) -> tuple[KernelTag, KernelTag]:
    """The kernels of one attention call: rope and append, then paged attention."""
    common = {
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "page_size": limits.page_size,
        "kv_dtype": limits.kv_dtype,
    }
    rope = KernelTag(
        "rope_append", tuple(sorted({**common, "rotary_dim": spec.rotary_dim}.items()))
    )
    seen: dict[str, Any] = {"scale": scale}
    if spec.window.size:
        seen |= {"window": spec.window.size, "sinks": spec.window.sinks}
    attention = KernelTag("paged_attention", tuple(sorted({**common, **seen}.items())))
    return rope, attention
