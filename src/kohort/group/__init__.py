"""Consumer groups as state machines, without sockets, threads or clocks.

`assignors` < `member`; `coordinator.state` < `coordinator.handlers` < `explain` < `coordinator`.
"""
