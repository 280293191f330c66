"""The control port: nodes, leaders, faults and requests of a running broker, as JSON over HTTP.

Imports every other folder of the broker; only a broker that has the port imports it.
"""
