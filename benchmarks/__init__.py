"""Benchmarks: each runs Kohort and its peers side by side in one run and prints the ratio."""
