"""The consumer for threads.

    from kohort import Consumer

    with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

Rules:
- The network runs on a thread that all clients of the process share: heartbeats, fetches and
  commits continue while your code computes. `poll` takes buffered records without asking that
  thread.
- Listeners and commit callbacks run on your thread, inside your calls.
- `poll` commits automatically (unless `enable_auto_commit=False`) what the call before it returned:
  at least once, never less.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kohort.client.cluster.waiting import LONGEST_WAIT_S, CloseReport, Doorbell, Steps, run_steps
from kohort.client.common import arguments as arguments
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.listener import RebalanceListener
from kohort.client.common.offset_reset import EARLIEST, LATEST
from kohort.client.common.types import (
    ByPartition,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from kohort.client.consumer.base import (
    ARROW_COLUMNS,
    DEFAULT_ARROW_ROWS,
    ConsumerBase,
    Offsets,
    settled,
)
from kohort.client.consumer.plan.subscription import Topics
from kohort.errors import KohortError
from kohort.records import Record

if TYPE_CHECKING:
    from kohort.client.common.typed_settings import ConsumerSettings

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KohortError | None], None]


class Consumer(ConsumerBase):
    """Reads records of a Kafka cluster, alone or as a member of a group.

    Configuration by keywords (`group_id="g"`), by a `ConsumerConfig`, or both; an unknown key is a
    ConfigError that names the nearest. Use it from one thread at a time; `wakeup` from any.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, Any] | None = None,
        **keywords: Unpack[ConsumerSettings],
    ) -> None:
        self._bell = Doorbell()
        super().__init__(settled(config, keywords), threading.get_ident, self._bell.ring)

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(steps, self._bell)

    # -- what is read ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches a pattern, with the group.

        A compiled pattern is matched here, a `SubscriptionPattern` by the broker (KIP-848).
        Replaces an earlier subscription. Partitions come with the next polls. UsageError beside
        `assign`, or for a bad name; ConfigError without a `group_id`.
        """
        with self._gate:
            self._subscribe(topics, listener)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, without group membership, rebalance or failure detection.

        Replaces an earlier choice; partitions that stay keep their position. Commits go to the
        `group_id` if there is one. UsageError beside `subscribe`.
        """
        with self._gate:
            self._assign(partitions)

    def unsubscribe(self, timeout: float | None = None) -> None:
        """Release everything; a member leaves its group after its listener is called."""
        with self._gate:
            self._calls.begin()
            self._run(self._calls.unsubscribe(self._time_ms(timeout, "unsubscribe()")))

    # -- reading ---------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> list[Record]:
        """Records, as soon as there are any; an empty list when `timeout` seconds have passed.

        At most `max_records` (default `max_poll_records`, 500). Rebalances happen inside this call;
        call it at least every `max_poll_interval_ms`. Raises WakeupError after `wakeup()`, errors
        of the listener, and errors that only you can mend (see the error's text).
        """
        with self._gate:
            calls, core = self._calls, self._core
            calls.begin()
            most = self._most(max_records, self.config.max_poll_records)
            if timeout.__class__ is not float:
                timeout = arguments.seconds(timeout, "poll()")
            if not core.inbox.attention:
                records = core.reader.take(most)
                calls.after_take()
                if records:
                    return records
            wait_s = arguments.seconds(timeout, "poll()")
            return self._run(calls.poll(self._take_records(most), wait_s)) or []

    def poll_arrow(
        self,
        timeout: float = 1.0,
        *,
        max_rows: int = DEFAULT_ARROW_ROWS,
        columns: Collection[str] = ARROW_COLUMNS,
    ) -> Any:
        """The same as columns: one `pyarrow.RecordBatch`, empty when the time has passed.

        `columns` are some of topic, partition, offset, timestamp, timestamp_type, key, value,
        headers; fewer are faster. A batch may span partitions; rows of one partition are in order.
        Needs the extra `kohort[arrow]`.
        """
        with self._gate:
            self._calls.begin()
            wait_s = arguments.seconds(timeout, "poll_arrow()")
            take = self._take_batch(self._most(max_rows, DEFAULT_ARROW_ROWS), columns)
            batch = self._run(self._calls.poll(take, wait_s))
            return self._empty_batch(columns) if batch is None else batch

    def __iter__(self) -> Generator[Record, None, None]:
        """Record after record, for ever (until `close`). Leaving the loop loses nothing.

        Each record counts as dealt with when the next one is asked for; `commit()` inside the loop
        covers up to the present one.
        """
        reader, calls, core = self._core.reader, self._calls, self._core
        inbox, most = core.inbox, self.config.max_poll_records
        while not calls.closed:
            with self._gate:
                calls.begin()
                piece = self._run(calls.poll(lambda: reader.take_piece(most), LONGEST_WAIT_S))
            if piece is None:
                continue
            position, fetched, dealt_with = piece.position, piece.fetched, True
            try:
                for record in piece.records:
                    position.offset = record.offset + 1
                    dealt_with = False
                    yield record
                    dealt_with = True
                    core.beats += 1
                    if position.buffer is not fetched or position.paused or inbox.attention:
                        break
            finally:
                reader.end_piece(piece, dealt_with=dealt_with)
                calls.after_take()

    # -- offsets ---------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit and wait until the coordinator has it; without offsets all that was handed out.

        An offset is that of the next record to read. CommitFailedError when the partitions belong
        to another member by now, KafkaTimeoutError when the time (default
        `default_api_timeout_ms`) is over.
        """
        with self._gate:
            self._run(
                self._calls.commit(self._offsets(offsets), self._time_ms(timeout, "commit()"))
            )

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting; `callback(offsets, error)` is called inside a later call.

        Commits reach the coordinator in the order of these calls.
        """
        with self._gate:
            self._commit_async(offsets, callback)

    def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where there is none."""
        with self._gate:
            tps = self._partitions(partitions, "committed")
            self._offsets({})
            return self._run(self._calls.committed(tps, self._time_ms(timeout, "committed()")))

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record that `poll` will hand out; waits until it is known."""
        with self._gate:
            self._calls.check()
            tp = arguments.partition(partition, "position")
            return self._run(self._calls.position(tp, self._time_ms(timeout, "position()")))

    def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition, assigned or not."""
        return self._sentinel(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition, assigned or not."""
        return self._sentinel(partitions, LATEST, timeout)

    def offsets_for_times(
        self, times: ByPartition[int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since 1970) in each partition; None if none."""
        with self._gate:
            self._calls.check()
            targets = self._times(times)
            time_ms = self._time_ms(timeout, "offsets_for_times()")
            return self._run(self._calls.offsets(targets, time_ms))

    def _sentinel(
        self, partitions: Iterable[Partition], sentinel: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        with self._gate:
            call = "beginning_offsets" if sentinel == EARLIEST else "end_offsets"
            targets = dict.fromkeys(self._partitions(partitions, call), sentinel)
            time_ms = self._time_ms(timeout, f"{call}()")
            offsets = self._run(self._calls.offsets(targets, time_ms))
            return {tp: 0 if at is None else at.offset for tp, at in offsets.items()}

    # -- the end ---------------------------------------------------------------------------------

    def close(self, timeout: float = 30.0) -> CloseReport:
        """Commit what was handed out (if automatic), give up, leave the group, end.

        Takes at most about `timeout` seconds; the report says what was not done in time. A second
        call does nothing. The listener is called as for a revocation.
        """
        with self._gate:
            return self._close(timeout, dealt_with=True)

    def _close(self, timeout: float, *, dealt_with: bool) -> CloseReport:
        if (done := self._closed_already()) is not None:
            return done
        time_ms = self._time_ms(timeout, "close()")
        try:
            steps = self._calls.close(time_ms, dealt_with=dealt_with)
            return self._run(steps)
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. After an exception the records of the last poll do not count as dealt with."""
        with self._gate:
            self._close(30.0, dealt_with=kind is None)
