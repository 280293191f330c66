"""One module per request or step of a rebalance: state and request in, records and replies out.

Classic groups: `classic_join` (also a static member's replacement), `classic_sync`,
`classic_heartbeat_leave`; `classic_rebalance` ends sessions and join phases. Consumer groups
(KIP-848): `consumer_heartbeat` takes the request, `consumer_target_assignment` computes who gets
what, `consumer_reconcile` moves a member towards it. Offsets: `offsets` commits and reads for both,
`consumer_offsets` checks epochs, `offset_expiry` removes. Pure. Imports `group.coordinator.state`.
"""
