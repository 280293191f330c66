"""The nodes of a process: `node` is one broker node, `nodes` starts and stops nodes.

`leader_changes` moves leaders and replicas between nodes; `coordinators` notifies the
coordinators of all nodes about changes.
"""
