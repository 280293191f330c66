"""Checks of fetches and their sessions (KIP-227): F1, on requests and answers as they pass a node.

Rules: a session's partitions follow from its requests: those the full one names, those that later
ones add and forget. An answer may leave partitions out, but not all while one has records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.client.common.types import TopicPartition
from kohort.errors import BrokerError
from kohort.simulator.checks.violation import demand
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.fetch_response import FetchResponse

if TYPE_CHECKING:
    from kohort.simulator.network import Asked
    from kohort.simulator.reading import ReadingNode
    from kohort.simulator.world import World

Wanted = dict[TopicPartition, int]
"""The offsets that are asked for."""


def f1_begins_anew(who: str, epoch: int) -> None:
    """F1: after an error of the session everything is named again."""
    demand(epoch <= 0, "F1", f"{who} continues epoch {epoch} of a refused fetch session")


def f1_only_what_was_asked_for(who: str, answered: list[TopicPartition], requested: Wanted) -> None:
    """F1: only requested partitions, each once."""
    strange = [tp for tp in answered if tp not in requested]
    demand(not strange, "F1", f"{who} gets {strange} from a fetch that does not hold them")
    demand(len(set(answered)) == len(answered), "F1", f"{who} gets a partition twice: {answered}")


def f1_nothing_is_left_out(who: str, unread: list[TopicPartition]) -> None:
    """F1: an empty answer means that there are no records to read."""
    demand(not unread, "F1", f"{who} gets no records, and there are some in {unread}")


class FetchChecks:
    """What fetches hold, by their own words."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sessions: dict[tuple[int, int], Wanted] = {}
        """By node and id; a client may continue one on another connection."""
        self._wanted: dict[int, Wanted] = {}
        """By the number of the request."""
        self._refused: set[int] = set()
        """Connections whose session was refused."""

    def asked(self, asked: Asked, request: FetchRequest) -> None:
        """A fetch has come."""
        if asked.silent:
            return
        number = asked.channel.number
        if number in self._refused:
            f1_begins_anew(asked.channel.client, request.session_epoch)
        requested: Wanted = {}
        if request.session_epoch > 0:
            requested |= self._sessions.get(self._key(asked, request.session_id), {})
        for topic in request.topics:
            for part in topic.partitions:
                requested[self._tp(topic.topic, topic.topic_id, part.partition)] = part.fetch_offset
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                requested.pop(self._tp(topic.topic, topic.topic_id, index), None)
        self._wanted[asked.number] = requested

    def answered(self, node: ReadingNode, asked: Asked, response: FetchResponse) -> None:
        """F1 on an answer that leaves the node."""
        requested = self._wanted.pop(asked.number, None)
        if requested is None:
            return
        number, who = asked.channel.number, asked.channel.client
        if response.error_code:
            self._refused.add(number)
            return
        self._refused.discard(number)
        answered = [
            (self._tp(topic.topic, topic.topic_id, part.partition_index), part)
            for topic in response.responses
            for part in topic.partitions
        ]
        f1_only_what_was_asked_for(who, [tp for tp, _ in answered], requested)
        if not any(part.records or part.error_code for _, part in answered):
            unread = [tp for tp, offset in requested.items() if self._has_more(node, tp, offset)]
            f1_nothing_is_left_out(who, unread)
        if response.session_id:
            self._sessions[self._key(asked, response.session_id)] = requested

    def _key(self, asked: Asked, session_id: int) -> tuple[int, int]:
        return asked.channel.node.number, session_id

    def _has_more(self, node: ReadingNode, tp: TopicPartition, offset: int) -> bool:
        log = self._world.cluster.topic_log(*tp)
        try:
            leads = log is not None and self._world.cluster.leads(node, log)
            return leads and log is not None and bool(log.read(offset, 1))
        except BrokerError:  # the requested offset is not in the log
            return False

    def _tp(self, topic: str, topic_id: bytes, partition: int) -> TopicPartition:
        """Requests name topics, or their ids."""
        return TopicPartition(topic or self._world.cluster.names[bytes(topic_id)], partition)
