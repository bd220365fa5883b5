"""Recipes: schema, loading with diagnostics, the matrix."""
