"""An upgrade: today's code on what an earlier release has written."""
