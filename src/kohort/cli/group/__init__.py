"""`kohort group`: one module a command: lag, why, timeline, plan, reset and the rest.

Imports `kohort.cli.common` and what it shows, no other command.
"""
