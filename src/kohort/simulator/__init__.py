"""Deterministic simulation: whole groups in virtual time, with faults and checked invariants.

Rules: one integer seed decides everything, and the same seed gives the same trace, byte for byte,
with any hash seed of the process. `generate` makes a `plan` from a seed, `script` runs its steps on
a `world` (`actions` are what may happen, `conditions` what a step waits for), `checks` judge it.
`docs/simulator.md` explains how to use it and write scenarios.
"""
