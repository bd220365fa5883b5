"""Passes: shape expressions, memory, fusion, default schedules, and whole lowered models."""

from __future__ import annotations

import hashlib
import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import relax, tirx  # noqa: E402
from tvm.relax.frontend import nn  # noqa: E402
from tvm.relax.frontend.nn import Tensor, op  # noqa: E402

from mlcbuild.arch.llama import model as llama  # noqa: E402
from mlcbuild.arch.llama.config import LlamaConfig, tiny_config  # noqa: E402
from mlcbuild.errors import InternalError, StageError  # noqa: E402
from mlcbuild.kernels.tagged import KernelTag, tagged  # noqa: E402
from mlcbuild.nn.layers import Embedding, Linear, RMSNorm, select_rows  # noqa: E402
from mlcbuild.passes.editor import FunctionEditor, single_block  # noqa: E402
from mlcbuild.passes.lower_model import Lowered, LoweringInput, lower_model  # noqa: E402
from mlcbuild.passes.lower_nn_ops import lower_nn_ops  # noqa: E402
from mlcbuild.passes.plan_expression import Variables, evaluate, product, to_tokens  # noqa: E402
from mlcbuild.passes.plan_memory import ALIGNMENT, Buffer, align, plan_memory  # noqa: E402
from mlcbuild.spec.limits import Limits  # noqa: E402
from tests.unit.plan_runner import LIMITS, PlanRunner, buffers_of, lowering_input  # noqa: E402

WIDTH = 48
VOCAB = 32

# -- shape expressions ---------------------------------------------------------------------------


def test_an_expression_becomes_tokens_and_a_value() -> None:
    n, m = tirx.Var("seq_len", "int64"), tirx.Var("logit_rows", "int64")
    variables = Variables()
    tokens = to_tokens(tirx.floordiv(n * 3 + 7, 4) - tirx.min(m, 5), variables)
    assert variables.names == ["seq_len", "logit_rows"]
    for seq_len, logit_rows in ((1, 1), (10, 9), (128, 4)):
        values = {0: seq_len, 1: logit_rows}
        assert evaluate(tokens, values) == (seq_len * 3 + 7) // 4 - min(logit_rows, 5)


def test_division_rounds_down() -> None:
    variables = Variables()
    n = tirx.Var("seq_len", "int64")
    quotient = to_tokens(tirx.floordiv(n - 9, 4), variables)
    rest = to_tokens(tirx.floormod(n - 9, 4), variables)
    assert evaluate(quotient, {0: 2}) == -2
    assert evaluate(rest, {0: 2}) == 1


def test_division_that_rounds_to_zero_has_no_plan_form() -> None:
    with pytest.raises(InternalError, match="Div"):
        to_tokens(tirx.truncdiv(tirx.Var("seq_len", "int64") - 9, 4), Variables())


def test_a_product_folds_constants() -> None:
    assert product([(3,), (4,)]) == (12,)
    tokens = product([("$0",), (3,), ("$1", 1, "+"), (4,)])
    assert evaluate(tokens, {0: 5, 1: 6}) == 5 * 7 * 12


def test_an_unknown_expression_is_named() -> None:
    n = tirx.Var("seq_len", "int64")
    with pytest.raises(InternalError, match="Select"):
        to_tokens(tirx.Select(n > 1, n, n + 1), Variables())


# -- memory --------------------------------------------------------------------------------------


def assert_disjoint(buffers: Sequence[tuple[int, ...]]) -> None:
    for index, (offset, nbytes, first, last) in enumerate(buffers):
        for other, size, begin, end in buffers[:index]:
            if first <= end and begin <= last:
                assert offset + nbytes <= other or other + size <= offset


@pytest.mark.parametrize("seed", range(20))
def test_live_buffers_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    base = rng.choice((0, 4096))
    buffers = []
    for _ in range(rng.randrange(1, 80)):
        first = rng.randrange(60)
        buffers.append(Buffer(rng.randrange(1, 5000), first, first + rng.randrange(12)))
    memory = plan_memory(buffers, base)
    placed = [
        (offset, align(buffer.nbytes), buffer.first, buffer.last)
        for offset, buffer in zip(memory.offsets, buffers, strict=True)
    ]
    assert_disjoint(placed)
    assert all(offset % ALIGNMENT == 0 and offset >= base for offset in memory.offsets)
    assert memory.arena_bytes == max(offset + nbytes for offset, nbytes, _, _ in placed)
    assert memory.lower_bound <= memory.arena_bytes - base <= 1.5 * memory.lower_bound


