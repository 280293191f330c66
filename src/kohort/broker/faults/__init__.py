"""Fault injection: rules, the gate that applies them, the control port, the request log."""
