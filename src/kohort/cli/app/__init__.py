"""`kohort app`."""
