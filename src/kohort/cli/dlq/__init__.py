"""The dead-letter commands."""
