"""Llama and what shares its shape."""
