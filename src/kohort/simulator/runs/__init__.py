"""Runs of simulated worlds: one, many seeds, the shortest plan that fails, the report.

It imports the world, the script and the checks.
"""
