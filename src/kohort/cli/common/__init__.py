"""What commands share: the command tree, connections, output, formats, lookups.

Imports no command.
"""
