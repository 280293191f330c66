"""One module per request or step of a rebalance: state and request in, records and replies out.

Pure. Imports `group.coordinator.state`.
"""
