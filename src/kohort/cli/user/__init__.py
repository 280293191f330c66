"""`kohort user`."""
