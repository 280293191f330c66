"""Kafka's APIs, one module each. `APIS` is what this broker serves, and all that it advertises."""

from __future__ import annotations

from typing import Final

from kohort.broker.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from kohort.broker.calls import Api

_MODULES: Final = (
    add_offsets_to_txn, add_partitions_to_txn, alter_client_quotas, alter_configs,
    alter_partition_reassignments, api_versions, consumer_group_describe,
    consumer_group_heartbeat, create_acls, create_partitions, create_topics, delete_acls,
    delete_groups, delete_records, delete_topics, describe_acls, describe_client_quotas,
    describe_cluster, describe_configs, describe_groups, describe_log_dirs, describe_producers,
    describe_quorum, describe_topic_partitions, describe_transactions, elect_leaders, end_txn,
    fetch, find_coordinator, get_telemetry_subscriptions, heartbeat, incremental_alter_configs,
    init_producer_id, join_group, leave_group, list_config_resources, list_groups, list_offsets,
    list_partition_reassignments, list_transactions, metadata, offset_commit, offset_delete,
    offset_fetch, offset_for_leader_epoch, produce, push_telemetry, sync_group,
    txn_offset_commit, update_features, write_txn_markers,
)  # fmt: skip

APIS: Final[dict[int, Api]] = {module.API.key: module.API for module in _MODULES}
"""Every API by its key."""
