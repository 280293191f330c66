"""`kohort demo`: the main job on a year of flights; the job itself is `kohort.demo`.

Imports `kohort.cli.common` and what it shows, no other command.
"""
