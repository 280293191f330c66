"""ElectLeaders (43), v0-2. KIP-183 (preferred leaders), KIP-460 (election types).

Any node answers. Without a list all partitions are meant, and those that change are in the answer.

Differs from Apache Kafka: replicas share one log, so none of them is ever behind; an unclean
election finds nothing to do where a replica lives, and nobody to elect where none does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.broker.state.leadership import NO_NODE, Leadership, Led
from kohort.errors import ErrorCode
from kohort.wire.messages.elect_leaders_request import ElectLeadersRequest
from kohort.wire.messages.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_PREFERRED, _UNCLEAN = 0, 1


def handle(node: NodeServices, request: ElectLeadersRequest, call: Call) -> None:
    """Elect leaders, each partition on its own."""
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        requested = [(t.topic, p) for t in request.topic_partitions or () for p in t.partitions]
        call.answer(
            ElectLeadersResponse(
                error_code=ErrorCode.INVALID_REQUEST,
                replica_election_results=_results(
                    [(tp, ErrorCode.INVALID_REQUEST) for tp in requested], ()
                ),
            )
        )
        return
    every: list[str] = []
    unclean = request.election_type == _UNCLEAN
    if request.topic_partitions is None:
        changes = [] if unclean else node.nodes.leaders.elect_preferred()
        codes = [((change.topic, change.partition), ErrorCode.NONE) for change in changes]
        every = [topic.name for topic in node.topics]
    else:
        requested = [(t.topic, p) for t in request.topic_partitions for p in t.partitions]
        known = {tp for tp in requested if node.topics.partition(*tp) is not None}
        leadership = node.leadership
        codes = [(tp, _fault(leadership, tp, tp in known, unclean)) for tp in requested]
        eligible = [tp for tp, code in codes if code == ErrorCode.NONE]
        node.nodes.leaders.elect_preferred(eligible)
    call.answer(ElectLeadersResponse(replica_election_results=_results(codes, every)))


def _fault(
    leadership: Leadership, partition: tuple[str, int], known: bool, unclean: bool
) -> ErrorCode:
    if not known:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    led: Led = leadership.at(*partition)
    if unclean:
        nobody = led.leader == NO_NODE
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if nobody else ErrorCode.ELECTION_NOT_NEEDED
    if led.leader == led.replicas[0]:
        return ErrorCode.ELECTION_NOT_NEEDED
    if led.replicas[0] not in leadership.alive:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return ErrorCode.NONE


def _results(
    codes: Iterable[tuple[tuple[str, int], ErrorCode]], every: Iterable[str]
) -> list[ReplicaElectionResult]:
    """By topic; `every`: topics that are in the answer in any case."""
    by_topic: dict[str, list[PartitionResult]] = {topic: [] for topic in every}
    for (topic, index), code in codes:
        message = code.name if code else None
        by_topic.setdefault(topic, []).append(
            PartitionResult(partition_id=index, error_code=code, error_message=message)
        )
    return [
        ReplicaElectionResult(topic=topic, partition_result=results)
        for topic, results in by_topic.items()
    ]
