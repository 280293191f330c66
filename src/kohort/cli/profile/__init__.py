"""`kohort profile`."""
