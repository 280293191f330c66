"""The nodes of a process: `node` is one broker node's life, `nodes` starts and ends them.

`leader_changes` moves leaders and replicas between nodes; `coordinators` tells the coordinators of
all nodes what has changed.
"""