def test_no_buffers_take_no_memory() -> None:
    assert plan_memory([], 128).arena_bytes == 128


def one_billion() -> LlamaConfig:
    """The shape of Llama 3.2 1B; layers are alike, so that four show what sixteen would."""
    return replace(
        tiny_config(),
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
    )


@pytest.mark.parametrize("variant", ["avx512vnni", "avx2-float"])
@pytest.mark.parametrize("config", [tiny_config(), one_billion()], ids=["tiny", "1b"])
def test_a_model_fits_close_to_the_least_memory(config: LlamaConfig, variant: str) -> None:
    plan = lower_llama(config, variant, "q4f16_1").plan
    for function in plan["functions"]:
        buffers = buffers_of(plan, function)
        assert_disjoint(buffers)
        live = [
            sum(align(size) for _, size, first, last in buffers if first <= call <= last)
            for call in range(len(function["calls"]) + 1)
        ]
        assert function["arena_bytes"] <= 1.3 * max(live) + output_bytes(plan)


# -- small modules -------------------------------------------------------------------------------


class Small(nn.Module):  # type: ignore[misc]
    """embed, then whatever ``body`` does, then the wanted rows of it."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.table = Embedding(VOCAB, WIDTH)
        self.norm = RMSNorm(WIDTH, 1e-5)
        self.up = Linear(WIDTH, 2 * WIDTH, bias=True)
        self.down = Linear(WIDTH, WIDTH)
        self.vector = nn.Parameter((WIDTH,), "float32")
        self.body = body

    def embed(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids)

    def batch_prefill(self, input_embeds: Tensor, logit_positions: Tensor) -> Tensor:
        return select_rows(self.body(self, input_embeds), logit_positions)

    def get_spec(self) -> Any:
        packed = {"param_mode": "packed", "effect_mode": "none"}
        return nn.spec.ModuleSpec.from_raw(
            {
                "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32"), "$": packed},
                "batch_prefill": {
                    "input_embeds": nn.spec.Tensor([1, "seq_len", WIDTH], "float32"),
                    "logit_positions": nn.spec.Tensor(["logit_rows"], "int32"),
                    "$": packed,
                },
            },
            self,
        )


def lower_small(body: Any, scheme: str = "q0f32") -> Lowered:
    return lower_model(lowering_input(Small(body), scheme=scheme))


def kernels_of(lowered: Lowered, function: str = "batch_prefill") -> list[str]:
    """The builders of a function's kernels, in the order of its calls."""
    plan = lowered.plan
    (found,) = (entry for entry in plan["functions"] if entry["name"] == function)
    return [plan["kernels"][call[0]] for call in found["calls"]]


def random_params(lowered: Lowered, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        entry["name"]: rng.standard_normal(entry["shape"]).astype(entry["dtype"])
        for entry in lowered.plan["params"]
    }


def unpacked(params: dict[str, Any], name: str, rows: int) -> Any:
    blocks = params[name]  # [rows / 16, columns, 16]
    return blocks.transpose(0, 2, 1).reshape(-1, blocks.shape[1])[:rows]


def run_small(lowered: Lowered, rows: int = 5) -> tuple[Any, dict[str, Any], Any, Any]:
    """(the rows found, params, the input rows, the positions asked for)."""
    params = random_params(lowered)
    x = np.random.default_rng(1).standard_normal((1, rows, WIDTH)).astype(np.float32)
    wanted = np.array([rows - 1, 0], np.int32)
    (found,) = PlanRunner(lowered, params).run(
        "batch_prefill", [x, wanted], seq_len=rows, logit_rows=len(wanted)
    )
    return found[0], params, x[0], wanted


def linear(params: dict[str, Any], name: str, x: Any, rows: int) -> Any:
    y = x @ unpacked(params, f"{name}.weight", rows).T
    return y + params[f"{name}.bias"] if f"{name}.bias" in params else y


