"""The producer's two faces: `Producer` blocks where it must wait, `AsyncProducer` suspends.

Rules:
- `send` may be called from any thread (any task). It takes one lock, adds the record to a batch
  and returns its future; it waits only for memory (`buffer_memory`) and for the metadata of a topic
  seen for the first time, at most `max_block_ms`.
- A thread that sends without a pause keeps the interpreter's lock for 5 ms at a time, and the
  network thread needs it several times a request. So it gives way for a moment with each batch,
  longer with a large one, once a quarter of `buffer_memory` is in use: else they work in turns, not
  side by side, and it runs so far ahead that memory is never in a cache.
- A failure that was not seen through its future is raised by the next `flush` or `close`.

Shell: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kohort.client.cluster.measured import Observed
from kohort.client.common import arguments as arguments
from kohort.client.common.config import ProducerConfig
from kohort.client.common.future import Future
from kohort.client.producer import send_many as bulk
from kohort.client.producer.plan.delivery import Delivery
from kohort.client.producer.plan.fast_send import Headers
from kohort.client.producer.plan.fast_send_choice import Front, RecordFuture
from kohort.client.producer.transactions_api import AsyncTransacting, Transacting
from kohort.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from kohort.client.common.typed_settings import ProducerSettings
    from kohort.client.producer.core import ProducerCore

T = TypeVar("T")


class _Begun(Observed):
    """What both faces hold of a producer that works."""

    config: ProducerConfig

    def _begin(self) -> ProducerCore:
        # What a producer works with is imported with the first one, not with its class.
        from kohort.client.cluster.finalizers import watch_over
        from kohort.client.producer.core import ProducerCore
        from kohort.client.producer.finalizer import end_producer
        from kohort.client.producer.metrics import ProducerMetrics

        self._core = core = ProducerCore(self.config)
        self._metrics = ProducerMetrics(core)
        self._watched = watch_over(self, core.thread, end_producer(core))
        return core


class Producer(Front, Transacting, _Begun):
    """Sends records. Make one for a process and share it; close it, or use it in a `with` block.

    Takes `ProducerConfig`'s keys as keyword arguments, or a ready `ProducerConfig`. The brokers are
    first asked when the first record is sent. Idempotent by default: a retry stores nothing twice
    and keeps the order of a partition.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            future = producer.send("flights", b"value", key=b"N14228")
            print(future.result().offset)
    """

    def __init__(
        self,
        config: ProducerConfig | Mapping[str, Any] | None = None,
        /,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.config = ProducerConfig.settled(config, settings)
        core = self._begin()
        super().__init__(core.lock, core.routes, core.chooses, self._add_slowly)

    def _add_slowly(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> RecordFuture:
        """What `send` does when there is no open batch with room; waits for memory or metadata."""
        headers = arguments.several_times(headers)
        deadline_ms = 0
        while True:
            result = self._core.add(topic, value, key, partition, timestamp_ms, headers)
            if not isinstance(result, Future):
                if give_way_s := self._core.give_way_s:
                    time.sleep(give_way_s)
                return result
            self._core.check_may_wait()
            deadline_ms = deadline_ms or self._core.now_ms() + self.config.max_block_ms
            if not result.wait((deadline_ms - self._core.now_ms()) / 1000):
                raise self._core.blocked_error(topic)

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[RecordFuture]:
        """Send many records at once, several times faster than one by one.

        Returns a future for each batch that was filled: that of the last record which went into it.
        Records without keys fill one partition's batch after the other. Raises as `send` does; then
        the records before the one that failed have been sent.
        """
        when_ms = self._core.wall_ms() if timestamp_ms is None else timestamp_ms
        steps = bulk.many(self._core, topic, values, keys, partition, when_ms)
        return self._carried_out(steps, topic)

    def produce_arrow(
        self,
        topic: str,
        data: Any,
        partition: int | None = None,
    ) -> list[RecordFuture]:
        """Send the rows of a `pyarrow` RecordBatch or Table; columns go straight into batches.

        Columns by name: `value` and `key` (binary or string, either may be missing), `timestamp`
        (timestamp or int64 ms; missing or null: now), `headers` (list of struct of key and value),
        `partition` (when `partition` is not given). Returns and raises as `send_many` does, and
        UsageError for columns of other names or types.
        """
        when_ms = self._core.wall_ms()
        return self._carried_out(bulk.arrow(self._core, topic, data, partition, when_ms), topic)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what has been gathered and wait until each record of before is stored or has failed.

        Raises DeliveryFailedError when records failed whose futures were not looked at, and
        KafkaTimeoutError when `timeout_s` seconds (default: `delivery_timeout_ms` bounds it) pass.
        """
        timeout_s = (
            None if timeout_s is None else arguments.seconds(timeout_s, "flush()", "timeout_s")
        )
        begun_ms = self._core.now_ms()
        pending = self._core.flushes.begin()
        try:
            deadline = None if timeout_s is None else self._core.now_s() + timeout_s
            for delivery in pending:
                wait_s = None if deadline is None else deadline - self._core.now_s()
                if not delivery.wait(wait_s):
                    raise _no_outcome(pending, timeout_s)
        finally:
            self._core.flushes.end()
            self._core.called("flush", begun_ms)
        self._core.failures.check()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then close the connections; records without an outcome by then fail.

        A transaction that is open is aborted. Raises as `flush` does, after everything has been
        closed. A second call does nothing, nor does one in the child of a fork.
        """
        if self._core.closed:
            return
        timeout_s = (
            None if timeout_s is None else arguments.seconds(timeout_s, "close()", "timeout_s")
        )
        if not self._core.thread.alive:
            self._shut_down()
            return
        try:
            self._abort_open(timeout_s)
            self.flush(timeout_s)
        finally:
            self._shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. After an exception, unsent records are dropped and an open transaction is
        aborted."""
        if error is None:
            self.close()
        elif not self._core.closed:
            try:
                self._abort_failed(error)
            finally:
                self._shut_down()

    # -- inside

    def _shut_down(self) -> None:
        thread = self._core.thread
        if thread.alive:
            thread.call(self._core.shut_down).wait(5)
        self._core.closed = True
        self._watched.detach()
        self._core.release_thread()

    def _carried_out(self, steps: bulk.Filling[T], topic: str) -> T:
        core = self._core
        while True:
            try:
                wait = next(steps)
            except StopIteration as done:
                return done.value
            if wait is None:
                if give_way_s := core.give_way_s:
                    time.sleep(give_way_s)
                continue
            core.check_may_wait()
            if not wait.future.wait((wait.deadline_ms - core.now_ms()) / 1000):
                raise core.blocked_error(topic)


