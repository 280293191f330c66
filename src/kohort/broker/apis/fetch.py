"""Fetch (1), v4-18. KIP-74 (max_bytes), KIP-227, KIP-320 (leader epochs), KIP-392 (racks), KIP-516
(topic ids), KIP-951 (leader hints).

Waits until `min_bytes` are there or `max_wait_ms` is over, and hands out stored bytes: whole
batches, at least one of them however large (of the first partition that has any). When an answer is
full, later partitions are not read: they come first in the next answer.

As in Apache Kafka it does not wait where waiting brings nothing: for more than its limits allow,
for more of a segment that is not the newest, or without a partition to wait for. A topic that is
unknown or forbidden from the beginning does not end the wait for the others; any other error, and
one that comes up meanwhile, does.

A consumer whose group is rebalancing is answered early, so that it heartbeats (`HeartbeatHints`).

A fetcher may have an incremental session (`FetchSessions`), which holds its partitions.

A Kohort consumer that can read the log's files itself gets the location of its records in them (ADR
0015); small reads are sent all the same.

Differs from Apache Kafka: there are no followers, so a replica id is refused; an incremental answer
also names a partition of which only the stable end has moved.

READ_COMMITTED (KIP-98) is given what is stable, and the aborted transactions that have records in
it: the client leaves those out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._leaders import HINTED, Leaders
from kohort.broker.base.env import Cancellable
from kohort.broker.base.request import Call
from kohort.broker.log.log import Span
from kohort.broker.log.txn_index import AbortedTransaction
from kohort.broker.state.fetch_sessions import Fetching, FetchPart
from kohort.broker.state.leadership import NO_NODE
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, CorruptRecordError, ErrorCode
from kohort.wire import local_files
from kohort.wire.local_files import Place
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.fetch_response import AbortedTransaction as AbortedTransactionOnWire
from kohort.wire.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices
    from kohort.broker.log.local_links import LocalLinks
    from kohort.group.coordinator.state.topics_image import TopicsImage

_RACKS_FROM, _TOPIC_IDS_FROM, _HINTS_FROM = 11, 13, 16
_READ_COMMITTED = 1
_CLOCK_MS = 1
"""The clock counts whole milliseconds, so a wait that began within one ends up to one early without
it. Apache Kafka never answers before `max_wait_ms` is over, and clients time themselves by that."""
_SET_ASIDE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors that may last: a fetcher that heard of one at once each time would never pause."""
LOCAL_BYTES_MIN = 64 << 10
"""Smaller reads are not worth opening a file."""


