"""The control port: nodes, leaders, faults and requests of a running broker, as JSON over HTTP."""
