"""A request for each API about the cluster itself, for tests that walk all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.wire.messages import (
    alter_client_quotas_request,
    alter_partition_reassignments_request,
    describe_client_quotas_request,
    describe_log_dirs_request,
    describe_quorum_request,
    describe_topic_partitions_request,
    update_features_request,
)
from kohort.wire.messages.get_telemetry_subscriptions_request import (
    GetTelemetrySubscriptionsRequest,
)
from kohort.wire.messages.list_config_resources_request import ListConfigResourcesRequest
from kohort.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from kohort.wire.messages.push_telemetry_request import PushTelemetryRequest

REQUESTS: dict[str, Callable[[int, bytes], Any]] = {
    "AlterClientQuotas": lambda v, tid: alter_client_quotas_request.AlterClientQuotasRequest(
        entries=[
            alter_client_quotas_request.EntryData(
                entity=[
                    alter_client_quotas_request.EntityData(entity_type="user", entity_name="u")
                ],
                ops=[alter_client_quotas_request.OpData(key="producer_byte_rate", value=9.0)],
            )
        ]
    ),
    "DescribeClientQuotas": lambda v, tid: (
        describe_client_quotas_request.DescribeClientQuotasRequest()
    ),
    "AlterPartitionReassignments": lambda v, tid: (
        alter_partition_reassignments_request.AlterPartitionReassignmentsRequest(
            topics=[
                alter_partition_reassignments_request.ReassignableTopic(
                    name="t",
                    partitions=[
                        alter_partition_reassignments_request.ReassignablePartition(replicas=[1])
                    ],
                )
            ]
        )
    ),
    "ListPartitionReassignments": lambda v, tid: ListPartitionReassignmentsRequest(),
    "DescribeLogDirs": lambda v, tid: describe_log_dirs_request.DescribeLogDirsRequest(topics=None),
    "DescribeQuorum": lambda v, tid: describe_quorum_request.DescribeQuorumRequest(
        topics=[
            describe_quorum_request.TopicData(
                topic_name="__cluster_metadata",
                partitions=[describe_quorum_request.PartitionData()],
            )
        ]
    ),
    "DescribeTopicPartitions": lambda v, tid: (
        describe_topic_partitions_request.DescribeTopicPartitionsRequest()
    ),
    "GetTelemetrySubscriptions": lambda v, tid: GetTelemetrySubscriptionsRequest(),
    "PushTelemetry": lambda v, tid: PushTelemetryRequest(client_instance_id=tid, subscription_id=1),
    "ListConfigResources": lambda v, tid: ListConfigResourcesRequest(),
    "UpdateFeatures": lambda v, tid: update_features_request.UpdateFeaturesRequest(
        feature_updates=[
            update_features_request.FeatureUpdateKey(
                feature="transaction.version", max_version_level=2
            )
        ]
    ),
}
