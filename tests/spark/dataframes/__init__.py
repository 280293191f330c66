"""Pipelines of DataFrames."""
