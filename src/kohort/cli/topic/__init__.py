"""`kohort topic`."""
