"""Exactly once: who works on a partition after rebalances that cross with a transaction (E3)."""

from __future__ import annotations

from kohort.client.common.types import TopicPartition
from kohort.errors import KohortError
from kohort.processing.engine.exactly_once_engine import Batch, ExactEngine, Verdict
from tests.processing.test_broken import records
from tests.processing.world import route

TP = TopicPartition("orders", 0)


def done_batch(engine: ExactEngine, offset: int) -> Batch:
    """The next transaction, after one more record has succeeded."""
    engine.polled(TP, records(offset), offset + 1, 0)
    engine.finished(engine.take("threads", 1, 0), [None], 0)
    batch = engine.batch(0)
    assert batch is not None
    return batch


def test_a_late_fence_leaves_a_partition_that_has_come_back() -> None:
    """The fence was about the former assignment; it removed the new one, which nobody read then."""
    engine = ExactEngine([route()], crash_guard=False)
    engine.assigned(TP, 1, 0)
    late = done_batch(engine, 0)
    engine.removed([TP])
    engine.assigned(TP, 2, 0)
    fence = KohortError("another program was faster")
    engine.transaction_aborted(Verdict(late, fence, fenced=[TP]), 0)
    assert TP in engine.partitions
    again = done_batch(engine, 0)
    engine.transaction_aborted(Verdict(again, fence, fenced=[TP]), 0)
    assert TP not in engine.partitions
