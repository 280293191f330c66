"""`kohort transaction`."""
