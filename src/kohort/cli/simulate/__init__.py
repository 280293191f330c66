"""`kohort simulate`: simulated runs by seed, scenario and design.

Imports `kohort.cli.common` and what it shows, no other command.
"""
