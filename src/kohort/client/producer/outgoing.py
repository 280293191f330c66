"""Planned requests on their way out: packed elsewhere when that takes long, then sent one by one.

Rules:
- One request leaves in a turn of the loop. Building it may take a while, and heartbeats and fetches
  of the whole process run on this thread, too.
- The compression pool (`client.common.compression_pool`) packs large compressed requests; this
  thread packs the others when their turn to leave comes.
- The order is that of `kohort.client.producer.plan.send_order`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kohort.client.producer.plan.accumulator import Accumulator
from kohort.client.producer.plan.produce_requests import seal
from kohort.client.producer.plan.send_order import PendingRequest, SendOrder
from kohort.client.producer.plan.sender import ProducePlan
from kohort.errors import KohortError
from kohort.net import Loop

if TYPE_CHECKING:
    from kohort.client.common.compression_pool import CompressionPool

_PACKED_BYTES_MIN: Final = 32_768
"""Below it, handing the work to another thread takes as long as the work."""
Send = Callable[[ProducePlan, KohortError | None], None]


class Outgoing:
    """The way out of one producer. On the network thread only."""

    def __init__(
        self,
        loop: Loop,
        accumulator: Accumulator,
        compression_pool: Callable[[], CompressionPool | None],
        send: Send,
        *,
        transactional: bool,
    ) -> None:
        """`send` receives each request whose turn has come, or the error that holds it back."""
        self._loop = loop
        self._accumulator = accumulator
        self._compression_pool = compression_pool
        self._send = send
        self._transactional = transactional
        self._send_order = SendOrder()
        self._posted = False

    def add(self, plans: list[ProducePlan]) -> None:
        """Let requests go, after those that are in line."""
        for plan in plans:
            request = PendingRequest(plan, transactional=self._transactional)
            pool = self._compression_pool() if self._is_work(plan) else None
            if pool is not None:
                request.detach()
                pool.submit(request.pack, self._packed)
            self._send_order.enter(request)
        if not self._posted:
            self._next()

    def _is_work(self, plan: ProducePlan) -> bool:
        if not self._accumulator.compresses:
            return False
        sizes = (batch.builder.size for batch in plan.batches if batch.builder is not None)
        return sum(sizes) >= _PACKED_BYTES_MIN

    def _packed(self, request: PendingRequest) -> None:
        """Called by a packer."""
        for batch, builder, before in request.packed():
            self._accumulator.packed(batch, builder, before)
        if not self._posted:
            self._next()

    def _next(self) -> None:
        self._posted = False
        request = self._send_order.leave()
        if request is None:
            return
        self._posted = True
        self._loop.call_soon(self._next)
        error = request.error
        try:
            if error is None:
                for batch in request.plan.batches:
                    builder = batch.builder
                    before = 0 if builder is None else builder.size
                    if seal(batch, transactional=self._transactional) and builder is not None:
                        batch.builder = None
                        self._accumulator.packed(batch, builder, before)
        except KohortError as failed:
            error = failed
        self._send(request.plan, error)
