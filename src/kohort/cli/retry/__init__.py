"""`kohort retry`: what waits in the retry topics.

Imports `kohort.cli.common` and what it shows, no other command.
"""
