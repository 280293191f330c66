"""`kohort doctor`: what this machine, or a cluster, has and lacks.

Imports `kohort.cli.common` and what it shows, no other command.
"""
