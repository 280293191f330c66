"""How rebalancing came to be: four designs on one workload and one fault plan (spec 7).

1. `zookeeper`: every consumer watches ZooKeeper and assigns for itself.
2. `server`: an elected coordinator watches, stops everybody, assigns, starts everybody.
3. `classic`, `cooperative`: the coordinator manages membership, the leading client assigns.
4. `kip848`: the coordinator assigns, and each member moves at its own heartbeat.

Rules:
- The third and the fourth are `GroupShard` and the members that the client uses, not models of
  them. The first two are small machines written for this, in the same manner: event in, effects
  out.
- One integer decides the workload, the faults and the network; the same seed gives the same table.
- What is measured means the same in every design: see `ledger`.
"""
