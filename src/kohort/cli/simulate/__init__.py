"""`kohort simulate`."""
