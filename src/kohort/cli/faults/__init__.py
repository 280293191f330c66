"""`kohort faults`."""