def normed(params: dict[str, Any], x: Any) -> Any:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * params["norm.weight"]


def expect_rows(found: Any, hidden: Any, wanted: Any) -> None:
    expected = hidden[wanted]
    assert np.abs(found - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())


def swiglu(model: Any, x: Tensor) -> Tensor:
    gate, up = op.split(model.up(x), 2, axis=-1)
    return op.silu(gate) * up


def swiglu_other_way(model: Any, x: Tensor) -> Tensor:
    gate, up = op.split(model.up(x), 2, axis=-1)
    return up * op.silu(gate)


def expected_swiglu(params: dict[str, Any], x: Any) -> Any:
    gate, up = np.split(linear(params, "up", x, 2 * WIDTH), 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


# -- kernels in place of operators ---------------------------------------------------------------


def test_a_gated_mlp_becomes_kernels_alone() -> None:
    lowered = lower_small(lambda model, x: x + model.down(swiglu(model, model.norm(x))))
    assert None not in lowered.tags.values()
    builders = ["rms_norm", "linear", "silu_mul", "linear_dense", "take_rows"]
    assert [name.rstrip("0123456789") for name in kernels_of(lowered)] == builders
    found, params, x, wanted = run_small(lowered)
    hidden = x + linear(params, "down", expected_swiglu(params, normed(params, x)), WIDTH)
    expect_rows(found, hidden, wanted)


def test_a_gate_may_be_the_second_factor() -> None:
    assert "silu_mul" in kernels_of(lower_small(swiglu_other_way))


def test_a_gate_of_two_other_halves_is_left_alone() -> None:
    def body(model: Any, x: Tensor) -> Tensor:
        gate, up = op.split(model.up(x), 2, axis=-1)
        return op.silu(up) * gate

    lowered = lower_small(body)
    assert "silu_mul" not in kernels_of(lowered)
    assert None in lowered.tags.values()


def test_vectors_are_not_taken_for_rows() -> None:
    """One-dimensional tensors have no rows; the pass must leave them alone."""
    builder = relax.BlockBuilder()
    left = relax.Var("left", relax.TensorType((WIDTH,), "float32"))
    right = relax.Var("right", relax.TensorType((WIDTH,), "float32"))
    with builder.function("main", [left, right]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.add(left, right)))
        builder.emit_func_output(out)
    source = lowering_input(Small(lambda model, x: x))
    after = lower_nn_ops(builder.finalize(), source.kernels)
    values = [binding.value for binding in single_block(after["main"]).bindings]
    assert [str(value.op.name) for value in values if isinstance(value, relax.Call)] == [
        "relax.add"
    ]


# -- fusion --------------------------------------------------------------------------------------


def test_a_product_adds_the_residual_itself() -> None:
    lowered = lower_small(lambda model, x: model.down(x) + x)
    assert "add" not in kernels_of(lowered)


def test_a_product_with_a_second_use_is_not_fused() -> None:
    def body(model: Any, x: Tensor) -> Tensor:
        y = model.down(x)
        return model.norm(y) + (y + x)

    lowered = lower_small(body)
    assert kernels_of(lowered).count("add") == 2
    found, params, x, wanted = run_small(lowered)
    y = linear(params, "down", x, WIDTH)
    expect_rows(found, normed(params, y) + (y + x), wanted)


def test_a_product_added_to_itself_is_not_fused() -> None:
    def body(model: Any, x: Tensor) -> Tensor:
        y = model.down(x)
        return y + y

    assert kernels_of(lower_small(body)).count("add") == 1


def test_a_chain_of_residuals_is_fused_link_by_link() -> None:
    lowered = lower_small(lambda model, x: (x + model.down(x)) + model.down(model.norm(x)))
    assert "add" not in kernels_of(lowered)
    found, params, x, wanted = run_small(lowered)
    hidden = x + linear(params, "down", x, WIDTH)
    hidden = hidden + linear(params, "down", normed(params, x), WIDTH)
    expect_rows(found, hidden, wanted)


