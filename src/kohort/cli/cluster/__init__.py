"""The `cluster` commands."""
