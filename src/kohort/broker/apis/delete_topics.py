"""DeleteTopics (20), v1-6. KIP-516 (by id).

The offsets that groups have committed for a deleted topic go with it (as in Apache Kafka).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire import ZERO_UUID
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeletableTopicResult, DeleteTopicsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices
    from kohort.broker.state.topics import Topic

_STATES_FROM = 6


def handle(node: NodeServices, request: DeleteTopicsRequest, call: Call) -> None:
    """Delete topics: those that can be, all or (a disk that fails) none."""
    if call.api_version >= _STATES_FROM:
        states = request.topics
    else:
        states = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names]
    times = Counter((state.name, bytes(state.topic_id)) for state in states)
    once = {(state.name, bytes(state.topic_id)): state for state in states}
    chosen: dict[str, Topic] = {}
    results = [_choose(node, state, times[key] > 1, chosen) for key, state in once.items()]
    if chosen:
        try:
            node.topics.delete(*chosen.values())
        except BrokerError as error:
            results = [_refused(r, error) if r.name in chosen else r for r in results]
        if gone := {name for name in chosen if node.topics.get(name) is None}:
            node.nodes.coordinators.topics_deleted(gone)
    call.answer(DeleteTopicsResponse(responses=results))


def _choose(
    node: NodeServices, state: DeleteTopicState, twice: bool, chosen: dict[str, Topic]
) -> DeletableTopicResult:
    """Put the topic among those to delete, and answer as if that had been done."""
    by_id = state.name is None
    named = (state.name is not None) + (bytes(state.topic_id) != ZERO_UUID)
    topic = node.topics.by_id(state.topic_id) if state.name is None else node.topics.get(state.name)
    try:
        if named != 1:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "give either the name or the id")
        if twice:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the topic is named twice")
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(code, "This server does not host this topic.")
        if topic.name in chosen:  # once by its name, once by its id
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the topic is named twice")
        if topic.internal:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
    except BrokerError as error:
        asked = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        return _refused(asked, error)
    chosen[topic.name] = topic
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _refused(result: DeletableTopicResult, error: BrokerError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=error.code,
        error_message=error.detail,
    )
