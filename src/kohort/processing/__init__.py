"""Handlers, workers and safe commits: consuming apart from processing (spec 4.12, 5)."""
