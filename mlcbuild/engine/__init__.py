"""Python over a bundle's own runtime."""

from mlcbuild.engine.engine import Engine, Generation, GenerationOptions

__all__ = ["Engine", "Generation", "GenerationOptions"]
