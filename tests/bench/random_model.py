"""Llama checkpoints of random weights, for measuring speed at sizes that no test downloads.

    python tests/bench/random_model.py FOLDER [--layers 16] [--hidden 2048] ...

Writes FOLDER/hf (float16 safetensors, config, a byte-level tokenizer), FOLDER/recipe.toml, which
builds it in q4f16_1, and FOLDER/q4_0.gguf with the same weights for llama.cpp. The defaults make
"rand1b": 1.1 B parameters, untied. Every matrix of the GGUF file is Q4_0, the output too, which
llama.cpp's own tool keeps at 6 bits: a little faster than what its users have. A second run does
nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from gguf import TokenType
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))  # for "tests.", when run as a script

from mlcbuild.arch.llama.config import LlamaConfig
from tests.parity.tiny_llama import MERGES, write_tokenizer
from tests.unit.tiny_checkpoint import random_tensors, save_folder, save_gguf

RECIPE = """\
schema = 1
name = "random"

[model]
source = {source}

[quantization]
schemes = ["q4f16_1"]

[targets]
names = ["linux-x86_64-cpu"]

[runtime]
context_window_size = {context}
prefill_chunk_size = 512
max_batch_size = 8
"""


def write_model(folder: Path, config: LlamaConfig, seed: int) -> None:
    """Everything that the module's text names, below ``folder``."""
    tensors = random_tensors(config, seed, np.float16)
    save_folder(folder / "hf", tensors, config)
    write_tokenizer(folder / "hf")
    tokenizer = Tokenizer.from_file(str(folder / "hf" / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(number) or "" for number in range(size)]
    tokens += [f"[{number}]" for number in range(size, config.vocab_size)]
    types = [TokenType.NORMAL] * size + [TokenType.UNUSED] * (config.vocab_size - size)
    path = folder / "q4_0.gguf"
    save_gguf(path, tensors, config, tokens, types, MERGES.split(","), quantization="Q4_0")
    source = json.dumps(str((folder / "hf").resolve()))
    recipe = RECIPE.format(source=source, context=config.max_position_embeddings)
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for name, default in (
        ("layers", 16),
        ("hidden", 2048),
        ("heads", 32),
        ("kv-heads", 8),
        ("ffn", 8192),
        ("vocab", 32000),
        ("context", 8192),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    config = LlamaConfig(
        vocab_size=options.vocab,
        hidden_size=options.hidden,
        intermediate_size=options.ffn,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.hidden // options.heads,
        rms_norm_eps=1e-5,
        max_position_embeddings=options.context,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_ids=(0,),
    )
    ready = options.folder / "ready.txt"
    wanted = f"{config} {options.seed}"
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return
    ready.unlink(missing_ok=True)
    # What others made of the model that was here.
    (options.folder / "q4_k_m.gguf").unlink(missing_ok=True)
    shutil.rmtree(options.folder / "ort-int4", ignore_errors=True)
    write_model(options.folder, config, options.seed)
    ready.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
