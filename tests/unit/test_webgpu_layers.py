"""Layers over rows of weights with the schedules of a GPU, on a software one, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlcbuild.nn.layers import Embedding, Linear
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

# A last group that is not full, and rows that no tile divides.
WIDTH, OUT, VOCAB = 176, 100, 70
RULES = [
    ParamRule("table.weight", ("table",), "one", "embedding", ((VOCAB, WIDTH),)),
    ParamRule("down.weight", ("down",), "one", "linear", ((OUT, WIDTH),)),
    ParamRule("down.bias", ("bias",), "one", "bias", ((OUT,),)),
]


class Model(nn.Module):  # type: ignore[misc]
    """A table, and a linear layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(VOCAB, WIDTH)
        self.down = Linear(WIDTH, OUT, bias=True)

    def embed(self, ids: Tensor) -> Tensor:
        return self.table(ids)

    def linear(self, x: Tensor) -> Tensor:
        return self.down(x)


def kernels(scheme: QuantScheme, rows: int) -> Any:
    """The module with scheduled kernels, for so many rows."""
    model = Model()
    rewrite_layers(model, RowPacking(scheme))
    packed = {"param_mode": "packed", "effect_mode": "none"}
    spec = nn.spec.ModuleSpec.from_raw(
        {
            "embed": {"ids": nn.spec.Tensor([rows], "int32"), "$": packed},
            "linear": {"x": nn.spec.Tensor([1, rows, WIDTH], "float32"), "$": packed},
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
    table, down = (meant(checkpoint.tensors[source], scheme) for source in ("table", "down"))
    module = kernels(scheme, rows)
    ids = np.arange(rows, dtype=np.int32) * 7 % VOCAB
    found = run_function(module, "embed", [ids, stored])
    np.testing.assert_allclose(found, table[ids], rtol=1e-6)
    x = np.random.default_rng(0).standard_normal((1, rows, WIDTH), np.float32)
    found = run_function(module, "linear", [x, stored])
    expected = x.astype(np.float64) @ down.T + checkpoint.tensors["bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
