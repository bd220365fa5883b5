"""Quantization schemes, their numbers, and packing."""
