"""Which checkpoint tensors make up each parameter of a Llama model."""

from __future__ import annotations

from mlcbuild.arch.llama.config import LlamaConfig
from mlcbuild.weights.mapping import Kind, ParamRule

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


def param_rules(config: LlamaConfig) -> tuple[ParamRule, ...]:
    """One rule for each parameter, in the order in which the model uses them.

    q, k and v are stacked into ``self_attn.qkv_proj``, gate and up into ``mlp.gate_up_proj``. A
    tied model has no ``lm_head.weight``; a stored copy must equal the embedding.
    """
    hidden = config.hidden_size
    vocab = (config.vocab_size, hidden)
    tied = config.tie_word_embeddings
    rules = [_one(EMBEDDING, "embedding", vocab, duplicates=(LM_HEAD,) if tied else ())]
    for layer in range(config.num_hidden_layers):
        rules.extend(_layer_rules(config, f"model.layers.{layer}."))
    rules.append(_one("model.norm.weight", "norm", (hidden,)))
    if not tied:
        rules.append(
            _one(
                LM_HEAD,
                "lm_head",
                vocab,
                hint="if the model shares its embedding with the output,"
                " set tie_word_embeddings = true in the recipe's [model] table",
            )
        )
    return tuple(rules)


def _layer_rules(config: LlamaConfig, prefix: str) -> list[ParamRule]:
    hidden, ffn = config.hidden_size, config.intermediate_size
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    rules = [_one(prefix + "input_layernorm.weight", "norm", (hidden,))]
    qkv = {"q_proj": config.query_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
    rules += _stacked(attention, "qkv_proj", qkv, hidden, config.attention_bias)
    rules += _linear(attention + "o_proj", hidden, config.query_size, config.output_bias)
    rules.append(_one(prefix + "post_attention_layernorm.weight", "norm", (hidden,)))
    gate_up = {"gate_proj": ffn, "up_proj": ffn}
    rules += _stacked(mlp, "gate_up_proj", gate_up, hidden, config.mlp_bias)
    rules += _linear(mlp + "down_proj", hidden, ffn, config.mlp_bias)
    return rules


def _one(
    name: str,
    kind: Kind,
    shape: tuple[int, ...],
    *,
    duplicates: tuple[str, ...] = (),
    hint: str | None = None,
) -> ParamRule:
    return ParamRule(name, (name,), "one", kind, (shape,), duplicates, hint)


def _linear(stem: str, rows: int, columns: int, bias: bool) -> list[ParamRule]:
    rules = [_one(stem + ".weight", "linear", (rows, columns))]
    if bias:
        rules.append(_one(stem + ".bias", "bias", (rows,)))
    return rules


def _stacked(
    prefix: str, name: str, parts: dict[str, int], columns: int, bias: bool
) -> list[ParamRule]:
    """``parts`` (name: rows) stacked along the rows as ``prefix + name``."""
    rules = [
        ParamRule(
            f"{prefix}{name}.weight",
            tuple(f"{prefix}{part}.weight" for part in parts),
            "concat_rows",
            "linear",
            tuple((rows, columns) for rows in parts.values()),
        )
    ]
    if bias:
        rules.append(
            ParamRule(
                f"{prefix}{name}.bias",
                tuple(f"{prefix}{part}.bias" for part in parts),
                "concat_rows",
                "bias",
                tuple((rows,) for rows in parts.values()),
            )
        )
    return rules
