"""`kohort broker`: run the embedded broker, let nodes fail, repair a data directory.

Imports `kohort.cli.common` and what it shows, no other command.
"""
