"""One record of a retry topic, by hand: tried now, or sent to the dead-letter topic now.

Rules (R2, spec 5.7):
- Only the process that owns the partition does it, so the record is handled once, and its offset
  is noted as done beside the commit before its turn comes.
- The record is read by its place, so that those that wait before it stay where they are.

Shell: threads (a queue), the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from kohort.errors import KafkaTimeoutError, UsageError
from kohort.processing.runtime.runner import TakeEarly
from kohort.records import Record
from kohort.retry.classify import Failure, stated
from kohort.retry.cluster_port import ClusterPort

BY_HAND: Final = "dead_lettered_by_hand"
ANSWER_S: Final = 8.0


def by_hand(by: str) -> Failure:
    """Why a record is in the dead-letter topic that was sent there by hand."""
    who = by or "an operator"
    return stated(BY_HAND, permanent=True, message=f"{who} sent it to the dead-letter topic")


def take_early(
    port: ClusterPort,
    post: Callable[[TakeEarly], None],
    place: tuple[str, int, int],
    failure: Failure | None,
) -> None:
    """Have the runner take the record at (topic, partition, offset).

    Raises:
        UsageError: there is no such record (any more), or the runner cannot take it.
        KafkaTimeoutError: the runner has not answered.
    """
    topic, partition, offset = place
    record = _record_at(port, topic, partition, offset)
    if record is None:
        raise UsageError(f"{topic}-{partition} has no record at offset {offset} (any more)")
    answers: SimpleQueue[str] = SimpleQueue()
    post(TakeEarly(record, failure, answers.put))
    try:
        refused = answers.get(timeout=ANSWER_S)
    except Empty:
        raise KafkaTimeoutError(
            f"the app has not answered within {ANSWER_S:g} s whether it takes {topic}-{partition} "
            f"offset {offset}; list the waiting records again"
        ) from None
    if refused:
        raise UsageError(f"{topic}-{partition} offset {offset} cannot be taken: {refused}")


def _record_at(port: ClusterPort, topic: str, partition: int, offset: int) -> Record | None:
    for page in port.read((topic, partition), offset):
        first = page[0]
        return first.detach() if first.offset == offset else None
    return None
