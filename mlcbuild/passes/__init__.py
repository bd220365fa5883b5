"""Passes from a model in Relax to an execution plan and kernels; one file per pass."""
