"""Kernels for WebGPU: sampling, changes of logits, rotary embedding."""
