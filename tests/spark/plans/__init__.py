"""Spark's plans."""
