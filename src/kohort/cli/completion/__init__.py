"""The `completion` command."""
