"""Plans of all assignors that level loads and let everybody keep what it can.

Rules:
- How many each member gets is computed in `sticky_counts`; here claims become counts, and counts
  become partitions again. Free ones are dealt in turn, by topic and number, so that topics spread.
- Where racks count, partitions are distinguished by their distance from each member; otherwise a
  bundle is whole topics, and the work grows with the members' topics and with what changes hands.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from kohort.group.assignors.base import GroupView, MemberView, Plan
from kohort.group.assignors.claims import Claim, Ownership
from kohort.group.assignors.loops_implementation import deal, hand_out, keep, tally
from kohort.group.assignors.racks import Kind, Racks
from kohort.group.assignors.sticky_counts import Bundle, balance

Stretches = list[tuple[int, int]]


def assign_level(
    group: GroupView,
    claims: Sequence[Claim],
    *,
    racks: Racks | None = None,
    weights: Sequence[int] | None = None,
) -> Plan:
    """The plan for `group` whose members, in Kafka's order, made `claims` (one each, in order).

    Balanced first (in proportion to `weights`, in the same order), then near by `racks`, then with
    as few moves as possible.
    """
    members = group.in_order()
    owned = Ownership(group.topics, claims, members)
    sharing = _sharing(group, members)
    if racks is None or not racks.matter:
        parts = [(readers, None, [owned.spans[t] for t in topics]) for readers, topics in sharing]
    else:
        parts = _split(group, sharing, owned.spans, racks)
    bundles: list[Bundle] = []
    for readers, kind, stretches in parts:
        counts = array("i", [0]) * len(members)
        tally(owned.row, stretches, counts)
        own = {place: counts[place] for place in readers if counts[place]}
        size = sum(stop - start for start, stop in stretches)
        far = racks.far(kind, readers) if racks is not None and kind is not None else None
        bundles.append(Bundle(size, readers, own, far or {}))
    balance(bundles, len(members), weights)
    for (_, _, stretches), bundle in zip(parts, bundles, strict=True):
        _place(owned.row, stretches, bundle, len(members))
    shares: list[dict[str, Sequence[int]]] = [{} for _ in members]
    hand_out(owned.row, owned.spans, shares)
    return Plan({m.member_id: share for m, share in zip(members, shares, strict=True)})


def _place(row: array[int], stretches: Stretches, bundle: Bundle, members: int) -> None:
    """Turn the counts of one bundle into partitions: everybody keeps its own, the rest is dealt."""
    room = array("i", [0]) * members
    for place, units in bundle.got.items():
        room[place] = units
    free, given_up = keep(row, stretches, room)
    if given_up:
        free = array("i", sorted(free + given_up))
    if free:
        deal(row, free, room, bundle.subscribers)


def _split(
    group: GroupView,
    sharing: Iterable[tuple[tuple[int, ...], list[str]]],
    spans: Mapping[str, tuple[int, int]],
    racks: Racks,
) -> list[tuple[tuple[int, ...], Kind | None, Stretches]]:
    """The partitions of each set of topics, by how far they are from whom."""
    parts: list[tuple[tuple[int, ...], Kind | None, Stretches]] = []
    for readers, topics in sharing:
        by_kind: dict[Kind, Stretches] = {}
        for topic in topics:
            for at, kind in enumerate(racks.kinds(group.topics[topic]), spans[topic][0]):
                stretches = by_kind.get(kind)
                if stretches is None:
                    by_kind[kind] = [(at, at + 1)]
                elif stretches[-1][1] == at:
                    stretches[-1] = stretches[-1][0], at + 1
                else:
                    stretches.append((at, at + 1))
        parts.extend((readers, kind, stretches) for kind, stretches in by_kind.items())
    return parts


def _sharing(
    group: GroupView, members: Sequence[MemberView]
) -> list[tuple[tuple[int, ...], list[str]]]:
    """Topics by who subscribes to them (places in the order of members)."""
    same: dict[frozenset[str], list[int]] = {}
    for place, member in enumerate(members):
        same.setdefault(member.topics, []).append(place)
    groups = list(same.items())
    sharing: dict[tuple[int, ...], list[str]] = {}
    readers: dict[tuple[int, ...], tuple[int, ...]] = {}
    for topic in sorted(group.topics):
        key = tuple(n for n, (topics, _) in enumerate(groups) if topic in topics)
        if not key or not group.topics[topic].partitions:
            continue
        if key not in readers:
            readers[key] = tuple(sorted(place for n in key for place in groups[n][1]))
        sharing.setdefault(readers[key], []).append(topic)
    return list(sharing.items())
