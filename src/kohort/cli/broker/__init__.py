"""`kohort broker`."""
