"""Transactions as partitions see them: which are open, what they hold back, who knows of them.

A transaction that a partition has open and of which no coordinator knows *hangs* (KIP-664): nothing
ends it but its abort, and until then readers of committed records get nothing behind its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kohort.client.admin.types import ProducerDescription, TransactionListing
    from kohort.client.common.types import TopicPartition

OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which a coordinator still ends the transaction."""
HANGING: Final = "hanging"


@dataclass(frozen=True)
class Open:
    """A transaction that is open in a partition.

    Attributes:
        listed: what its coordinator knows of it.
        open_s: since when it is open, in seconds; None where it was not asked for.
    """

    partition: TopicPartition
    producer: ProducerDescription
    listed: TransactionListing | None
    open_s: float | None = None

    @property
    def hanging(self) -> bool:
        """True when no coordinator will ever end it."""
        return self.listed is None

    def __str__(self) -> str:
        """Who has it open since which offset, and how to end it, as text."""
        begun = f"begun at offset {self.producer.transaction_start_offset:,}"
        if self.listed is None:
            return (
                f"producer {self.producer.producer_id} has a transaction open, {begun}, of which "
                "no coordinator knows: it never ends by itself; `kohort transaction abort "
                f"--partition {self.partition.topic}:{self.partition.partition} "
                f"--producer-id {self.producer.producer_id}` ends it"
            )
        name = self.listed.transactional_id
        return (
            f"{name!r} has a transaction open, {begun}; it ends with its producer's commit or at "
            f"its timeout: `kohort transaction describe {name}` says when, "
            f"`kohort transaction abort {name}` ends it at once"
        )
