"""Runs a web module on this machine's CPU, as the browser's client would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from mlcbuild.arch.registry import get_architecture
from mlcbuild.passes.compile_web import compile_web
from mlcbuild.passes.web_model import WebInput, build_web_module
from mlcbuild.quant.layers import rewrite_layers
from mlcbuild.quant.quantize import quantize_checkpoint
from mlcbuild.quant.row_layers import RowPacking
from mlcbuild.spec.kv import Window
from mlcbuild.spec.limits import Limits
from mlcbuild.spec.scheme import QuantScheme
from mlcbuild.weights.mapping import CheckpointLike
from mlcbuild.weights.reader import open_params
from tests.parity import tiny_llama
from tests.unit.kernel_runner import Array

LIMITS = Limits(context_window_size=64, prefill_chunk_size=32, max_batch_size=1)
CPU = tvm.target.Target({"kind": "llvm"})
PAGE_SIZE = 16


def web_module(variant: str, scheme: QuantScheme, target: Any, *, window: int = 0) -> Any:
    """The web module of a variant of ``tests.parity.tiny_llama``."""
    limits = replace(LIMITS, kv_dtype=scheme.kv_dtype)
    return module_of(tiny_llama.VARIANTS[variant], scheme, target, limits, window=window)


def module_of(
    hf_config: Mapping[str, Any],
    scheme: QuantScheme,
    target: Any,
    limits: Limits,
    *,
    window: int = 0,
) -> Any:
    """The web module of a model with this config.json."""
    config = dict(hf_config)
    architecture = get_architecture(config["model_type"])
    parsed = architecture.config.read_config(config)
    model = architecture.model.Model(parsed)
    rewrite_layers(model, RowPacking(scheme))
    attention = replace(architecture.model.attention_spec(parsed), window=Window(window))
    return build_web_module(
        WebInput(
            model=model,
            attention=attention,
            limits=limits,
            model_type=config["model_type"],
            scheme=scheme.name,
            vocab_size=parsed.vocab_size,
        ),
        target,
    )


def stored_params(
    checkpoint: CheckpointLike, variant: str, scheme: QuantScheme, folder: Path
) -> dict[str, Array]:
    """The params of a web bundle, by name."""
    config = dict(tiny_llama.VARIANTS[variant])
    architecture = get_architecture(config["model_type"])
    rules = architecture.weights.param_rules(architecture.config.read_config(config))
    quantize_checkpoint(checkpoint, rules, scheme, folder)
    params = open_params(folder)
    return {name: params.read(name) for name in params.tensors}


def on_cpu(module: Any) -> Any:
    """The executable of a web module for this machine's CPU."""
    return compile_web(module, CPU)


class WebRunner:
    """One sequence of a web module's executable."""

    def __init__(self, executable: Any, params: dict[str, Array]) -> None:
        self.vm = relax.VirtualMachine(executable, tvm.cpu())
        self._params = [tvm.runtime.tensor(np.ascontiguousarray(v)) for v in params.values()]
        sizes = (1, LIMITS.context_window_size, LIMITS.prefill_chunk_size, PAGE_SIZE, 0)
        shapes = [tvm.runtime.ShapeTuple([size]) for size in sizes]
        self._cache = self.vm["create_tir_paged_kv_cache"](*shapes)
        self._call("add_sequence", 0)

    def _call(self, name: str, *args: Any) -> None:
        tvm.get_global_func(f"vm.builtin.kv_state_{name}")(self._cache, *args)

    def step(self, ids: Array) -> Array:
        """The logits float32 [vocab] behind the last of ``ids``."""
        count = len(ids)
        tokens = tvm.runtime.tensor(np.ascontiguousarray(ids, np.int32))
        rows = self.vm["embed"](tokens, self._params).numpy()
        embeds = tvm.runtime.tensor(rows[None])
        self._call("begin_forward", tvm.runtime.ShapeTuple([0]), tvm.runtime.ShapeTuple([count]))
        if count == 1:
            result = self.vm["batch_decode"](embeds, self._cache, self._params)
        else:
            last = tvm.runtime.tensor(np.array([count - 1], np.int32))
            result = self.vm["batch_prefill"](embeds, last, self._cache, self._params)
        self._call("end_forward")
        logits: Array = result[0].numpy().reshape(-1)
        return logits
