"""Flush calls under way, and the failures that a flush raises because no future showed them.

Both are shared by users' threads and the network thread, under the producer's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kohort.client.producer.plan.accumulator import Accumulator, Batch
from kohort.client.producer.plan.delivery import Delivery
from kohort.client.producer.plan.fast_send_choice import Guard
from kohort.errors import DeliveryFailedError, KohortError, TransactionAbortedError

_FAILURES_KEPT_MAX: Final = 1_000


class Flushes:
    """Flush calls under way; while there is one, batches do not linger.

    Args:
        lock: the producer's.
        accumulator: holds the batches to wait for.
        wake: posts a drain; the lock is held.
        check: raises where a call may not wait.
    """

    def __init__(
        self,
        lock: Guard,
        accumulator: Accumulator,
        wake: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._accumulator = accumulator
        self._wake = wake
        self._check = check
        self.under_way = 0

    def begin(self) -> list[Delivery]:
        """Send all batches without lingering; the deliveries to wait for, then call `end`."""
        self._check()
        return self.gather()

    def gather(self) -> list[Delivery]:
        """As `begin`, for a caller that does not wait on this thread."""
        with self._lock:
            self.under_way += 1
            pending: list[Delivery] = []
            for queue in self._accumulator.queues.values():
                pending += [batch.delivery for batch in queue.in_flight]
                pending += [batch.delivery for batch in queue.closed]
                if queue.open is not None:
                    pending.append(queue.open.delivery)
            self._wake()
        return pending

    def end(self) -> None:
        """Linger again."""
        with self._lock:
            self.under_way -= 1


class UnseenFailures:
    """Batches that failed since the last flush; at most 1,000 of them are kept, the rest counted.

    Args:
        lock: the producer's.
    """

    def __init__(self, lock: Guard) -> None:
        self._lock = lock
        self._failures: list[tuple[Delivery, KohortError, int]] = []
        self._uncounted = 0

    def add(self, batch: Batch, error: KohortError) -> None:
        """A batch was not stored; the lock is held."""
        if isinstance(error, TransactionAbortedError):
            return
        if len(self._failures) < _FAILURES_KEPT_MAX:
            self._failures.append((batch.delivery, error, batch.count))
        else:
            self._uncounted += batch.count

    def clear(self) -> None:
        """Forget those of a transaction that ends: its end reports them."""
        with self._lock:
            self._failures, self._uncounted = [], 0

    def check(self) -> None:
        """Raise DeliveryFailedError for what failed since the last call and no future showed."""
        with self._lock:
            failures, self._failures = self._failures, []
            count, self._uncounted = self._uncounted, 0
        unseen = [failure for failure in failures if not failure[0].seen]
        count += sum(failure[2] for failure in unseen)
        if unseen:
            first = unseen[0]
            raise DeliveryFailedError(
                f"{count} record{'s' * (count != 1)} could not be stored; the first failure, of "
                f"{first[0].topic}-{first[0].partition}: {first[1]}",
                count=count,
                first=first[1],
            )
