"""Targets, one folder each, found by name."""
