"""D1, D2: what a cluster says about due offsets is verified, and scanned where it cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kohort.errors import UnsupportedVersionError
from kohort.retry.due_schedule import DueSchedule
from kohort.retry.offset_queries import NOTHING, Stamped, TopicPartition, ask

TP = ("t.g.retry.1m", 0)
NOW_MS, DELAY_MS = 1_000_000, 60_000
NOT_DUE = Stamped(1, NOW_MS - 1_000)


class OldCluster:
    """Kafka before 3.0: it does not know MAX_TIMESTAMP. Its answer by time may be wrong (D1)."""

    def __init__(self) -> None:
        self.scans: list[tuple[int, int]] = []

    def latest(
        self,
        partitions: Sequence[TopicPartition],
        timeout_s: float | None = None,
        *,
        partial: bool = False,
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 2)

    def by_time(
        self, times: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, Stamped]:
        return dict.fromkeys(times, NOTHING)

    def max_timestamp(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Stamped]:
        raise UnsupportedVersionError("ListOffsets up to version 5")

    def scan(self, at: TopicPartition, start: int, end: int, target_ms: int) -> Stamped:
        self.scans.append((start, end))
        return NOT_DUE


def test_a_cluster_without_a_proof_is_scanned() -> None:
    """It is neither believed nor asked for ever."""
    gate, cluster = DueSchedule({TP[0]: DELAY_MS}, skew_ms=0), OldCluster()
    ask(gate, cluster, {TP: 0}, NOW_MS)
    opened = gate.opened(TP)
    assert opened is not None
    assert cluster.scans == [(0, 2)]
    assert opened.end == NOT_DUE.offset
