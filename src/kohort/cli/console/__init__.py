"""The command that runs the web console."""
