"""Frozen records that many parts share; nothing here imports more than the standard library."""
