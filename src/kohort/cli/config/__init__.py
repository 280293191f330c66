"""`kohort config`."""
