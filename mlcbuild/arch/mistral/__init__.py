"""Mistral: Llama with a sliding window over all layers, or without one."""
