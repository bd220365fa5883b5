"""mlcbuild: an ahead-of-time build system for language models."""

__version__ = "0.1.0"