class AsyncProducer(AsyncTransacting, _Begun):
    """The same for asyncio: what may wait is awaited. Made inside or outside of a running loop."""

    def __init__(
        self,
        config: ProducerConfig | Mapping[str, Any] | None = None,
        /,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.config = ProducerConfig.settled(config, settings)
        self._begin()

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> RecordFuture:
        """As `Producer.send`; awaiting the future it returns waits until the record is stored."""
        headers = arguments.several_times(headers)
        result = self._core.add(topic, value, key, partition, timestamp_ms, headers)
        deadline_ms = self._core.now_ms() + self.config.max_block_ms
        while isinstance(result, Future):
            if not await _in_time(result, (deadline_ms - self._core.now_ms()) / 1000):
                raise self._core.blocked_error(topic)
            result = self._core.add(topic, value, key, partition, timestamp_ms, headers)
        return result

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[RecordFuture]:
        """As `Producer.send_many`. Other tasks run between two batches."""
        when_ms = self._core.wall_ms() if timestamp_ms is None else timestamp_ms
        steps = bulk.many(self._core, topic, values, keys, partition, when_ms)
        return await self._carried_out(steps, topic)

    async def produce_arrow(
        self,
        topic: str,
        data: Any,
        partition: int | None = None,
    ) -> list[RecordFuture]:
        """As `Producer.produce_arrow`. Other tasks run between two batches."""
        when_ms = self._core.wall_ms()
        steps = bulk.arrow(self._core, topic, data, partition, when_ms)
        return await self._carried_out(steps, topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """As `Producer.flush`."""
        timeout_s = (
            None if timeout_s is None else arguments.seconds(timeout_s, "flush()", "timeout_s")
        )
        begun_ms = self._core.now_ms()
        pending = self._core.flushes.begin()
        try:
            deadline = None if timeout_s is None else self._core.now_s() + timeout_s
            for delivery in pending:
                wait_s = None if deadline is None else deadline - self._core.now_s()
                if not await _in_time(_settled(delivery), wait_s):
                    raise _no_outcome(pending, timeout_s)
        finally:
            self._core.flushes.end()
            self._core.called("flush", begun_ms)
        self._core.failures.check()

    async def close(self, timeout_s: float | None = None) -> None:
        """As `Producer.close`."""
        if self._core.closed:
            return
        timeout_s = (
            None if timeout_s is None else arguments.seconds(timeout_s, "close()", "timeout_s")
        )
        try:
            await self._abort_open(timeout_s)
            await self.flush(timeout_s)
        finally:
            await self._shut_down()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As `Producer.__exit__`."""
        if error is None:
            await self.close()
        elif not self._core.closed:
            try:
                await self._abort_failed(error)
            finally:
                await self._shut_down()

    async def _carried_out(self, steps: bulk.Filling[T], topic: str) -> T:
        import asyncio  # only tasks need it, and they have it

        core = self._core
        while True:
            try:
                wait = next(steps)
            except StopIteration as done:
                return done.value
            if wait is None:
                await asyncio.sleep(0)
            elif not await _in_time(wait.future, (wait.deadline_ms - core.now_ms()) / 1000):
                raise core.blocked_error(topic)

    async def _shut_down(self) -> None:
        thread = self._core.thread
        if thread.alive:
            await thread.call(self._core.shut_down)
        self._core.closed = True
        self._watched.detach()
        self._core.release_thread()


def _no_outcome(pending: list[Delivery], timeout_s: float | None) -> KafkaTimeoutError:
    left = sum(not delivery.done for delivery in pending)
    return KafkaTimeoutError(
        f"{left} of {len(pending)} batches had no outcome after {timeout_s} s; they are still "
        f"being sent"
    )


def _settled(delivery: Delivery) -> Future[None]:
    future: Future[None] = Future()
    delivery.add_callback(lambda: future.set_result(None))
    return future


async def _in_time(future: Future[None], timeout_s: float | None) -> bool:
    """Await a future; False when the time ran out first."""
    import asyncio  # only tasks need it, and they have it

    try:
        async with asyncio.timeout(timeout_s):
            await future
    except TimeoutError:
        return False
    return True
