"""Reading and rewriting straight-line Relax functions and the kernels that they call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from mlcbuild.errors import InternalError
from mlcbuild.kernels.tagged import KernelTag, build, read_tag


def single_block(func: relax.Function) -> relax.DataflowBlock:
    """The only block of a straight-line function; InternalError for any other function."""
    blocks = list(func.body.blocks)
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        raise InternalError("a model function must be one dataflow block")
    return blocks[0]


class FunctionEditor:
    """The bindings of one function as a list that a pass edits.

    The function must be a single dataflow block, as ``export_tvm`` makes it.
    """

    def __init__(self, func: relax.Function) -> None:
        self._func = func
        self.bindings: list[tuple[Any, Any]] = [
            (binding.var, binding.value) for binding in single_block(func).bindings
        ]
        self.value: dict[Any, Any] = dict(self.bindings)
        self.uses: Counter[Any] = Counter()
        for _, value in self.bindings:
            self.uses.update(variables(value))
        self.uses.update(variables(func.body.body))

    def definition(self, expr: Any) -> Any:
        """The value bound to a variable; ``expr`` itself if it is a parameter or no variable."""
        return self.value.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def through_reshapes(self, expr: Any, single_use: bool = False) -> Any:
        """The variable that ``expr`` is a reshape of, or ``expr``; stops at shared variables."""
        while True:
            value = self.definition(expr)
            if op_name(value) != "relax.reshape" or (single_use and self.uses[expr] > 1):
                return expr
            expr = value.args[0]

    def build(self, bindings: list[tuple[Any, Any]]) -> relax.Function:
        """The function with new bindings; every variable of the old body keeps its meaning."""
        func = self._func
        block = relax.DataflowBlock([relax.VarBinding(var, value) for var, value in bindings])
        body = relax.SeqExpr([block], func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


class ModuleEditor:
    """A module under edit: functions in order, kernels added once per tag."""

    def __init__(self, mod: tvm.IRModule, kernels: Any) -> None:
        self.mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
        self._kernels = kernels
        self._by_tag: dict[KernelTag, Any] = {}
        self._names: set[str] = {gvar.name_hint for gvar in mod.functions}
        for gvar, func in mod.functions.items():
            tag = read_tag(func)
            if tag is not None:
                self._by_tag[tag] = gvar

    def tag_of(self, value: Any) -> KernelTag | None:
        """The kernel tag of a ``call_tir``, None for anything else."""
        if op_name(value) != "relax.call_tir":
            return None
        return read_tag(self.mod[value.args[0]])

    def kernel(self, tag: KernelTag) -> Any:
        """The global variable of the kernel of ``tag``, added to the module if it is new."""
        if tag not in self._by_tag:
            name, index = tag.builder, 0
            while name in self._names:
                index += 1
                name = f"{tag.builder}{index}"
            self._names.add(name)
            func = build(self._kernels, tag)
            builder = relax.BlockBuilder(self.mod)
            self._by_tag[tag] = builder.add_func(func, name)
            self.mod = builder.get()
        return self._by_tag[tag]

    def call(self, tag: KernelTag, args: list[Any], out_ty: Any) -> Any:
        """A ``call_tir`` of a kernel; ``out_ty`` is one tensor type or a list of them."""
        gvar = self.kernel(tag)
        return relax.call_tir(gvar, relax.Tuple(args), out_ty)

    def edit(self, rewrite: Callable[[FunctionEditor], list[tuple[Any, Any]]]) -> tvm.IRModule:
        """Applies ``rewrite`` to every Relax function; returns the normalized module."""
        for gvar, func in list(self.mod.functions.items()):
            if isinstance(func, relax.Function):
                editor = FunctionEditor(func)
                self.mod[gvar] = editor.build(rewrite(editor))
        mod = relax.transform.Normalize()(self.mod)
        names = [g.name_hint for g, f in mod.functions.items() if isinstance(f, relax.Function)]
        return relax.transform.DeadCodeElimination(names)(mod)


def variables(value: Any) -> list[Any]:
    """The variables that a bound value reads, each as often as it is read.

    A walk of our own, since TVM's visits every type and shape on the way: the packed tuple of all
    params at each use of it. InternalError for control flow, which no plan has.
    """
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.Call):
        return [var for arg in value.args for var in variables(arg)]
    if isinstance(value, relax.Tuple):
        return [var for item in value.fields for var in variables(item)]
    if isinstance(value, relax.TupleGetItem):
        return variables(value.tuple_value)
    if isinstance(value, relax.If | relax.Function | relax.SeqExpr):
        raise InternalError(f"a model function must be a straight line, found {type(value)}")
    return []


def op_name(value: Any) -> str:
    """The operator's name of a call, "" for anything else."""
    call_op = getattr(value, "op", None)
    return str(call_op.name) if isinstance(call_op, tvm.ir.Op) else ""


def shape_of(expr: Any) -> list[Any]:
    """The dimensions of a tensor-typed expression."""
    return list(expr.ty.shape.values)


def int_of(dim: Any) -> int | None:
    """A constant dimension as int, None if it is symbolic."""
    if isinstance(dim, int):
        return dim
    return int(dim.value) if isinstance(dim, tirx.IntImm) else None


def tensor_type(shape: list[Any], dtype: str) -> relax.TensorType:
    """The type of a tensor."""
    return relax.TensorType(shape, dtype)


class Emitter:
    """Collects the bindings of a rewritten function and invents variables."""

    def __init__(self, prefix: str) -> None:
        self.bindings: list[tuple[Any, Any]] = []
        self._prefix = prefix
        self._count = 0

    def emit(self, value: Any, ty: Any) -> Any:
        """Binds ``value`` to a new variable of type ``ty``."""
        self._count += 1
        var = relax.DataflowVar(f"{self._prefix}{self._count}", ty)
        self.bindings.append((var, value))
        return var

    def reshape(self, expr: Any, shape: list[Any], dtype: str) -> Any:
        """A view of ``expr`` with another shape (``expr`` itself if the shape is the same)."""
        old = shape_of(expr)
        if len(old) == len(shape) and all(
            structural_equal(a, b) for a, b in zip(old, shape, strict=True)
        ):
            return expr
        return self.emit(relax.op.reshape(expr, relax.ShapeExpr(shape)), tensor_type(shape, dtype))
