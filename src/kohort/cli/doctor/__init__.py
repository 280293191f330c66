"""`kohort doctor`."""
