"""Transactions as partitions see them: which are open, what they hold back, who knows of them.

A transaction that a partition has open and of which no coordinator knows *hangs* (KIP-664): nothing
ends it but its abort, and until then readers of committed records get nothing behind its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kohort.errors import BrokerError, ConnectionFailedError, KafkaTimeoutError

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import ProducerDescription, TransactionListing
    from kohort.client.common.types import TopicPartition

OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which a coordinator still ends the transaction."""
HANGING: Final = "hanging"


@dataclass(frozen=True)
class Open:
    """A transaction that is open in a partition; `listed` is what its coordinator knows of it."""

    partition: TopicPartition
    producer: ProducerDescription
    listed: TransactionListing | None

    @property
    def hanging(self) -> bool:
        """True when no coordinator will ever end it."""
        return self.listed is None

    def __str__(self) -> str:
        """Who has it open since which offset, and how it is ended, in words."""
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


def open_in(admin: Admin, partitions: Iterable[TopicPartition]) -> list[Open]:
    """What is open in partitions that have a leader, in the order of the partitions.

    A partition that cannot be asked is left out: asking is only ever done to explain something.
    """
    begun = _begun(admin, partitions)
    known = _known(admin, begun)
    strangers = begun.keys() - {at for at, p in begun.items() if p.producer_id in known}
    if strangers:
        # Each may have ended since its partition was asked, or its coordinator may be moving. So
        # both are asked again: what no coordinator knew between the two and none knows now hangs
        # if it is open still, at the same offset; what began and ended since is not open.
        again = _begun(admin, {at.partition for at in strangers})
        known |= _known(admin, again)
        begun = {at: p for at, p in begun.items() if at not in strangers}
        begun |= {at: p for at, p in again.items() if at in strangers or p.producer_id in known}
    return [Open(at.partition, begun[at], known.get(at.producer_id)) for at in sorted(begun)]


class _Place(NamedTuple):
    """Where a transaction began, and whose it is: what tells it from its producer's next one."""

    partition: TopicPartition
    start_offset: int
    producer_id: int


def _begun(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[_Place, ProducerDescription]:
    """What these partitions have open; without those that cannot be asked."""
    found: dict[_Place, ProducerDescription] = {}
    for tp in sorted(partitions):
        try:
            told = admin.describe_producers([tp])[tp]
        except (BrokerError, ConnectionFailedError, KafkaTimeoutError):
            continue
        for p in told:
            if p.transaction_start_offset >= 0:
                found[_Place(tp, p.transaction_start_offset, p.producer_id)] = p
    return found


def _known(admin: Admin, begun: Iterable[_Place]) -> dict[int, TransactionListing]:
    """Whose transactions, of these, a coordinator still ends; by their producers' ids."""
    producers = {at.producer_id for at in begun}
    if not producers:
        return {}
    listed = admin.list_transactions(producer_ids=producers)
    return {one.producer_id: one for one in listed if one.state in OPEN}
