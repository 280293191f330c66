"""`kohort acl`: list, add and remove access rules.

Imports `kohort.cli.common` and what it shows, no other command.
"""
