"""Bundles: what is in them, reading, writing, checking."""
