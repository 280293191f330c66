"""Produce, heartbeats and offset commits, answered by compiled code.

Answers are byte for byte those of the slow path.
"""
