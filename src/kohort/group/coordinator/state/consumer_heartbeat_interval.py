"""How soon a member of a consumer group is to heartbeat again, as its answers say (KIP-848).

Rules:
- After the group's interval. But no response reaches a member that waits for partitions that others
  have given them up, so it is to ask more often for as long as it waits.
- It asks again after an eighth of the time that it has waited. So it has what it waits for at most
  an eighth later than it could, and how often it asks grows with the logarithm of its wait: some
  forty times in 5 s, and a member that holds a group up for minutes makes no storm. It reaches the
  interval, which it never exceeds, after eight of them.
- Never before `SHORTEST_MS`; and all who wait in a group make `MOST_A_MS` heartbeats a millisecond
  at the most, however many they are.
- A wait restarts with the member's epoch. It is soft state: a new coordinator counts from the first
  heartbeat that it receives.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SHORTEST_MS: Final = 10
"""The shortest interval sent to a member, unless the group's is shorter."""
MOST_A_MS: Final = 5
"""Heartbeats of all waiting members of a group in a millisecond: a fifth of what a core answers,
since each of these takes some 40 microseconds."""
_PART: Final = 8


class Wait(NamedTuple):
    """In which epoch a member waits, and since when."""

    epoch: int
    since_ms: int


class Waits:
    """The members that wait for partitions, by group."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Wait]] = {}

    def interval_ms(
        self, group_id: str, member_id: str, epoch: int, usual_ms: int, now_ms: int
    ) -> int:
        """The interval for a member that waits in `epoch`, in a group with the interval
        `usual_ms`."""
        waits = self._groups.setdefault(group_id, {})
        wait = waits.get(member_id)
        if wait is None or wait.epoch != epoch:
            wait = waits[member_id] = Wait(epoch, now_ms)
        return waiting_interval_ms(now_ms - wait.since_ms, len(waits), usual_ms)

    def over(self, group_id: str, member_id: str) -> None:
        """The member waits for nothing, or is gone."""
        waits = self._groups.get(group_id)
        if waits is not None and waits.pop(member_id, None) is not None and not waits:
            del self._groups[group_id]

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))


def waiting_interval_ms(waited_ms: int, waiting: int, usual_ms: int) -> int:
    """The interval of one of `waiting` members, which has waited for `waited_ms`."""
    return min(usual_ms, max(SHORTEST_MS, waiting // MOST_A_MS, waited_ms // _PART))
