"""Which transactions are open in partitions, by the partitions and the coordinators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kohort.errors import BrokerError, ConnectionFailedError, KafkaTimeoutError
from kohort.observe.open_transactions import OPEN, Open

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import ProducerDescription, TransactionListing
    from kohort.client.common.types import TopicPartition


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
            producers = admin.describe_producers([tp])[tp]
        except (BrokerError, ConnectionFailedError, KafkaTimeoutError):
            continue
        for p in producers:
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
