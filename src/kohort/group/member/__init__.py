"""The member's side of a group: classic protocol and KIP-848, as pure machines.

`base` has what both share, such as `max.poll.interval.ms`; `classic_steps` and `consumer_steps` the
protocols; `leader_plan` runs the assignor of a classic leader.
The consumer runs one of these machines. Imports `group.assignors` and `wire`.
"""
