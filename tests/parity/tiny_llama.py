"""Tiny random checkpoints of the Llama family that tests rebuild bit for bit without torch.

``VARIANTS`` are Hugging Face configs; ``weights(variant)`` makes the tensors from a fixed seed;
``write_checkpoint(folder, variant)`` writes a complete Hugging Face folder. The logits of
transformers for ``token_ids()`` lie in tests/data/reference/tiny_llama.npz, float32 [48, 512] under
the keys ``logits_<variant>``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SEED = 20261130
TOKENS = 48  # length of the reference input
AMPLITUDE = 0.2  # of the uniform weights; keeps logits of order one

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# Rope settings in the three spellings that checkpoints in the wild use: transformers 5's
# rope_parameters, transformers 4's rope_scaling with rope_type, and the older one with type.
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": BASE | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "untied": BASE | {"rope_theta": 10000.0, "tie_word_embeddings": False},
    "attention_bias": BASE | {"rope_theta": 500000.0, "attention_bias": True},
    "rope_llama3": BASE
    | {
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            # Small, so that 16 dimensions reach all three branches of the rule.
            "original_max_position_embeddings": 64,
        },
    },
    "rope_linear": BASE
    | {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen2": {
        key: value for key, value in BASE.items() if key not in ("attention_bias", "mlp_bias")
    }
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 32768,
    },
    # A window shorter than a page and no divisor of one.
    "mistral": {
        key: value for key, value in BASE.items() if key not in ("attention_bias", "mlp_bias")
    }
    | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "rope_theta": 10000.0,
        "sliding_window": 11,
    },
}


def weights(variant: str) -> dict[str, npt.NDArray[np.float32]]:
    """Float32 tensors of a variant under their Hugging Face names, in a fixed order.

    Uniform draws of the legacy generator: its stream is frozen and needs no libm, so that every
    numpy on every machine gives the same bits.
    """
    config = VARIANTS[variant]
    random = np.random.RandomState(SEED)

    def uniform(*shape: int) -> npt.NDArray[np.float32]:
        return ((random.random_sample(shape) * 2 - 1) * AMPLITUDE).astype(np.float32)

    attention_bias = config.get("attention_bias", False)
    biased = "qkv" if config["model_type"] == "qwen2" else "qkvo" * attention_bias
    hidden, ffn, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query = config["num_attention_heads"] * head_dim
    key_value = config["num_key_value_heads"] * head_dim
    tensors = {"model.embed_tokens.weight": uniform(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        projections = {"q": (query, hidden), "k": (key_value, hidden), "v": (key_value, hidden)}
        projections["o"] = (hidden, query)
        tensors[prefix + "input_layernorm.weight"] = 1 + uniform(hidden)
        for name, shape in projections.items():
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = uniform(*shape)
            if name in biased:
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = uniform(shape[0])
        tensors[prefix + "post_attention_layernorm.weight"] = 1 + uniform(hidden)
        tensors[prefix + "mlp.gate_proj.weight"] = uniform(ffn, hidden)
        tensors[prefix + "mlp.up_proj.weight"] = uniform(ffn, hidden)
        tensors[prefix + "mlp.down_proj.weight"] = uniform(hidden, ffn)
    tensors["model.norm.weight"] = 1 + uniform(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = uniform(config["vocab_size"], hidden)
    return tensors


def token_ids() -> npt.NDArray[np.int32]:
    """The reference input, int32 [48], ids 0..511."""
    return np.random.RandomState(SEED + 1).randint(0, 512, TOKENS).astype(np.int32)


def write_checkpoint(folder: Path, variant: str = "tied") -> Path:
    """Write config.json, model.safetensors and the tokenizer of a variant; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(VARIANTS[variant], indent=1) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    save_file(weights(variant), folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "t h,h e,i n,e r,a n,o n,r e,n d,a t,e n,e s,o r,i s,i t,o u,th e,Ġ t,Ġ a,Ġ the,Ġ o,Ġ w,"
    "Ġ s,Ġ c,in g,o f,Ġ of,an d,Ġ and,Ġ i,Ġ in,e d,a l,a r,Ġ b,Ġ f,Ġ m,Ġ p,Ġ d"
)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of 297 tokens: fewer than the model's 512 rows, as in padded checkpoints."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [(left, right) for left, right in (pair.split(" ") for pair in MERGES.split(","))]
    tokens += [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=1) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
