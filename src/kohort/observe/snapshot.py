"""What is seen of a cluster at one moment: partitions, groups, everything.

Rules: None is unknown, never 0. A snapshot asks for committed offsets before it asks
for the ends of logs, so that a group that moves meanwhile is never ahead of the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kohort.client.admin.types import ClusterDescription, GroupDescription, TopicDescription
    from kohort.client.common.types import TopicPartition


def records_between(committed: int | None, end: int | None) -> int | None:
    """Records from a committed offset to the end of the log.

    Args:
        committed: the offset; None without one.
        end: where the log ends; None where its leader does not tell.

    Returns:
        The count; None where it is not known, also of an offset past the end: the topic was made
        again or has lost records.
    """
    if committed is None or end is None or committed > end:
        return None
    return end - committed


class Seen(NamedTuple):
    """A partition at one look; None where unknown.

    Attributes:
        leader: None without one; `exists` is False of a topic that is gone.
        down: the replicas whose nodes do not run.
        stable: the last stable offset; `end` counts all records.
        metadata: the metadata of the committed offset; an `App` puts there the records it has done
            beyond it.
    """

    committed: int | None
    first: int | None
    stable: int | None
    end: int | None
    leader: int | None
    down: tuple[int, ...] = ()
    exists: bool = True
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        """Records that are not done."""
        return records_between(self.committed, self.end)

    @property
    def beyond_end(self) -> bool:
        """Whether the committed offset is one that the log has not reached."""
        return self.committed is not None and self.committed > (self.end or 0)


@dataclass(frozen=True)
class Look:
    """A group at one moment; `at_s` counts seconds from any beginning."""

    at_s: float
    group: GroupDescription
    partitions: Mapping[TopicPartition, Seen]


@dataclass(frozen=True)
class ClusterSnapshot:
    """All groups and topics of a cluster at one moment.

    Attributes:
        at_ms: milliseconds since 1970; `at_s` counts seconds from any beginning.
        topics: all of them, internal ones included, by name.
        groups: the groups that could be looked at, by id.
        not_described: why a group could not be, by id.
        troubles: failed requests, as text; everything else is shown all the same.
        silent: the nodes that do not answer for their groups, which are missing here.
        unseen: the last look at each group that was looked at before and cannot be now.
    """

    at_ms: int
    at_s: float
    cluster: ClusterDescription
    topics: Mapping[str, TopicDescription]
    groups: Mapping[str, Look]
    not_described: Mapping[str, str] = field(default_factory=dict[str, str])
    troubles: tuple[str, ...] = ()
    silent: tuple[int, ...] = ()
    unseen: Mapping[str, Look] = field(default_factory=dict[str, Look])

    def last_look(self, group: str) -> Look | None:
        """The look at a group, or the last one before, where it cannot be looked at now."""
        return self.groups.get(group) or self.unseen.get(group)


def unseen_groups(
    previous: ClusterSnapshot,
    groups: Collection[str],
    not_described: Collection[str],
    silent: Collection[int],
) -> dict[str, Look]:
    """The last look at each group that may be there still and cannot be looked at now.

    Args:
        previous: the last snapshot.
        groups: those that can be looked at.
        not_described: those that are there, and not described.
        silent: the nodes that do not answer for their groups.
    """

    def is_hidden(name: str, look: Look) -> bool:
        return name in not_described or look.group.coordinator.node_id in silent

    known = {**previous.unseen, **previous.groups}
    return {n: one for n, one in known.items() if n not in groups and is_hidden(n, one)}
