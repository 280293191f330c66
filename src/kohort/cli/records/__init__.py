"""`kohort produce` and `kohort consume`."""
