"""What a bundle for browsers must compute: its own params and functions, on this machine's CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from mlcbuild.passes.compile_web import compile_web
from mlcbuild.quant.schemes import SCHEMES
from mlcbuild.spec.limits import Limits
from tests.unit.kernel_runner import Array
from tests.unit.web_runner import CPU, PAGE_SIZE, module_of


class Reference:
    """Logits of the model in a bundle; ``config`` is its config.json."""

    def __init__(self, bundle: Path, config: Mapping[str, Any]) -> None:
        settings = json.loads((bundle / "mlc-chat-config.json").read_bytes())
        scheme = SCHEMES[settings["quantization"]]
        self._limits = Limits(
            settings["context_window_size"],
            settings["prefill_chunk_size"],
            max_batch_size=1,
            kv_dtype=scheme.kv_dtype,
        )
        module = module_of(config, scheme, CPU, self._limits)
        record = json.loads(str(module["_metadata"].body.body.value))
        held = read_params(bundle)
        self._params = [tvm.runtime.tensor(held[param["name"]]) for param in record["params"]]
        self._vm = relax.VirtualMachine(compile_web(module, CPU), tvm.cpu())

    def logits(self, tokens: Sequence[int], prompt: int) -> Array:
        """float32 [tokens - prompt + 1, vocabulary], behind the last of the prompt and each later.

        The prompt goes in chunk by chunk, the others one at a time.
        """
        limits = self._limits
        sizes = (1, limits.context_window_size, limits.prefill_chunk_size, PAGE_SIZE, 0)
        cache = self._vm["create_tir_paged_kv_cache"](
            *(tvm.runtime.ShapeTuple([size]) for size in sizes)
        )
        call(cache, "add_sequence", 0)
        chunk = limits.prefill_chunk_size
        for start in range(0, prompt, chunk):
            row = self._step(cache, tokens[start : min(start + chunk, prompt)])
        return np.stack([row, *(self._step(cache, [token]) for token in tokens[prompt:])])

    def _step(self, cache: Any, tokens: Sequence[int]) -> Array:
        count = len(tokens)
        embeds = self._vm["embed"](tvm.runtime.tensor(np.array(tokens, np.int32)), self._params)
        rows = tvm.runtime.tensor(embeds.numpy()[None])
        call(cache, "begin_forward", tvm.runtime.ShapeTuple([0]), tvm.runtime.ShapeTuple([count]))
        if count == 1:
            result = self._vm["batch_decode"](rows, cache, self._params)
        else:
            last = tvm.runtime.tensor(np.array([count - 1], np.int32))
            result = self._vm["batch_prefill"](rows, last, cache, self._params)
        call(cache, "end_forward")
        logits: Array = result[0].numpy().reshape(-1)
        return logits


def call(cache: Any, name: str, *args: Any) -> None:
    """A function of TVM's for caches."""
    tvm.get_global_func(f"vm.builtin.kv_state_{name}")(cache, *args)


def read_params(bundle: Path) -> dict[str, Array]:
    """The tensors in a bundle's shards, by name."""
    found = {}
    for shard in json.loads((bundle / "tensor-cache.json").read_bytes())["records"]:
        data = (bundle / shard["dataPath"]).read_bytes()
        for record in shard["records"]:
            piece = data[record["byteOffset"] : record["byteOffset"] + record["nbytes"]]
            found[record["name"]] = np.frombuffer(piece, record["dtype"]).reshape(record["shape"])
    return found
