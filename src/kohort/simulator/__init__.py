"""Deterministic simulation: whole groups in virtual time, with faults and checked invariants.

Rules: one integer seed decides everything, and the same seed gives the same trace, byte for byte,
whatever the process's hash seed. `docs/simulator.md` explains how to use it and write scenarios.
"""