def handle(node: NodeServices, request: FetchRequest, call: Call) -> None:
    """Answer at once, or wait for more."""
    if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        call.answer(FetchResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    by_id = call.api_version >= _TOPIC_IDS_FROM
    fetching = node.fetch_sessions.begin(request, by_id, node.env.now_ms())
    if isinstance(fetching, Fetching):
        _Fetch(node, request, call, fetching).begin()
    else:
        call.answer(FetchResponse(error_code=fetching))


class _Requested:
    """One partition of a fetch, and what was found; a session keeps it for its next fetch."""

    __slots__ = ("aborted", "error", "image", "nearer", "part", "partition", "place", "span")

    def __init__(self, part: FetchPart) -> None:
        self.part = part
        self.partition: Partition | None = None
        self.image: TopicsImage | None = None
        """All topics as they were when it was looked for: while they are so, it is that one."""
        self.error = 0
        self.span: Span | None = None
        self.place: Place | None = None
        """Where the client may read that itself."""
        self.aborted: list[AbortedTransaction] | None = None
        self.nearer = NO_NODE
        """The replica that is to be asked instead."""


class _Fetch:
    """One fetch, which waits for its partitions if need be."""

    def __init__(
        self, node: NodeServices, request: FetchRequest, call: Call, fetching: Fetching
    ) -> None:
        self._node = node
        self._fetching = fetching
        self._request = request
        self._call = call
        self._committed = request.isolation_level == _READ_COMMITTED
        selects = node.config.replica_selector_class is not None
        self._any_replica = selects and call.api_version >= _RACKS_FROM
        self._rack = request.rack_id if self._any_replica else ""
        self._hints = call.api_version >= _HINTS_FROM
        self._requested = [self._resolved(part) for part in fetching.parts.values()]
        self._awaited: list[Partition] = []
        self._timer: Cancellable | None = None
        self._client = (call.client_id, call.client_host)
        self._again = False
        self._looked = False
        self._aside: set[_Requested] | None = None
        """What was unknown or forbidden at the first look: it is not waited for."""
        self._links = _links(node, request, call)

    def _resolved(self, part: FetchPart) -> _Requested:
        """The partition as it is now: the topic may have been deleted, and made again."""
        topics = self._node.topics
        requested: _Requested | None = part.found
        if requested is None:
            requested = part.found = _Requested(part)
        if requested.partition is None or requested.image is not topics.image:
            requested.image = topics.image
            by_id = self._fetching.by_id
            topic = topics.by_id(part.topic_id) if by_id else topics.get(part.topic)
            index = part.request.partition
            known = topic is not None and 0 <= index < len(topic.partitions)
            requested.partition = topic.partitions[index] if topic is not None and known else None
        return requested

    def begin(self) -> None:
        """Answer if there is enough; else wait."""
        enough = self._enough()
        self._looked = True
        if enough or self._request.max_wait_ms <= 0 or self._waits_for_nothing():
            self._finish()
            return
        if not self._node.heartbeat_hints.wait(self._client, self._call.hint_cursor, self):
            self._finish()
            return
        env = self._node.env
        over_ms = env.now_ms() + self._request.max_wait_ms + _CLOCK_MS
        self._timer = env.call_at(over_ms, self._time_over)
        self._awaited = [
            each.partition
            for each in self._requested
            if each.partition is not None and not each.error
        ]
        for partition in self._awaited:
            partition.waiters[self] = None
        self._call.given_up = self._stop_waiting

    def cut_short(self) -> None:
        """Answer early: the client should heartbeat (see `HeartbeatHints`)."""
        if not self._call.answered:
            self._enough()
            self._finish()

    def progressed(self) -> None:
        """A partition may have more, or is gone; looked at once for all of this turn."""
        if not self._again:
            self._again = True
            self._node.env.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._again = False
        if not self._call.answered and self._timer is not None and self._enough():
            self._finish()

    def _time_over(self) -> None:
        self._timer = None
        if not self._call.answered:
            self._enough()
            self._finish()

    def _stop_waiting(self) -> None:
        self._node.heartbeat_hints.stop(self._client, self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._awaited:
            partition.waiters.pop(self, None)

    def _waits_for_nothing(self) -> bool:
        return len(self._aside or ()) == len(self._requested)

    def _enough(self) -> bool:
        """Look for data; True when there is enough, or an error that ends the wait."""
        room = min(self._request.max_bytes, self._node.config.fetch_max_bytes)
        total, failed, full = 0, False, False
        for requested in self._requested:
            requested.span = requested.aborted = None
            requested.error = self._fault(requested)
            if self._rack:
                requested.nearer = self._nearer(requested)
            if requested.error or requested.nearer != NO_NODE:
                failed = failed or self._ends_the_wait(requested)
                continue
            if room <= 0 and total > 0:  # full: what the others have is looked for when it fits
                continue
            span = self._locate(
                requested, max(0, min(requested.part.request.partition_max_bytes, room))
            )
            if span is None:
                failed = failed or requested.error != 0
                continue
            size = span.end - span.start
            if size > room and total > 0:  # only the first one may exceed what was asked for
                room, full = 0, True
                continue
            requested.span = span
            total += size
            room -= size
        if failed or total >= self._request.min_bytes:
            return True
        return total > 0 and (full or self._waits_in_vain())

    def _ends_the_wait(self, requested: _Requested) -> bool:
        """Whether the client has to hear at once why it gets no data of a partition here."""
        if requested.error not in _SET_ASIDE:
            return True
        if self._looked:
            return self._aside is None or requested not in self._aside
        if self._aside is None:
            self._aside = set()
        self._aside.add(requested)
        return False

    def _waits_in_vain(self) -> bool:
        """Whether what was found counts as enough, because waiting would not add to it.

        Apache Kafka counts what is there up to the limits, however few whole batches that are.
        """
        request, readable = self._request, 0
        for requested in self._requested:
            partition, span = requested.partition, requested.span
            if partition is None or partition.log is None or span is None:
                continue
            upto = partition.log.stable if self._committed else partition.log.high
            if span.segment is not upto.segment:  # nothing is added to it any more
                return True
            size, there = span.end - span.start, upto.position - span.start
            readable += max(size, min(there, requested.part.request.partition_max_bytes))
        return readable >= min(
            request.min_bytes, request.max_bytes, self._node.config.fetch_max_bytes
        )

    def _is_hidden(self, requested: _Requested) -> bool:
        """Whether the topic may not be read; checked before the client learns whether it exists."""
        hides = self._call.hides
        if hides is None:
            return False
        if not self._fetching.by_id:
            return hides(requested.part.topic)
        topic = self._node.topics.by_id(requested.part.topic_id)
        return topic is not None and hides(topic.name)

    def _fault(self, requested: _Requested) -> int:
        if self._is_hidden(requested):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partition = requested.partition
        topics = self._node.topics
        if partition is None or (
            requested.image is not topics.image
            and topics.partition(*partition.key) is not partition
        ):
            lost = self._fetching.by_id and topics.by_id(requested.part.topic_id) is None
            return ErrorCode.UNKNOWN_TOPIC_ID if lost else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        fault = (
            partition.refusal(self._node.node_id, requested.part.request.current_leader_epoch) or 0
        )
        if fault == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._any_replica:
            replicas = self._node.leadership.at(*partition.key).replicas
            return 0 if self._node.node_id in replicas else fault
        return fault

    def _nearer(self, requested: _Requested) -> int:
        """The replica in the consumer's rack, when this is the leader and not in that rack."""
        partition = requested.partition
        if partition is None or requested.error or not self._node.leads(partition):
            return NO_NODE
        racks, leadership = self._node.config.racks(), self._node.leadership
        near = [
            n
            for n in leadership.at(*partition.key).replicas
            if n in leadership.alive and racks.get(n) == self._rack
        ]
        return NO_NODE if not near or self._node.node_id in near else near[0]

    def _locate(self, requested: _Requested, max_bytes: int) -> Span | None:
        assert requested.partition is not None
        try:
            offset = requested.part.request.fetch_offset
            return requested.partition.locate(offset, max_bytes, committed=self._committed)
        except BrokerError as error:
            requested.error = error.code
        except (OSError, CorruptRecordError) as error:
            requested.partition.fail_unreadable(error)
            requested.error = ErrorCode.KAFKA_STORAGE_ERROR
        return None

    def _is_known(self, requested: _Requested) -> bool:
        """Whether nothing is new since the session's last answers, so that it goes without saying.

        With many partitions that is so of most, in every answer.
        """
        partition = requested.partition
        if (
            requested.span is not None
            or requested.error
            or partition is None
            or requested.nearer != NO_NODE
        ):
            return False
        try:
            stable = partition.stable_offset
        except (OSError, CorruptRecordError):
            return False  # `_complete` finds it out again, and says so
        return requested.part.has_reported(partition.end_offset, stable, partition.start_offset)

    def _complete(self, requested: _Requested, leaders: Leaders) -> PartitionData:
        """The answer for one partition, with what READ_COMMITTED has to know beside it."""
        partition = requested.partition
        stable = -1
        try:
            if partition is not None:
                stable = partition.stable_offset
                requested.place = self._place(requested.span)
                if self._committed and requested.span is not None:
                    offset = requested.part.request.fetch_offset
                    requested.aborted = partition.aborted(requested.span, offset)
        except (OSError, CorruptRecordError) as error:
            assert partition is not None
            partition.fail_unreadable(error)
            requested.error, requested.span, requested.place = (
                ErrorCode.KAFKA_STORAGE_ERROR,
                None,
                None,
            )
        data = self._data(requested, stable)
        if requested.place is not None:
            data.unknown_tags = [(local_files.TAG, requested.place.encode())]
        if partition is not None and requested.error in HINTED and self._hints:
            leader, epoch = leaders.of(partition)
            data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        return data

    def _place(self, span: Span | None) -> Place | None:
        """Where the client may read a span itself. Raises OSError, CorruptRecordError."""
        if self._links is None or span is None or span.end - span.start < LOCAL_BYTES_MIN:
            return None
        number = self._links.number(span.segment.file)
        if number is None:
            return None
        end_offset = span.segment.offset_behind(span.end)
        return Place(number, span.start, span.end - span.start, end_offset)

    def _finish(self) -> None:
        self._stop_waiting()
        fetching, sessions = self._fetching, self._node.fetch_sessions
        if fetching.overtaken:
            self._call.answer(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
            return
        leaders = Leaders(self._node)
        requested = self._requested
        if fetching.session is not None:
            requested = [each for each in requested if not self._is_known(each)]
        answers = ((each.part, self._complete(each, leaders)) for each in requested)
        responses: list[FetchableTopicResponse] = []
        latest: FetchableTopicResponse | None = None
        for part, data in fetching.select(answers):
            topic, topic_id = part.topic, part.topic_id
            if latest is None or latest.topic_id != topic_id or latest.topic != topic:
                latest = FetchableTopicResponse(topic=topic, topic_id=topic_id)
                responses.append(latest)
            latest.partitions.append(data)
        endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in leaders.addresses()
        ]
        self._call.answer(
            FetchResponse(
                session_id=sessions.keep(fetching, self._node.env.now_ms()),
                responses=responses,
                node_endpoints=endpoints,
            )
        )

    def _data(self, requested: _Requested, stable: int) -> PartitionData:
        partition = requested.partition
        refused = requested.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if partition is None or (
            requested.error and requested.error != ErrorCode.OFFSET_OUT_OF_RANGE
        ):
            return PartitionData(
                partition_index=requested.part.request.partition,
                error_code=requested.error,
                high_watermark=-1,
                aborted_transactions=[] if partition is None or refused else None,
                records=b"",
            )
        return PartitionData(
            partition_index=requested.part.request.partition,
            error_code=requested.error,
            high_watermark=partition.end_offset,
            last_stable_offset=stable,
            log_start_offset=partition.start_offset,
            preferred_read_replica=requested.nearer,
            aborted_transactions=_listed(requested.aborted) if self._committed else None,
            records=b"" if requested.span is None or requested.place else requested.span.views(),
        )


def _links(node: NodeServices, request: FetchRequest, call: Call) -> LocalLinks | None:
    """What the client can read by; None where it cannot, or where answers are inspected."""
    if node.links is None or local_files.found(request.unknown_tags) is None:
        return None
    watched = node.gate is not None or node.failpoints.set
    return node.links if call.is_local and not watched else None


def _listed(aborted: list[AbortedTransaction] | None) -> list[AbortedTransactionOnWire]:
    return [
        AbortedTransactionOnWire(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for entry in aborted or ()
    ]
