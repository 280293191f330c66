"""Groups at present: who is in them, and where each of their partitions is.

Rules:
- Of many groups each broker is asked once for all of its own, and each leader once for the ends of
  all logs: one that hangs is waited for once, not once for each group.
- A group that cannot be looked at is an error beside the others; an end that no leader tells
  is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kohort.cli.common.group_lookup import FEW, known, raise_if_none, surveyed
from kohort.errors import KohortError
from kohort.lean import dataclass
from kohort.observe.snapshot import records_between
from kohort.sampling.log_offsets import partition_offsets

if TYPE_CHECKING:
    from kohort.cli.common.group_lookup import GroupOffsets
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import GroupDescription, MemberDescription
    from kohort.client.common.types import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True)
class GroupPositions:
    """One group at present: its members, and the position of each of its partitions."""

    group: GroupDescription
    rows: tuple[dict[str, Any], ...]

    @property
    def lags(self) -> list[int | None]:
        """Of each partition; None where it is not known."""
        return [row["lag"] for row in self.rows]

    @property
    def total_lag(self) -> int | None:
        """The sum of the known lags; None when none is known."""
        known_ones = [lag for lag in self.lags if lag is not None]
        return sum(known_ones) if known_ones else None


def positions_of(
    admin: Admin, names: Collection[str]
) -> tuple[list[GroupPositions], list[KohortError]]:
    """Groups by name, and an error for each that cannot be looked at.

    Args:
        admin: of their cluster.
        names: of the groups.

    Returns:
        The groups in the order of their names as given, and the errors.

    Raises:
        KohortError: the first error where no group can be looked at.
    """
    if len(set(names)) > FEW:
        return _found(admin, *surveyed(admin, names))
    there, errors = known(admin, names)
    held: list[GroupOffsets] = []
    for described in there:
        try:
            held.append((described, admin.list_group_offsets(described.group_id)))
        except KohortError as error:
            errors.append(error)
    return _found(admin, held, errors)


def every_position(
    admin: Admin, chosen: Callable[[str], object] = bool
) -> tuple[list[GroupPositions], list[KohortError]]:
    """All classic and consumer groups whose names are chosen, and what cannot be looked at.

    Args:
        admin: of their cluster.
        chosen: says of a name whether its group is wanted.

    Returns:
        The groups by name, and the errors.

    Raises:
        KohortError: the first error where no group can be looked at.
    """
    return _found(admin, *surveyed(admin, None, chosen))


def _found(
    admin: Admin, held: Sequence[GroupOffsets], errors: list[KohortError]
) -> tuple[list[GroupPositions], list[KohortError]]:
    raise_if_none(held, errors)
    owners = [{tp: m for m in group.members for tp in m.assignment} for group, _ in held]
    partitions = [
        sorted({*committed, *owned}) for (_, committed), owned in zip(held, owners, strict=True)
    ]
    ends = partition_offsets(admin, {tp for some in partitions for tp in some}, "latest")
    positions = [
        GroupPositions(
            group,
            tuple(_row(group.group_id, tp, committed, ends, owned.get(tp)) for tp in some),
        )
        for (group, committed), owned, some in zip(held, owners, partitions, strict=True)
    ]
    return positions, errors


def _row(
    name: str,
    tp: TopicPartition,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
    owner: MemberDescription | None,
) -> dict[str, Any]:
    at, end = committed.get(tp), ends.get(tp)
    return {
        "group": name,
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": None if at is None else at.offset,
        "log_end_offset": end,
        "lag": records_between(None if at is None else at.offset, end),
        "consumer_id": None if owner is None else owner.member_id,
        "host": None if owner is None else owner.host,
        "client_id": None if owner is None else owner.client_id,
    }
