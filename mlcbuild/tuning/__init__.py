"""Tuning: search of kernel templates by MetaSchedule, and the database of what was measured."""