def test_activations_are_quantized_where_they_are_made() -> None:
    lowered = lower_small(
        lambda model, x: x + model.down(swiglu(model, model.norm(x))), scheme="q4f16_1"
    )
    names = kernels_of(lowered)
    assert [name for name in names if "norm" in name or "silu" in name or "quant" in name] == [
        "rms_norm_quantize",
        "silu_mul_quantize",
    ]


def test_activations_with_a_second_use_stay_floats() -> None:
    def body(model: Any, x: Tensor) -> Tensor:
        y = model.norm(x)
        return model.down(y) + y

    names = kernels_of(lower_small(body, scheme="q4f16_1"))
    assert names[:2] == ["rms_norm", "quantize_rows"]
    assert "rms_norm_quantize" not in names


def test_rows_cut_by_a_reshape_are_not_quantized_whole() -> None:
    """Groups of 32 columns would be others: the fused kernel would compute something else."""

    class Cut(Small):
        def __init__(self) -> None:
            super().__init__(None)
            self.half = Linear(WIDTH // 2, WIDTH)

        def batch_prefill(self, input_embeds: Tensor, logit_positions: Tensor) -> Tensor:
            y = self.norm(input_embeds)
            halves = self.half(op.reshape(y, (1, y.shape[1] * 2, WIDTH // 2)))
            return select_rows(halves, logit_positions)

    lowered = lower_model(lowering_input(Cut(), scheme="q4f16_1"))
    assert kernels_of(lowered)[:2] == ["rms_norm", "quantize_rows"]


# -- default schedules ---------------------------------------------------------------------------


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def default_scripts(lowered: Lowered) -> dict[str, str]:
    prefix = lowered.plan["symbol_prefix"]
    functions = {gvar.name_hint: func for gvar, func in lowered.kernels.functions.items()}
    return {
        name: functions[prefix + name].script() for name, tag in lowered.tags.items() if tag is None
    }


def test_what_no_kernel_covers_is_scheduled_and_right() -> None:
    lowered = lower_small(lambda model, x: op.gelu(x) * model.vector)
    scripts = default_scripts(lowered)
    assert scripts
    for script in scripts.values():
        assert "T.parallel" in script
        assert "T.vectorized" in script
        assert "T.where" not in script  # a bound check would take the vectors apart
    found, params, x, wanted = run_small(lowered)
    expect_rows(found, gelu(x) * params["vector"], wanted)


def test_a_reduction_is_scheduled_and_right() -> None:
    def body(model: Any, x: Tensor) -> Tensor:
        return x * op.sum(op.exp(x), axis=-1, keepdims=True)

    lowered = lower_small(body)
    assert any("T.parallel" in script for script in default_scripts(lowered).values())
    found, _, x, wanted = run_small(lowered)
    expect_rows(found, x * np.exp(x).sum(axis=-1, keepdims=True), wanted)


def test_a_kernel_gets_shape_variables_that_no_buffer_gives() -> None:
    def body(model: Any, x: Tensor) -> Tensor:
        rows = x.shape[1]
        halves = op.reshape(x, (1, rows * 2, WIDTH // 2))
        halves = op.gelu(halves) * op.exp(halves)  # two operators, to be fused to one kernel
        return op.reshape(halves, (1, rows, WIDTH))

    lowered = lower_small(body)
    (function,) = (f for f in lowered.plan["functions"] if f["name"] == "batch_prefill")
    assert any(arg[0] == "i" for _, args in function["calls"] for arg in args)
    found, _, x, wanted = run_small(lowered)
    expect_rows(found, gelu(x) * np.exp(x), wanted)


def test_odd_widths_are_vectorized_with_what_divides_them() -> None:
    lowered = lower_small(
        lambda model, x: op.pad(op.gelu(op.split(x, [20], axis=-1)[0]), [0, 0, 0, 0, 0, 28])
    )
    found, _, x, wanted = run_small(lowered)
    hidden = np.concatenate([gelu(x[:, :20]), np.zeros((len(x), 28))], axis=-1)
    expect_rows(found, hidden, wanted)


# -- whole models --------------------------------------------------------------------------------


def llama_input(
    config: LlamaConfig, variant: str = "avx2", scheme: str = "q4f16_1", limits: Limits = LIMITS
) -> LoweringInput:
    return lowering_input(
        llama.Model(config),
        llama.attention_spec(config),
        variant=variant,
        scheme=scheme,
        limits=limits,
        vocab_size=config.vocab_size,
    )


def lower_llama(config: LlamaConfig, variant: str = "avx2", scheme: str = "q4f16_1") -> Lowered:
    return lower_model(llama_input(config, variant, scheme))


def output_bytes(plan: dict[str, Any]) -> int:
    total = 0
    for function in plan["functions"]:
        numbers = {i: plan["bounds"][name] for i, name in enumerate(function["vars"])}
        for index in function["outputs"]:
            _, _, _, dtype, shape = function["tensors"][index]
            sizes = [evaluate(tuple(function["exprs"][i]), numbers) for i in shape]
            total += align(math.prod(sizes) * np.dtype(dtype).itemsize)
    return total


SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "output_bias": True, "mlp_bias": True},
    "gqa7": {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 128},
    "gqa8": {"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 80},
    "narrow": {"head_dim": 72},  # 512-bit vectors do not divide it
    "odd": {"hidden_size": 100, "intermediate_size": 90, "vocab_size": 509},
    "square": {"hidden_size": 128, "intermediate_size": 128},  # layers of equal shapes
}


KINDS = (
    ("avx512vnni", "q4f16_1"),
    ("avx2-float", "q4f32_1"),
    ("avx2", "q0f16"),
    ("amx", "q8f16_1"),
)


@pytest.mark.parametrize(
    ("shape", "variant", "scheme"),
    [
        *((shape, *KINDS[index % 2]) for index, shape in enumerate(SHAPES)),
        *(("odd", *kind) for kind in KINDS[1:]),
    ],
)
def test_every_shape_lowers_to_kernels_alone(shape: str, variant: str, scheme: str) -> None:
    config = replace(tiny_config(), **SHAPES[shape])
    lowered = lower_llama(config, variant, scheme)
    plan = lowered.plan
    assert None not in lowered.tags.values()
    assert [f["name"] for f in plan["functions"]] == ["embed", "batch_prefill"]
    assert_kernels_used_once(lowered)
    assert_params_used(plan)
    assert_outputs_apart(plan)
    assert {name for f in plan["functions"] for name in f["vars"]} <= set(plan["bounds"])
    layers = {t[1] for f in plan["functions"] for t in f["tensors"] if t[0] == "kv"}
    assert layers == set(range(config.num_hidden_layers))


def assert_kernels_used_once(lowered: Lowered) -> None:
    plan = lowered.plan
    used = {call[0] for function in plan["functions"] for call in function["calls"]}
    assert used == set(range(len(plan["kernels"])))
    tags = [str(func.attrs["mlcb.kernel"]) for func in lowered.kernels.functions.values()]
    assert len(tags) == len(set(tags)) == len(plan["kernels"]), "one kernel per distinct shape"


def assert_params_used(plan: dict[str, Any]) -> None:
    read = {
        function["tensors"][ref][1]
        for function in plan["functions"]
        for _, args in function["calls"]
        for kind, ref in args
        if kind == "t" and function["tensors"][ref][0] == "param"
    }
    assert read == set(range(len(plan["params"])))


def assert_outputs_apart(plan: dict[str, Any]) -> None:
    """Nothing of one function lies where another's outputs are."""
    for function in plan["functions"]:
        numbers = {i: plan["bounds"][name] for i, name in enumerate(function["vars"])}
        for index in function["outputs"]:
            _, _, begin, dtype, shape = function["tensors"][index]
            sizes = [evaluate(tuple(function["exprs"][i]), numbers) for i in shape]
            end = begin + math.prod(sizes) * np.dtype(dtype).itemsize
            for other in plan["functions"]:
                if other is function:
                    continue
                for offset, nbytes, _, _ in buffers_of(plan, other):
                    assert end <= offset or offset + nbytes <= begin


def test_a_head_size_without_a_kernel_names_the_variant_of_kernels() -> None:
    config = replace(tiny_config(), head_dim=38)
    with pytest.raises(StageError, match=r"no paged_attention kernel .*38") as caught:
        lower_llama(config, "avx2")
    assert caught.value.why is not None
    assert "multiples" in caught.value.why


def test_steps_of_one_row_and_batches_beyond_the_chunk() -> None:
    limits = Limits(context_window_size=20, prefill_chunk_size=1, max_batch_size=4)
    plan = lower_model(llama_input(tiny_config(), limits=limits)).plan
    assert plan["bounds"] == {
        "seq_len": 1,
        "logit_rows": 4,
        "kv_pages": 8,
        "kv_nnz": 8,
        "rope_positions": 20,
    }


def test_a_shape_over_an_unknown_variable_is_refused() -> None:
    class Renamed(Small):
        def get_spec(self) -> Any:
            packed = {"param_mode": "packed", "effect_mode": "none"}
            tensor = nn.spec.Tensor
            return nn.spec.ModuleSpec.from_raw(
                {
                    "embed": {"input_ids": tensor(["tokens"], "int32"), "$": packed},
                    "batch_prefill": {
                        "input_embeds": tensor([1, "seq_len", WIDTH], "float32"),
                        "logit_positions": tensor(["logit_rows"], "int32"),
                        "$": packed,
                    },
                },
                self,
            )

    with pytest.raises(InternalError, match="embed: a shape depends on tokens"):
        lower_model(lowering_input(Renamed(lambda model, x: x)))


def test_control_flow_is_refused() -> None:
    source = lowering_input(Small(lambda model, x: x))
    func = source.mod["embed"]
    blocks = list(func.body.blocks)
    split = relax.Function(
        func.params,
        relax.SeqExpr([*blocks, relax.BindingBlock([])], func.body.body),
        func.ret_ty,
    )
    with pytest.raises(InternalError, match="one dataflow block"):
        FunctionEditor(split)


def test_equal_arguments_give_the_same_kernel() -> None:
    kernels = lowering_input(Small(lambda model, x: x)).kernels
    first = tagged(kernels, "add", width=WIDTH)
    assert tagged(kernels, "add", width=WIDTH) is first
    tag = KernelTag("add", (("width", WIDTH),))
    assert tag.with_args(width=7).get("width") == 7


def test_ir_is_dumped_once_per_phase(tmp_path: Path) -> None:
    lower_model(llama_input(tiny_config()), tmp_path / "ir")
    names = sorted(path.name for path in (tmp_path / "ir").iterdir())
    phases = ["export", "select", "convert", "fuse", "legalize", "schedule"]
    assert names == [f"{i:02d}-{phase}.py" for i, phase in enumerate(phases)]
    assert "rms_norm_quantize" in (tmp_path / "ir" / "03-fuse.py").read_text(encoding="utf-8")


def test_the_symbol_prefix_follows_the_content() -> None:
    first = lower_llama(tiny_config()).plan
    again = lower_llama(tiny_config()).plan
    deeper = lower_llama(replace(tiny_config(), num_hidden_layers=3)).plan
    assert first == again
    assert first["symbol_prefix"] != deeper["symbol_prefix"]
    assert first["kernels"] == deeper["kernels"]


DIGESTS = """
import hashlib, json, tempfile
from pathlib import Path
import tvm
from tests.unit.plan_runner import TARGET
from tests.unit.test_passes import lower_llama, lower_small, op, tiny_config
lowered = lower_llama(tiny_config(), "avx2", "q4f16_1")
small = lower_small(lambda model, x: op.gelu(model.norm(x)) + x, scheme="q4f16_1")
plan = json.dumps(lowered.plan, sort_keys=True)
kernels = tvm.ir.save_json(lowered.kernels)
target = tvm.target.Target({"kind": "llvm", "mtriple": TARGET.triple, "mcpu": "x86-64-v3"})
library = tvm.compile(tvm.ir.load_json(tvm.ir.save_json(small.kernels)), target)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "kernels.o"
    getattr(library, "mod", library).write_to_file(str(path), "o")
    data = path.read_bytes()
print([hashlib.sha256(part).hexdigest() for part in (plan.encode(), kernels.encode(), data)])
"""


def test_two_processes_make_the_same_bytes(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", DIGESTS]
    runs = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, folder in (("1", tmp_path), ("2", root))
    ]
    outputs = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""


def test_the_plan_is_plain_json() -> None:
    plan = lower_llama(tiny_config()).plan
    assert json.loads(json.dumps(plan)) == plan
    assert hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
