"""The consumer: its public face, its calls, and the shell around the plans in `plan`.

A fetch: `plan.fetch_planner` decides it, `exchange` sends it, `fetch_reader` decodes its answer to
records. A rebalance: `group_session` runs the member, `caller_inbox` hands its steps to `calls`. A
commit: `commits`. Metadata: `topic_watch`. `core` joins them.
Imports `client.cluster`, `client.common` and `group.member`.
"""
