"""DeleteTopics (20), v1-6. KIP-516 (by id).

The offsets that groups have committed for a deleted topic go with it (as in Apache Kafka).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kohort.broker.calls import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire import ZERO_UUID
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeletableTopicResult, DeleteTopicsResponse

if TYPE_CHECKING:
    from kohort.broker.node import Node

_STATES_FROM = 6


def handle(node: Node, request: DeleteTopicsRequest, call: Call) -> None:
    """Delete topics, each on its own."""
    if call.api_version >= _STATES_FROM:
        states = request.topics
    else:
        states = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names]
    times = Counter((state.name, bytes(state.topic_id)) for state in states)
    once = {(state.name, bytes(state.topic_id)): state for state in states}
    results = [_delete(node, state, times[key] > 1) for key, state in once.items()]
    gone = {r.name for r in results if r.error_code == 0 and r.name is not None}
    if gone:
        node.commons.nodes.topics_deleted(gone)
    call.answer(DeleteTopicsResponse(responses=results))


def _delete(node: Node, state: DeleteTopicState, twice: bool) -> DeletableTopicResult:
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
        if topic.internal:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
        node.topics.delete(topic)
    except BrokerError as error:
        return DeletableTopicResult(
            name=state.name,
            topic_id=state.topic_id,
            error_code=error.code,
            error_message=error.detail,
        )
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
