"""`kohort group`: one module per command."""
