"""Layers over rows of weights with the schedules of a GPU, on a software one, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlcbuild.nn.layers import Embedding, GatedMLP, Linear
from mlcbuild.passes.schedule_linear import generic_products
from mlcbuild.quant import groupwise
from mlcbuild.quant.layers import rewrite_layers
from mlcbuild.quant.quantize import quantize_checkpoint
from mlcbuild.quant.row_layers import RowPacking
from mlcbuild.quant.schemes import SCHEMES
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.mapping import ParamRule
from mlcbuild.weights.reader import open_params
from tests.contract.memory_checkpoint import random_checkpoint
from tests.unit.kernel_runner import Array
from tests.unit.wgsl_runner import run_function, scheduled

# A last group that is not full, columns that no vector divides, more than one chunk of a row, and
# rows that no tile divides.
WIDTH, ODD, LONG, OUT, VOCAB = 176, 45, 2080, 100, 70
SHAPES = {"table": (VOCAB, WIDTH), "down": (OUT, WIDTH), "odd": (18, ODD), "long": (9, LONG)}
RULES = [
    ParamRule("table.weight", ("table",), "one", "embedding", (SHAPES["table"],)),
    ParamRule("down.weight", ("down",), "one", "linear", (SHAPES["down"],)),
    ParamRule("down.bias", ("bias",), "one", "bias", ((OUT,),)),
    ParamRule("odd.weight", ("odd",), "one", "linear", (SHAPES["odd"],)),
    ParamRule("long.weight", ("long",), "one", "linear", (SHAPES["long"],)),
    ParamRule("mlp.gate_up_proj.weight", ("gate_up",), "one", "linear", ((2 * ODD, ODD),)),
    ParamRule("mlp.gate_up_proj.bias", ("gate_up_bias",), "one", "bias", ((2 * ODD,),)),
    ParamRule("mlp.down_proj.weight", ("mlp_down",), "one", "linear", ((ODD, ODD),)),
    ParamRule("mlp.down_proj.bias", ("mlp_down_bias",), "one", "bias", ((ODD,),)),
]


class Model(nn.Module):  # type: ignore[misc]
    """A table, and layers with what follows them in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(VOCAB, WIDTH)
        self.down = Linear(WIDTH, OUT, bias=True)
        self.odd = Linear(ODD, 18)
        self.long = Linear(LONG, 9)
        self.mlp = GatedMLP(ODD, ODD, bias=True)

    def embed(self, ids: Tensor) -> Tensor:
        return self.table(ids)

    def linear(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + self.down(x)

    def narrow(self, x: Tensor) -> Tensor:
        return self.odd(x).astype("float16")

    def chunks(self, x: Tensor) -> Tensor:
        return self.long(x)

    def gated(self, x: Tensor) -> Tensor:
        return self.mlp(x)


def kernels(scheme: QuantScheme, rows: int) -> Any:
    """The module with scheduled kernels, for so many rows."""
    model = Model()
    rewrite_layers(model, RowPacking(scheme))
    packed = {"param_mode": "packed", "effect_mode": "none"}

    def rows_of(width: int) -> Any:
        return nn.spec.Tensor([1, rows if rows == 1 else "rows", width], "float32")

    spec = nn.spec.ModuleSpec.from_raw(
        {
            "embed": {"ids": nn.spec.Tensor([rows], "int32"), "$": packed},
            "linear": {"x": rows_of(WIDTH), "residual": rows_of(OUT), "$": packed},
            "narrow": {"x": rows_of(ODD), "$": packed},
            "chunks": {"x": rows_of(LONG), "$": packed},
            "gated": {"x": rows_of(ODD), "$": packed},
        },
        model,
    )
    mod, _ = model.export_tvm(spec=spec)
    return scheduled(mod)


def meant(values: Array, scheme: QuantScheme) -> Array:
    """The float64 weights that a scheme stores for some."""
    if scheme.is_integer:
        return groupwise.dequantize(groupwise.quantize(values, scheme), scheme).astype("float64")
    return values.astype(scheme.weight_dtype).astype("float64")


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("name", ["q0f32", "q0f16", "q4f32_1", "q4f16_1"])
def test_layers_compute_with_the_stored_weights(name: str, rows: int, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    checkpoint = random_checkpoint(RULES)
    quantize_checkpoint(checkpoint, RULES, scheme, tmp_path / "nk")
    params = open_params(tmp_path / "nk")
    stored = [np.array(params.read(tensor)) for tensor in params.tensors]
    source = checkpoint.tensors
    module = kernels(scheme, rows)
    assert generic_products(module) == {}
    rng = np.random.default_rng(0)

    def check(function: str, width: int, expected: Callable[[Array], Array], *more: Array) -> None:
        x = rng.standard_normal((1, rows, width), np.float32)
        found = run_function(module, function, [x, *more, stored])
        tolerance = 1e-2 if found.dtype == np.float16 else 2e-4
        np.testing.assert_allclose(found, expected(x), rtol=tolerance, atol=tolerance)

    def times(x: Array, weights: str) -> Array:
        product: Array = x.astype(np.float64) @ meant(source[weights], scheme).T
        return product

    def mlp(x: Array) -> Array:
        gate, up = np.split(times(x, "gate_up") + source["gate_up_bias"], 2, axis=-1)
        hidden = gate / (1 + np.exp(-gate)) * up
        result: Array = times(hidden, "mlp_down") + source["mlp_down_bias"]
        return result

    ids = np.arange(rows, dtype=np.int32) * 7 % VOCAB
    found = run_function(module, "embed", [ids, stored])
    np.testing.assert_allclose(found, meant(source["table"], scheme)[ids], rtol=1e-6)
    residual = rng.standard_normal((1, rows, OUT), np.float32)
    check("linear", WIDTH, lambda x: times(x, "down") + source["bias"] + residual, residual)
    check("narrow", ODD, lambda x: times(x, "odd"))
    check("chunks", LONG, lambda x: times(x, "long"))
    check("gated", ODD, mlp)


def test_a_product_without_a_kernel_says_why() -> None:
    module = kernels(SCHEMES["q8f16_1"], 1)
    reasons = generic_products(module)
    assert set(reasons.values()) == {"the weights are codes of 8 bits in groups of 32"}
