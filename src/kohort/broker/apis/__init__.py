"""Kafka's APIs, one module each. `APIS` is what this broker serves, and all that it advertises.

Rules:
- A module's `handle(node, request, call)` answers each version that the table gives its API.
- A module is imported when its API is asked for first: a broker that has just started has imported
  none, and one that serves no transactions never imports theirs.
- A version is served when Kafka calls it stable.
"""

from __future__ import annotations

from typing import Final

from kohort.broker.base.request import Api
from kohort.wire.messages import APIS as KAFKAS

_MODULES: Final = (
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_user_scram_credentials",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_topic_partitions",
    "describe_transactions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "end_txn",
    "fetch",
    "find_coordinator",
    "get_telemetry_subscriptions",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_config_resources",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "list_transactions",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "push_telemetry",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
    "txn_offset_commit",
    "update_features",
    "write_txn_markers",
)

_MAY_PARK: Final = frozenset({"fetch", "join_group", "sasl_authenticate", "sync_group"})
"""What may wait for an event; see the rules of `kohort.broker.base.request`."""


def _table() -> dict[int, Api]:
    named = {name.lower(): key for key, (name, *_) in KAFKAS.items()}
    table: dict[int, Api] = {}
    for module in _MODULES:
        key = named[module.replace("_", "")]
        _, oldest, _, stable, _ = KAFKAS[key]
        table[key] = Api(key, oldest, stable, f"{__name__}.{module}", module in _MAY_PARK)
    return table


APIS: Final[dict[int, Api]] = _table()
"""Every API by its key."""
