"""Layers over relax.frontend.nn that architectures are written with; they know no quantization."""
