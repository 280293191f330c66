"""Demonstrations that come with Kohort: real data through every floor (`kohort demo`)."""
