"""Snapshots of a cluster for `kohort.observe`, taken through an `Admin`: the part that asks.

Imports `kohort.client` and `kohort.observe`; the command line and the console import it.
"""
