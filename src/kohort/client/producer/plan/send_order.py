"""The order in which planned requests leave, though some are made ready out of order. Pure.

Rules (KIP-98: a partition's batches reach its leader in the order of their sequences):
- Requests of a node leave in the order in which they were planned. One that is not ready yet holds
  back those behind it, for its node alone.
- Nodes take turns, so that no node waits for another's long queue.
- A batch packed elsewhere is taken out of its queue first: giving it up meanwhile takes nothing
  from it, and no two threads share a builder.
"""

from __future__ import annotations

from collections import deque

from kohort.client.producer.plan.accumulator import Batch
from kohort.client.producer.plan.produce_requests import Stamp, stamp_of, take
from kohort.client.producer.plan.sender import ProducePlan
from kohort.errors import KohortError
from kohort.records import BatchBuilder
from kohort.records.layout import Readable


class PendingRequest:
    """A request on its way out."""

    __slots__ = ("_packed", "_parts", "error", "plan", "ready", "transactional")

    def __init__(self, plan: ProducePlan, *, transactional: bool) -> None:
        self.plan = plan
        self.transactional = transactional
        self.ready = True
        self.error: KohortError | None = None
        """Why it could not be packed."""
        self._parts: list[tuple[Batch, BatchBuilder, Stamp, int]] = []
        self._packed: list[Readable] = []

    def detach(self) -> None:
        """Take the builders of its batches: it is ready only after `pack` and `packed`."""
        self.ready = False
        for batch in self.plan.batches:
            if batch.builder is not None:
                builder = batch.builder
                self._parts.append((batch, builder, stamp_of(batch), builder.size))
                batch.builder = None

    def pack(self) -> PendingRequest:
        """Build what was detached; on any thread, because nothing else holds it."""
        try:
            for _, builder, stamp, _ in self._parts:
                self._packed.append(take(builder, stamp, transactional=self.transactional))
        except KohortError as error:
            self.error = error
        except Exception as error:  # the codec's own, or memory: the batches must have an outcome
            self.error = KohortError(f"a batch could not be compressed: {error!r}")
        return self

    def packed(self) -> list[tuple[Batch, BatchBuilder, int]]:
        """The batches have their payloads.

        Returns them with their builders, which are free for others, and their sizes before.
        """
        for (batch, _, stamp, _), payload in zip(self._parts, self._packed, strict=False):
            batch.payload, batch.stamp = payload, stamp
        parts = [(batch, builder, size) for batch, builder, _, size in self._parts]
        self._parts, self._packed = [], []
        self.ready = True
        return parts


class SendOrder:
    """The lines of requests, one a node."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[PendingRequest]] = {}

    def enter(self, request: PendingRequest) -> None:
        """Put a request at the end of its node's line."""
        self._lines.setdefault(request.plan.node_id, deque()).append(request)

    def leave(self) -> PendingRequest | None:
        """The next request that may go; None when the first of no line is ready."""
        for node_id, line in self._lines.items():
            if line[0].ready:
                del self._lines[node_id]
                request = line.popleft()
                if line:
                    self._lines[node_id] = line  # behind the others
                return request
        return None
