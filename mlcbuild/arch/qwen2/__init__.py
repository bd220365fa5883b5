"""Qwen2 and Qwen2.5: Llama with biases on q, k and v."""
