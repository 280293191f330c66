"""`kohort retry`."""
