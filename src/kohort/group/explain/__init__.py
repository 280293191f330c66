"""Why a group rebalanced: the timeline, read from a group's records.

Pure. Imports `group.coordinator.state`.
"""
