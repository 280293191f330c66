"""What may be done with settings, with the cluster itself, and with access control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kohort.acl import CLUSTER_NAME, Operation, Resource
from kohort.broker.authorization.request_check import Asking, Patch
from kohort.errors import ErrorCode
from kohort.wire import Message
from kohort.wire.messages.alter_client_quotas_request import AlterClientQuotasRequest
from kohort.wire.messages.alter_client_quotas_response import AlterClientQuotasResponse
from kohort.wire.messages.alter_client_quotas_response import EntityData as QuotaEntity
from kohort.wire.messages.alter_client_quotas_response import EntryData as QuotaResult
from kohort.wire.messages.alter_configs_request import AlterConfigsRequest
from kohort.wire.messages.alter_configs_response import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from kohort.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
)
from kohort.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kohort.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
)
from kohort.wire.messages.alter_user_scram_credentials_response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kohort.wire.messages.create_acls_request import CreateAclsRequest
from kohort.wire.messages.create_acls_response import AclCreationResult, CreateAclsResponse
from kohort.wire.messages.delete_acls_request import DeleteAclsRequest
from kohort.wire.messages.delete_acls_response import DeleteAclsFilterResult, DeleteAclsResponse
from kohort.wire.messages.describe_client_quotas_request import DescribeClientQuotasRequest
from kohort.wire.messages.describe_client_quotas_response import DescribeClientQuotasResponse
from kohort.wire.messages.describe_cluster_request import DescribeClusterRequest
from kohort.wire.messages.describe_cluster_response import DescribeClusterResponse
from kohort.wire.messages.describe_configs_request import DescribeConfigsRequest
from kohort.wire.messages.describe_configs_response import (
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kohort.wire.messages.elect_leaders_request import ElectLeadersRequest
from kohort.wire.messages.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kohort.wire.messages.incremental_alter_configs_request import IncrementalAlterConfigsRequest
from kohort.wire.messages.incremental_alter_configs_response import (
    AlterConfigsResourceResponse as IncrementalResult,
)
from kohort.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

_O = Operation
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TOPIC, _GROUP = 2, 32
"""The kinds of resource that are not the cluster's; numbers of the configuration APIs."""
_OF_RESOURCE: Final = {
    _TOPIC: (Resource.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    _GROUP: (Resource.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}


def cluster(
    operation: Operation, response: type[Any], *, reported_from: int = 0
) -> Callable[[Asking, Any], Message | None]:
    """This operation on the cluster, or a refusal of the whole; silent before `reported_from`."""

    def screen(asking: Asking, _: Any) -> Message | None:
        if asking.cluster(operation):
            return None
        has_operations = asking.call.api_version >= reported_from
        return response(error_code=REFUSED) if has_operations else response()

    return screen


def _fault(asking: Asking, operation: Operation, kind: int, name: str) -> int:
    resource, code = _OF_RESOURCE.get(kind, (Resource.CLUSTER, REFUSED))
    guarded = CLUSTER_NAME if resource is Resource.CLUSTER else name
    return 0 if asking.may(operation, resource, guarded) else code


def describe_configs(asking: Asking, request: DescribeConfigsRequest) -> Message | Patch | None:
    """DESCRIBE_CONFIGS of the topics, the groups, or the cluster for its brokers."""
    answers = [
        DescribeConfigsResult(
            error_code=code,
            error_message=None,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        for each in request.resources
        if (code := _fault(asking, _O.DESCRIBE_CONFIGS, each.resource_type, each.resource_name))
    ]
    refused = {(answer.resource_type, answer.resource_name) for answer in answers}
    request.resources = [
        each
        for each in request.resources
        if (each.resource_type, each.resource_name) not in refused
    ]

    def patch(response: DescribeConfigsResponse) -> None:
        response.results = [*response.results, *answers]

    return patch if answers else None


def alter_configs(asking: Asking, request: AlterConfigsRequest) -> Message | Patch | None:
    """ALTER_CONFIGS of the topics, the groups, or the cluster for its brokers."""
    answers = _refused_configs(asking, request, AlterConfigsResourceResponse)

    def patch(response: AlterConfigsResponse) -> None:
        response.responses = [*response.responses, *answers]

    return patch if answers else None


def incremental_alter_configs(
    asking: Asking, request: IncrementalAlterConfigsRequest
) -> Message | Patch | None:
    """As `alter_configs`."""
    answers = _refused_configs(asking, request, IncrementalResult)

    def patch(response: IncrementalAlterConfigsResponse) -> None:
        response.responses = [*response.responses, *answers]

    return patch if answers else None


def _refused_configs(asking: Asking, request: Any, result: type[Any]) -> list[Any]:
    answers, kept = list[Any](), list[Any]()
    for each in request.resources:
        code = _fault(asking, _O.ALTER_CONFIGS, each.resource_type, each.resource_name)
        if not code:
            kept.append(each)
            continue
        answers.append(
            result(
                error_code=code,
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
        )
    request.resources = kept
    return answers


def describe_cluster(asking: Asking, request: DescribeClusterRequest) -> Message | Patch | None:
    """Allowed for everybody; further rights are reported on request (KIP-430)."""
    if not request.include_cluster_authorized_operations:
        return None

    def patch(response: DescribeClusterResponse) -> None:
        response.cluster_authorized_operations = asking.cluster_operations()

    return patch


def describe_client_quotas(asking: Asking, _: DescribeClientQuotasRequest) -> Message | None:
    """DESCRIBE_CONFIGS of the cluster."""
    if asking.cluster(_O.DESCRIBE_CONFIGS):
        return None
    return DescribeClientQuotasResponse(error_code=REFUSED, error_message=None, entries=None)


def alter_partition_reassignments(
    asking: Asking, request: AlterPartitionReassignmentsRequest
) -> Message | None:
    """ALTER the cluster."""
    if asking.cluster(_O.ALTER):
        return None
    return AlterPartitionReassignmentsResponse(
        error_code=REFUSED,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=part.partition_index, error_code=REFUSED, error_message=None
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def alter_client_quotas(asking: Asking, request: AlterClientQuotasRequest) -> Message | None:
    """ALTER_CONFIGS of the cluster."""
    if asking.cluster(_O.ALTER_CONFIGS):
        return None
    return AlterClientQuotasResponse(
        entries=[
            QuotaResult(
                error_code=REFUSED,
                error_message=None,
                entity=[
                    QuotaEntity(entity_type=of.entity_type, entity_name=of.entity_name)
                    for of in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


def alter_user_scram_credentials(
    asking: Asking, request: AlterUserScramCredentialsRequest
) -> Message | None:
    """ALTER the cluster."""
    if asking.cluster(_O.ALTER):
        return None
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=REFUSED, error_message=None)
            for user in users
        ]
    )


def elect_leaders(asking: Asking, request: ElectLeadersRequest) -> Message | None:
    """ALTER the cluster."""
    if asking.cluster(_O.ALTER):
        return None
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=REFUSED, error_message=None)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    code = REFUSED if asking.call.api_version >= 1 else 0
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def create_acls(asking: Asking, request: CreateAclsRequest) -> Message | Patch | None:
    """ALTER the cluster."""
    if asking.cluster(_O.ALTER):
        return None
    refused = AclCreationResult(error_code=REFUSED, error_message=None)
    return CreateAclsResponse(results=[refused for _ in request.creations])


def delete_acls(asking: Asking, request: DeleteAclsRequest) -> Message | Patch | None:
    """ALTER the cluster."""
    if asking.cluster(_O.ALTER):
        return None
    refused = DeleteAclsFilterResult(error_code=REFUSED, error_message=None)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
