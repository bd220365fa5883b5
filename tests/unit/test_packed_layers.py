"""Layers over packed weights: what a scheme stores is what the kernels of a plan compute with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlcbuild.nn.layers import Embedding, Linear, select_rows
from mlcbuild.passes.lower_model import Lowered, lower_model
from mlcbuild.quant import groupwise
from mlcbuild.quant.quantize import layout_of, pack_params, quantize_checkpoint
from mlcbuild.quant.schemes import SCHEMES
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.dtypes import numpy_dtype
from mlcbuild.weights.mapping import ParamRule
from mlcbuild.weights.reader import open_params
from tests.contract.memory_checkpoint import MemoryCheckpoint, random_checkpoint
from tests.unit.kernel_runner import Array
from tests.unit.plan_runner import PlanRunner, lowering_input

WIDTH, VOCAB = 48, 40
RULES = [
    ParamRule("table.weight", ("table",), "one", "embedding", ((VOCAB, WIDTH),)),
    ParamRule("down.weight", ("down",), "one", "linear", ((WIDTH, WIDTH),)),
]


class Model(nn.Module):  # type: ignore[misc]
    """A table, and a linear layer with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(VOCAB, WIDTH)
        self.down = Linear(WIDTH, WIDTH)

    def embed(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids)

    def batch_prefill(self, input_embeds: Tensor, logit_positions: Tensor) -> Tensor:
        return select_rows(input_embeds + self.down(input_embeds), logit_positions)

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


def lowered(scheme: QuantScheme, activations: str) -> Lowered:
    variant = "avx2-float" if scheme.is_integer and activations == "float" else "avx2"
    return lower_model(lowering_input(Model(), scheme=scheme.name, variant=variant))


def stored(checkpoint: MemoryCheckpoint, scheme: QuantScheme, folder: Path) -> dict[str, Array]:
    quantize_checkpoint(checkpoint, RULES, scheme, folder / "nk")
    pack_params(folder / "nk", scheme, layout_of(scheme), folder / "packed")
    params = open_params(folder / "packed")
    return {name: params.read(name) for name in params.tensors}


def meant(values: Array, scheme: QuantScheme) -> Array:
    """The float64 weights that a scheme stores for some."""
    if scheme.is_integer:
        return groupwise.dequantize(groupwise.quantize(values, scheme), scheme).astype("float64")
    return values.astype(numpy_dtype(scheme.weight_dtype)).astype("float64")


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_a_plan_computes_with_the_stored_weights(scheme: QuantScheme, tmp_path: Path) -> None:
    checkpoint = random_checkpoint(RULES)
    params = stored(checkpoint, scheme, tmp_path)
    table, down = (meant(checkpoint.tensors[name], scheme) for name in ("table", "down"))
    ids, wanted = np.array([39, 0, 17], np.int32), np.array([2, 0], np.int32)
    for activations, tolerance in (("float", 1e-6), ("int8", 0.01))[: 1 + scheme.is_integer]:
        plan = lowered(scheme, activations)
        assert [f["name"] for f in plan.plan["functions"]] == ["embed", "batch_prefill"]
        assert "add" not in plan.plan["kernels"], "the residual is the linear kernel's"
        runner = PlanRunner(plan, params)
        (rows,) = runner.run("embed", [ids], seq_len=3, logit_rows=2)
        np.testing.assert_allclose(rows, table[ids], rtol=1e-6)
        inputs = [rows[None], wanted]
        (found,) = runner.run("batch_prefill", inputs, seq_len=3, logit_rows=2)
        expected = (table[ids] + table[ids] @ down.T)[wanted]
        assert np.abs(found[0] - expected).max() < tolerance
