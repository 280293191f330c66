"""Takes snapshots of a cluster through an `Admin`, for `kohort.observe`.

Imports `kohort.client` and `kohort.observe`; the command line and the console import it.
"""
