"""`kohort pipeline`: run, check, compare and replay a pipeline of `kohort.spark`.

Imports `kohort.cli.common` and what it shows, no other command.
"""
