"""Transactions as users call them, for both faces of the producer (KIP-98, KIP-447, KIP-890).

    producer = Producer(bootstrap_servers=..., transactional_id="copier-1")
    producer.init_transactions()
    with producer.transaction():
        producer.send("out", value)
        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())

Rules:
- An AbortableTransactionError ends the transaction, not the producer: abort, and do it again.
- Every other error than a KafkaTimeoutError is final: make a new producer.
- After a KafkaTimeoutError of an end it is not known whether it was one: the same call again waits
  for the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from kohort.client.common import arguments as arguments
from kohort.client.common.future import Future
from kohort.client.common.types import ByPartition, GroupMetadata, OffsetAndMetadata
from kohort.client.producer.plan.delivery import Delivery
from kohort.errors import (
    AbortableTransactionError,
    FencedError,
    KohortError,
    UsageError,
)

if TYPE_CHECKING:
    from kohort.client.producer.core import ProducerCore
    from kohort.client.producer.transactions_shell import Transactional

Offsets = ByPartition[OffsetAndMetadata | int]
LAST_ABORT_S: Final = 3.0
"""An error waits no longer for the end of the transaction that it left open."""


def _note(cause: BaseException, error: KohortError) -> None:
    """Say beside what went wrong that the transaction could not be aborted either.

    Raises FencedError instead where that forbids what an AbortableTransactionError asks for: a
    broker may tell a fenced producer of its old epoch first, and it can never do its work again.
    """
    if isinstance(error, FencedError) and isinstance(cause, AbortableTransactionError):
        raise error from cause
    cause.add_note(f"and the transaction could not be aborted: {error}")


class Transacting:
    """The transactional calls of `Producer`: they block, at most `max_block_ms` by default."""

    _core: ProducerCore

    def init_transactions(self, timeout_s: float | None = None) -> None:
        """Take over the transactional id: fence its old producer, abort what that had open.

        Once, before the first transaction. Raises KafkaTimeoutError (call again), BrokerError.
        """
        begun_ms, wait_s = self._core.now_ms(), self._time_s(timeout_s)
        tx = transactional(self._core)
        _wait(tx, tx.init(), wait_s, "init_transactions")
        tx.outcome_delivered()
        self._core.called("init_transactions", begun_ms)

    def begin_transaction(self) -> None:
        """Open a transaction: records and offsets belong to it until it is ended."""
        transactional(self._core).begin()

    def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Send everything, then commit: all of it becomes visible, or nothing of it.

        Raises AbortableTransactionError, FencedError, and KafkaTimeoutError: call it again then.
        """
        self._end(commit=True, timeout_s=timeout_s)

    def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Drop what was not sent and abort: readers of committed records see none of them."""
        self._end(commit=False, timeout_s=timeout_s)

    def _end(self, *, commit: bool, timeout_s: float | None) -> None:
        tx = transactional(self._core)
        begun_ms = self._core.now_ms()
        deadline = self._core.now_s() + self._time_s(timeout_s)
        what = "commit_transaction" if commit else "abort_transaction"
        tx.start_end(commit=commit)
        pending = self._core.flushes.begin()
        try:
            for delivery in pending:
                if not delivery.wait(deadline - self._core.now_s()):
                    raise tx.too_late(what)
        finally:
            self._core.flushes.end()
        self._core.failures.clear()
        _wait(tx, tx.finish_end(), deadline - self._core.now_s(), what)
        tx.outcome_delivered()
        self._core.called(what, begun_ms)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: GroupMetadata, timeout_s: float | None = None
    ) -> None:
        """Commit a group's offsets with the transaction: `consumer.positions()`, say.

        `group_metadata` is `consumer.group_metadata()`, asked for just now: a member that its group
        has left behind is refused with AbortableTransactionError (KIP-447).
        """
        tx = transactional(self._core)
        wait_s = self._time_s(timeout_s)
        arguments.groups_member(group_metadata)
        checked = arguments.offsets(offsets, "send_offsets_to_transaction")
        future = tx.commit_offsets(group_metadata, checked)
        begun_ms = self._core.now_ms()
        _wait(tx, future, wait_s, "send_offsets_to_transaction")
        self._core.called("send_offsets_to_transaction", begun_ms)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """A transaction for the length of a `with` block: committed at its end, or aborted.

        An error inside aborts it and is raised. When the commit is refused, the transaction is
        aborted and AbortableTransactionError raised: do its work again. FencedError: never again.
        """
        self.begin_transaction()
        try:
            yield
        except BaseException as error:  # any error: half a transaction must not be committed
            self._abort_after(error)
            raise
        try:
            self.commit_transaction()
        except AbortableTransactionError as error:
            self._abort_after(error)
            raise

    def _abort_after(self, cause: BaseException) -> None:
        tx = transactional(self._core)
        try:
            if tx.is_open:
                self.abort_transaction()
            elif isinstance(cause, AbortableTransactionError):
                tx.check_alive()  # the answer to another request may have reported the fence since
        except KohortError as error:
            _note(cause, error)

    def _abort_open(self, timeout_s: float | None) -> None:
        """Before the producer is closed: readers would wait for a transaction that never ends."""
        if self._core.transactional is not None and self._core.transactional.is_open:
            self.abort_transaction(timeout_s)

    def _abort_failed(self, cause: BaseException) -> None:
        """Before the producer is dropped because of an error, which says if it was in vain."""
        if self._core.thread.alive:
            try:
                self._abort_open(LAST_ABORT_S)
            except KohortError as error:
                cause.add_note(f"and the transaction could not be aborted: {error}")

    def _time_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._core.config.max_block_ms / 1000
        return arguments.seconds(timeout_s, "a transaction's call", "timeout_s")


class AsyncTransacting:
    """The transactional calls of `AsyncProducer`."""

    _core: ProducerCore

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """As `Producer.init_transactions`."""
        begun_ms, wait_s = self._core.now_ms(), self._time_s(timeout_s)
        tx = transactional(self._core)
        await _await(tx, tx.init(), wait_s, "init_transactions")
        tx.outcome_delivered()
        self._core.called("init_transactions", begun_ms)

    def begin_transaction(self) -> None:
        """As `Producer.begin_transaction`; it does not wait."""
        transactional(self._core).begin()

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """As `Producer.commit_transaction`."""
        await self._end(commit=True, timeout_s=timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """As `Producer.abort_transaction`."""
        await self._end(commit=False, timeout_s=timeout_s)

    async def _end(self, *, commit: bool, timeout_s: float | None) -> None:
        tx = transactional(self._core)
        begun_ms = self._core.now_ms()
        deadline = self._core.now_s() + self._time_s(timeout_s)
        what = "commit_transaction" if commit else "abort_transaction"
        tx.start_end(commit=commit)
        pending = self._core.flushes.begin()
        try:
            for delivery in pending:
                await _await(tx, _done(delivery), deadline - self._core.now_s(), what)
        finally:
            self._core.flushes.end()
        self._core.failures.clear()
        await _await(tx, tx.finish_end(), deadline - self._core.now_s(), what)
        tx.outcome_delivered()
        self._core.called(what, begun_ms)

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: GroupMetadata, timeout_s: float | None = None
    ) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        tx = transactional(self._core)
        wait_s = self._time_s(timeout_s)
        arguments.groups_member(group_metadata)
        checked = arguments.offsets(offsets, "send_offsets_to_transaction")
        future = tx.commit_offsets(group_metadata, checked)
        begun_ms = self._core.now_ms()
        await _await(tx, future, wait_s, "send_offsets_to_transaction")
        self._core.called("send_offsets_to_transaction", begun_ms)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """As `Producer.transaction`, in an `async with` block."""
        self.begin_transaction()
        try:
            yield
        except BaseException as error:  # any error: half a transaction must not be committed
            await self._abort_after(error)
            raise
        try:
            await self.commit_transaction()
        except AbortableTransactionError as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, cause: BaseException) -> None:
        tx = transactional(self._core)
        try:
            if tx.is_open:
                await self.abort_transaction()
            elif isinstance(cause, AbortableTransactionError):
                tx.check_alive()  # as for threads
        except KohortError as error:
            _note(cause, error)

    async def _abort_open(self, timeout_s: float | None) -> None:
        """As `Producer._abort_open`."""
        if self._core.transactional is not None and self._core.transactional.is_open:
            await self.abort_transaction(timeout_s)

    async def _abort_failed(self, cause: BaseException) -> None:
        """As `Producer._abort_failed`."""
        if self._core.thread.alive:
            try:
                await self._abort_open(LAST_ABORT_S)
            except KohortError as error:
                cause.add_note(f"and the transaction could not be aborted: {error}")

    def _time_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._core.config.max_block_ms / 1000
        return arguments.seconds(timeout_s, "a transaction's call", "timeout_s")


def transactional(core: ProducerCore) -> Transactional:
    """What has the producer's transactions. Raises UsageError when it has none."""
    core.check_may_wait()
    core.thread.check()
    if core.transactional is None:
        raise UsageError("this producer has no transactional_id; give it one to use transactions")
    return core.transactional


def _wait(tx: Transactional, future: Future[None], timeout_s: float, what: str) -> None:
    if not future.wait(timeout_s):
        raise tx.too_late(what)
    future.result()


async def _await(tx: Transactional, future: Future[Any], timeout_s: float, what: str) -> None:
    import asyncio  # only tasks need it, and they have it

    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            await future
    except TimeoutError as error:
        if isinstance(error, KohortError):
            raise
        raise tx.too_late(what) from None


def _done(delivery: Delivery) -> Future[None]:
    future: Future[None] = Future()
    delivery.add_callback(lambda: future.set_result(None))
    return future
