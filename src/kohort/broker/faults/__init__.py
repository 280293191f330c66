"""Fault injection: rules, the gate that applies them, and the request log."""
