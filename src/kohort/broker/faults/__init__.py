"""Fault injection: rules, the gate that applies them, and the request log.

`rules` decides about requests, `faulty_files` fails the disk. Imports `broker.coordinator`
and the folders before it. `kohort.testing` and the control port set faults.
"""
