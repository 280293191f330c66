"""`kohort demo`."""
