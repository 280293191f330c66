"""How one member is led from what it has to what the target gives it (KIP-848), as a pure function.

Rules:
- What the target takes away is given up first, in the epoch that the member is in. What is free
  follows, with the target's epoch; what others still hold comes when they have given it up.
- A partition is given up when the member's list of owned partitions lacks it. A member that sends
  no list has given up nothing; nor has one that reports from its previous epoch, because its list
  may be older than its latest assignment (B2).
- A partition is free when no member has it; a partition that the member itself is giving up is free
  to that member only (B1).
- A member never gets partitions of topics that it no longer reads, or that are gone, even if an
  older target contains them.
- A partition keeps the epoch that it was assigned in for as long as the member has it (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kohort.group.coordinator.state.consumer_records import Current, Epochs, Partitions
from kohort.group.coordinator.state.consumer_table import MemberEvent, MemberState, next_state

Owned = Mapping[bytes, Collection[int]]


def reconcile(
    current: Current,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    owned: Owned | None,
    is_taken: Callable[[bytes, int], bool],
) -> Current:
    """The member's next state, or `current` itself when nothing changes.

    `subscribed` are the ids of the topics it reads that exist, `owned` what it says it owns (None:
    it says nothing), `is_taken` whether a partition is held by anybody else.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        if all(topic_id in subscribed for topic_id in current.assigned):
            return current
    elif current.state is MemberState.UNREVOKED and _owns(owned, current.pending):
        return _still_owns(current, subscribed)
    return _next(current, target_epoch, target, subscribed, owned, is_taken)


def _owns(owned: Owned | None, partitions: Epochs) -> bool:
    """Whether the member may still own any of these."""
    if owned is None:
        return bool(partitions)
    return any(
        number in numbers
        for topic_id, numbers in partitions.items()
        for number in owned.get(topic_id, ())
    )


def _still_owns(current: Current, subscribed: Collection[bytes]) -> Current:
    """It waits; topics that it no longer reads join what it has to give up."""
    stray = {t: numbers for t, numbers in current.assigned.items() if t not in subscribed}
    if not stray:
        return current
    kept = {t: numbers for t, numbers in current.assigned.items() if t in subscribed}
    pending = {t: dict(numbers) for t, numbers in current.pending.items()}
    for topic_id, numbers in stray.items():
        pending.setdefault(topic_id, {}).update(numbers)
    state = next_state(current.state, MemberEvent.STILL_OWNS)
    return Current(current.epoch, current.epoch, state, kept, pending)


def _next(
    current: Current,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    owned: Owned | None,
    is_taken: Callable[[bytes, int], bool],
) -> Current:
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    added: dict[bytes, list[int]] = {}
    waits = False
    for topic_id in target.keys() | current.assigned.keys():
        assigned = target.get(topic_id, ()) if topic_id in subscribed else ()
        had = current.assigned.get(topic_id, {})
        if len(had) == len(assigned) and all(number in had for number in assigned):
            if had:
                kept[topic_id] = dict(had)
            continue
        wanted_set = frozenset(assigned)
        stays = {n: epoch for n, epoch in had.items() if n in wanted_set}
        goes = {n: epoch for n, epoch in had.items() if n not in wanted_set}
        new = [n for n in assigned if n not in had]
        free = [n for n in new if not is_taken(topic_id, n)]
        waits = waits or len(free) < len(new)
        if stays:
            kept[topic_id] = stays
        if goes:
            revoked[topic_id] = goes
        if free:
            added[topic_id] = free
    if revoked and _owns(owned, revoked):
        state = next_state(current.state, MemberEvent.MUST_REVOKE)
        return Current(current.epoch, current.epoch, state, kept, revoked)
    for topic_id, numbers in added.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(numbers, target_epoch))
    event = MemberEvent.MUST_WAIT if waits else MemberEvent.ARRIVED
    state = next_state(current.state, event)
    if current.epoch == target_epoch and current.state is state and kept == current.assigned:
        return current  # it still waits, for the same partitions
    return Current(target_epoch, current.epoch, state, kept, {})
