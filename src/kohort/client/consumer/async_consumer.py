"""The consumer for asyncio tasks.

    async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
        await consumer.subscribe(["orders"])
        async for record in consumer:
            await handle(record)

Rules:
- The same core as `Consumer`, with the network on its own thread: a handler that blocks the event
  loop delays no heartbeat.
- Cancelling any call loses no record: records leave the buffer only in the step that returns them,
  and an open rebalance step continues with the next call (C9).
- Listener methods and commit callbacks may be coroutine functions; they run in the calling task.

Shell: asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kohort.client.cluster.waiting import LONGEST_WAIT_S, CloseReport, Steps, Wait
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
from kohort.records import Record

if TYPE_CHECKING:
    from kohort.client.common.typed_settings import ConsumerSettings

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]


class AsyncBell:
    """Wakes one waiting task from any thread. A ring without a waiter is kept, once."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def ring(self) -> None:
        """Wake the task, or let its next wait return at once."""
        self._rung = True
        waiter = self._waiter
        if waiter is None:
            return
        loop, future = waiter
        try:
            loop.call_soon_threadsafe(_wake, future)
        except RuntimeError:
            return  # the task's loop is closed: there is no waiter

    async def wait(self, timeout_s: float) -> None:
        """Return when it rings, at the latest after the time."""
        # `_waiter` is set before `_rung` is looked at, and a ringer does it the other way round, so
        # that no ring falls between the two.
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiter = (loop, future)
        try:
            if self._rung:
                await asyncio.sleep(0)
                return
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            self._rung, self._waiter = False, None
            future.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _me() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class AsyncConsumer(ConsumerBase):
    """Reads records of a Kafka cluster in an asyncio task. See `Consumer` for what calls mean.

    Configuration by keywords, by a `ConsumerConfig`, or both. Use it from one task at a time.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, Any] | None = None,
        **keywords: Unpack[ConsumerSettings],
    ) -> None:
        self._bell = AsyncBell()
        super().__init__(settled(config, keywords), _me, self._bell.ring)

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Wait):
                        await self._bell.wait(step.timeout_s)
                    else:
                        outcome = step.fn(*step.args)
                        if inspect.isawaitable(outcome):
                            await outcome
                except BaseException as error:  # the call decides what an error or a cancel means
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration as done:
            return done.value
        finally:
            steps.close()  # as `run_steps` does, and for its reason

    # -- what is read ----------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Topics,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches a pattern; see `Consumer`."""
        with self._gate:
            self._subscribe(topics, listener, awaits=True)

    async def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, without group membership."""
        with self._gate:
            self._assign(partitions)

    async def unsubscribe(self, timeout: float | None = None) -> None:
        """Release everything; a member leaves its group after its listener is called."""
        with self._gate:
            self._calls.begin()
            await self._run(self._calls.unsubscribe(self._time_ms(timeout, "unsubscribe()")))

    # -- reading ---------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> list[Record]:
        """Records, as soon as there are any; an empty list after `timeout` seconds."""
        with self._gate:
            self._calls.begin()
            wait_s = arguments.seconds(timeout, "poll()")
            take = self._take_records(self._most(max_records, self.config.max_poll_records))
            return await self._run(self._calls.poll(take, wait_s)) or []

    async def poll_arrow(
        self,
        timeout: float = 1.0,
        *,
        max_rows: int = DEFAULT_ARROW_ROWS,
        columns: Collection[str] = ARROW_COLUMNS,
    ) -> Any:
        """The same as columns: one `pyarrow.RecordBatch`, empty when the time has passed."""
        with self._gate:
            self._calls.begin()
            wait_s = arguments.seconds(timeout, "poll_arrow()")
            take = self._take_batch(self._most(max_rows, DEFAULT_ARROW_ROWS), columns)
            batch = await self._run(self._calls.poll(take, wait_s))
            return self._empty_batch(columns) if batch is None else batch

    async def __aiter__(self) -> AsyncGenerator[Record, None]:
        """Record after record, until `close`. Leaving or cancelling the loop loses nothing."""
        reader, calls, core = self._core.reader, self._calls, self._core
        inbox, most = core.inbox, self.config.max_poll_records
        while not calls.closed:
            with self._gate:
                calls.begin()
                steps = calls.poll(lambda: reader.take_piece(most), LONGEST_WAIT_S)
                piece = await self._run(steps)
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

    async def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit and wait until the coordinator has it; without offsets all that was handed out."""
        with self._gate:
            await self._run(
                self._calls.commit(self._offsets(offsets), self._time_ms(timeout, "commit()"))
            )

    def commit_async(
        self, offsets: Offsets | None = None, callback: Callable[..., Any] | None = None
    ) -> None:
        """Commit without waiting; `callback(offsets, error)` is called inside a later call."""
        with self._gate:
            self._commit_async(offsets, callback, awaits=True)

    async def committed(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where there is none."""
        with self._gate:
            tps = self._partitions(partitions, "committed")
            self._offsets({})
            return await self._run(
                self._calls.committed(tps, self._time_ms(timeout, "committed()"))
            )

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record that `poll` will hand out; waits until it is known."""
        with self._gate:
            self._calls.check()
            tp = arguments.partition(partition, "position")
            return await self._run(self._calls.position(tp, self._time_ms(timeout, "position()")))

    async def beginning_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition, assigned or not."""
        return await self._sentinel(partitions, EARLIEST, timeout)

    async def end_offsets(
        self, partitions: Iterable[Partition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition, assigned or not."""
        return await self._sentinel(partitions, LATEST, timeout)

    async def offsets_for_times(
        self, times: ByPartition[int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since 1970) in each partition; None if none."""
        with self._gate:
            self._calls.check()
            targets = self._times(times)
            time_ms = self._time_ms(timeout, "offsets_for_times()")
            return await self._run(self._calls.offsets(targets, time_ms))

    async def _sentinel(
        self, partitions: Iterable[Partition], sentinel: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        with self._gate:
            call = "beginning_offsets" if sentinel == EARLIEST else "end_offsets"
            targets = dict.fromkeys(self._partitions(partitions, call), sentinel)
            time_ms = self._time_ms(timeout, f"{call}()")
            offsets = await self._run(self._calls.offsets(targets, time_ms))
            return {tp: 0 if at is None else at.offset for tp, at in offsets.items()}

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, timeout: float = 30.0) -> CloseReport:
        """Commit what was handed out (if automatic), give up, leave the group, end."""
        with self._gate:
            return await self._close(timeout, dealt_with=True)

    async def _close(self, timeout: float, *, dealt_with: bool) -> CloseReport:
        if (done := self._closed_already()) is not None:
            return done
        time_ms = self._time_ms(timeout, "close()")
        try:
            steps = self._calls.close(time_ms, dealt_with=dealt_with)
            return await self._run(steps)
        finally:
            self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. After an exception the records of the last poll do not count as dealt with."""
        with self._gate:
            await self._close(30.0, dealt_with=kind is None)
