"""Python over a bundle's own runtime."""

from mlcbuild.engine.async_engine import AsyncEngine, AsyncStream
from mlcbuild.engine.base import EngineOptions
from mlcbuild.engine.engine import Engine, Stream
from mlcbuild.engine.generation import Generation, GenerationOptions, ScoredToken

__all__ = [
    "AsyncEngine",
    "AsyncStream",
    "Engine",
    "EngineOptions",
    "Generation",
    "GenerationOptions",
    "ScoredToken",
    "Stream",
]
