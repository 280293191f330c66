"""DeleteTopics (20), v1-6. KIP-516 (by id).

The offsets that groups have committed for a deleted topic go with it (as in Apache Kafka). The
answer waits until that is durable, for the time that the request allows.
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
    from kohort.broker.base.env import Cancellable
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
            _Answer(node, request, call, results, gone).begin()
            return
    call.answer(DeleteTopicsResponse(responses=results))


class _Answer:
    """An answer that waits until the offsets of deleted topics are gone, or its time is over."""

    def __init__(
        self,
        node: NodeServices,
        request: DeleteTopicsRequest,
        call: Call,
        results: list[DeletableTopicResult],
        gone: set[str],
    ) -> None:
        self._node = node
        self._wait_ms = max(request.timeout_ms, 0)
        self._call = call
        self._results = results
        self._gone = gone
        self._timer: Cancellable | None = None
        self._answered = False

    def begin(self) -> None:
        """Answer now or later."""
        self._node.nodes.coordinators.topics_deleted(self._gone, self._done)
        if not self._answered:
            env = self._node.env
            self._timer = env.call_at(env.now_ms() + self._wait_ms, self._too_late)

    def _too_late(self) -> None:
        error = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "committed offsets are still there")
        self._results = [_refused(r, error) if r.name in self._gone else r for r in self._results]
        self._done()

    def _done(self) -> None:
        if not self._answered:
            self._answered = True
            if self._timer is not None:
                self._timer.cancel()
            self._call.answer(DeleteTopicsResponse(responses=self._results))


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
        requested = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        return _refused(requested, error)
    chosen[topic.name] = topic
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _refused(result: DeletableTopicResult, error: BrokerError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=error.code,
        error_message=error.detail,
    )
