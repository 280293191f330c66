"""The main job on a year of flights: broker, producer, pipeline, report (`kohort demo`).

A distribution of its own, `kohort-demo`. Imports `kohort.spark` and the clients; only the command
line imports it.
"""
