"""Checks of how committed offsets are read: O1, O6, on OffsetFetch as a coordinator answers it.

Rules: an answer is decided in the event in which the request arrives, so it reports the log's state
then, neither less (O1) nor more; staged offsets of a transaction are hidden from requests for
stable offsets (O6, KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kohort.client.common.types import TopicPartition
from kohort.errors import ErrorCode
from kohort.simulator.checks.violation import demand
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse

if TYPE_CHECKING:
    from kohort.simulator.checks.offsets import OffsetChecks
    from kohort.simulator.network import Asked
    from kohort.simulator.world import World

NOTHING = -1


class Stands(NamedTuple):
    """A group's offsets when a request came."""

    committed: dict[TopicPartition, int]
    staged: frozenset[TopicPartition]


def o1_reads_what_was_committed(
    group_id: str, tp: TopicPartition, committed: int, answered: int
) -> None:
    """O1: a client gets the last commit, its own too."""
    demand(
        answered == committed,
        "O1",
        f"group {group_id}: {answered} is returned for {tp}, which is committed at {committed}",
    )


def o6_waits_for_the_transaction(group_id: str, tp: TopicPartition, code: int) -> None:
    """O6: an offset that a transaction has staged is refused to who wants stable ones."""
    demand(
        code == ErrorCode.UNSTABLE_OFFSET_COMMIT,
        "O6",
        f"group {group_id}: {tp} is staged in a transaction; who wants stable offsets is answered "
        f"{ErrorCode.name_of(code)}",
    )


class ReadChecks:
    """The offsets that readers of committed offsets get."""

    def __init__(self, world: World, offsets: OffsetChecks) -> None:
        self._world = world
        self._offsets = offsets
        self._asked: dict[int, dict[str, Stands]] = {}

    def arrived(self, asked: Asked, request: OffsetFetchRequest) -> None:
        """Remember the offsets of the requested groups."""
        groups = [group.group_id for group in request.groups] or [request.group_id]
        self._asked[asked.number] = {group_id: self._stands(group_id) for group_id in groups}

    def _stands(self, group_id: str) -> Stands:
        committed = {
            tp: past[-1].offset
            for (name, tp), past in self._offsets.history.items()
            if name == group_id and past and past[-1].offset is not None
        }
        return Stands(committed, self._offsets.staged(group_id))

    def answered(self, asked: Asked, response: OffsetFetchResponse) -> None:
        """O1, O6 on the answer."""
        stood = self._asked.pop(asked.number, None)
        request = asked.request
        if stood is None or not isinstance(request, OffsetFetchRequest):
            return  # it came while the shard was loading
        for group_id, tp, code, offset in self._answered(request, response):
            group = stood[group_id]
            if request.require_stable and tp in group.staged:
                o6_waits_for_the_transaction(group_id, tp, code)
            elif not code:
                o1_reads_what_was_committed(group_id, tp, group.committed.get(tp, NOTHING), offset)

    def _answered(
        self, request: OffsetFetchRequest, response: OffsetFetchResponse
    ) -> Iterator[tuple[str, TopicPartition, int, int]]:
        """Group, partition, error code and offset of each partition that is answered."""
        for topic in () if response.error_code else response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                yield request.group_id, tp, part.error_code, part.committed_offset
        names = self._world.cluster.names
        for group in response.groups:
            for topic in () if group.error_code else group.topics:
                name = topic.name or names.get(bytes(topic.topic_id), "")
                for part in topic.partitions:
                    tp = TopicPartition(name, part.partition_index)
                    yield group.group_id, tp, part.error_code, part.committed_offset
