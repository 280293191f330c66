"""What a coordinator remembers of its groups' rebalances: each with its causes, as it happens.

Rules:
- The handlers that decide say what they decided and why; nothing here decides anything. It is soft
  state: it dies with the node, and replaying a log does not bring it back (`inference` reads off a
  log what can still be read there).
- Only references to what exists anyway are kept: nothing is decoded, counted or compared before
  it is asked for (`timeline.describe`).
- A rebalance takes causes until it has its generation (or epoch); what happens later is a cause of
  the next one.
- Limits: `REBALANCES_MAX` a group, `CAUSES_MAX` a rebalance, and `MEMBERS_MAX` over all of a shard,
  of which the oldest go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from kohort.group.coordinator.state.classic_group import Member
from kohort.group.coordinator.state.classic_records import StoredGroup
from kohort.group.coordinator.state.consumer_records import MemberMetadata, Partitions, Resolved
from kohort.group.coordinator.state.topics_image import TopicsImage
from kohort.lean import dataclass, field

REBALANCES_MAX: Final = 64
CAUSES_MAX: Final = 100
MEMBERS_MAX: Final = 100_000
"""Members, counted once for each rebalance that remembers them."""

REASON_CHARS_MAX: Final = 255
"""Of what a member says (KIP-800); no client of Kafka's says more."""

CLASSIC, CONSUMER = "classic", "consumer"


class Trigger(Enum):
    """Why a group rebalances; the value is the text shown."""

    JOINED = "joined"
    STATIC_BACK = "came back as a static member, and reads something else"
    LEFT = "left"
    SESSION_OVER = "was not heard of for its session timeout"
    JOIN_OVER = "did not join again within the rebalance timeout"
    SYNC_OVER = "did not fetch its assignment within the rebalance timeout"
    REVOKE_OVER = "did not give its partitions up within the rebalance timeout"
    NO_ROOM = "found no place in the group any more"
    CHANGED = "joined again, and says something else of itself"
    SUBSCRIPTION = "changed its subscription"
    LEADER = "is the leader and asked for a new assignment"
    TOPICS = "topics that the group reads were made, deleted or grown"
    UNFINISHED = "the coordinator before went before the assignment was written"
    TOO_LARGE = "the group has more members than it may"
    PLAN_TOO_LARGE = "the leader's assignment was too large to be stored"
    UPGRADED = "the group became a consumer group (KIP-848)"
    DOWNGRADED = "the group became a classic group"
    GONE = "is gone: it left or was not heard of"
    UNKNOWN = "nobody came, went or changed: somebody asked for a new assignment"

    __hash__ = object.__hash__


class Cause(NamedTuple):
    """One reason for a rebalance. `reason` is the member's own text (KIP-800)."""

    trigger: Trigger
    at_ms: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    reason: str = ""


def cause_of(
    trigger: Trigger, member: Member | MemberMetadata, member_id: str, at_ms: int, reason: str = ""
) -> Cause:
    """A cause that a member is, of either protocol."""
    return Cause(
        trigger,
        at_ms,
        member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        reason[:REASON_CHARS_MAX],
    )


class ConsumerView(NamedTuple):
    """A consumer group at a moment: who was in it, and what everybody was to have."""

    members: Mapping[str, MemberMetadata]
    targets: Mapping[str, Partitions]
    regexes: Mapping[str, Resolved]
    topics: TopicsImage


View = StoredGroup | ConsumerView


@dataclass(slots=True)
class Entry:
    """One rebalance. Times are wall-clock milliseconds; None is not yet, or not known.

    `joined_ms`: the classic group has its generation, the consumer group its target. `settled_ms`:
    the assignment is stored; all members of a consumer group have reached their target.
    """

    group_id: str
    protocol: str
    began_ms: int | None = None
    generation: int | None = None
    joined_ms: int | None = None
    settled_ms: int | None = None
    superseded: bool = False
    last: str = ""
    """The member that was waited for longest."""
    causes: list[Cause] = field(default_factory=list[Cause])
    causes_more: int = 0
    gap: int = 0
    """Generations before this one that are not in the log any more."""
    before: View | None = None
    after: View | None = None
    waiting: set[str] = field(default_factory=set[str])
    """Consumer groups: members that have not reached their target."""
    weight: int = 0
    """What it counts against `MEMBERS_MAX`."""
    dropped: bool = False

    def add(self, cause: Cause) -> None:
        """Take in a cause, or count it when there are too many."""
        if len(self.causes) < CAUSES_MAX:
            self.causes.append(cause)
        else:
            self.causes_more += 1


class History:
    """The last rebalances of the groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, deque[Entry]] = {}
        self._order: deque[Entry] = deque()  # of all groups, the oldest first
        self._weight = 0
        self._held: dict[str, View] = {}  # the last assignment of each classic group

    def of(self, group_id: str) -> list[Entry]:
        """The rebalances of a group that are remembered, the oldest first."""
        return list(self._groups.get(group_id, ()))

    # Classic groups

    def cause(self, group_id: str, cause: Cause) -> None:
        """Something happened that makes the group rebalance, or that happened in its join phase."""
        self._joining(group_id, cause.at_ms).add(cause)

    def began(self, group_id: str, at_ms: int) -> None:
        """The members are asked to join again."""
        self._joining(group_id, at_ms)

    def joined(
        self, group_id: str, before: StoredGroup, after: StoredGroup, last: str, at_ms: int
    ) -> None:
        """The join phase is over: this is the next generation."""
        entry = self._joining(group_id, at_ms)
        entry.before = before if _is_assigned(before) else self._held.get(group_id)
        entry.generation, entry.joined_ms, entry.last = after.generation, at_ms, last
        if not after.members:
            entry.after, entry.settled_ms = after, at_ms
            self._held[group_id] = after
        elif entry.before is not None:
            self._held[group_id] = entry.before
        self._count(entry)

    def assigned(self, group_id: str, stored: StoredGroup, at_ms: int) -> None:
        """The leader's assignment is stored."""
        entry = self._last(group_id)
        if entry is not None and entry.generation == stored.generation:
            entry.after, entry.settled_ms = stored, at_ms
            self._held[group_id] = stored

    # Consumer groups

    def raised(
        self, group_id: str, epoch: int, before: ConsumerView, causes: Iterable[Cause], at_ms: int
    ) -> None:
        """The group's epoch has risen."""
        entry = self._open(group_id, CONSUMER, at_ms)
        entry.generation, entry.before = epoch, before
        for cause in causes:
            entry.add(cause)
        self._count(entry)

    def targeted(self, group_id: str, epoch: int, after: ConsumerView, at_ms: int) -> None:
        """The target for an epoch has been made."""
        entry = self._last(group_id)
        if entry is None or entry.generation != epoch:
            return
        entry.after, entry.joined_ms = after, at_ms
        entry.waiting = set(after.members)
        if not entry.waiting:
            entry.settled_ms = at_ms
        self._count(entry)

    def reached(self, group_id: str, member_id: str, epoch: int, at_ms: int) -> None:
        """A member has what the target of this epoch gives it."""
        entry = self._last(group_id)
        if entry is None or not entry.waiting or entry.generation != epoch:
            return
        entry.waiting.discard(member_id)
        if not entry.waiting:
            entry.settled_ms, entry.last = at_ms, member_id

    # Keeping

    def _last(self, group_id: str) -> Entry | None:
        entries = self._groups.get(group_id)
        return entries[-1] if entries else None

    def _joining(self, group_id: str, at_ms: int) -> Entry:
        entry = self._last(group_id)
        if entry is None or entry.generation is not None or entry.protocol != CLASSIC:
            entry = self._open(group_id, CLASSIC, at_ms)
        return entry

    def _open(self, group_id: str, protocol: str, at_ms: int) -> Entry:
        entries = self._groups.setdefault(group_id, deque())
        if entries and entries[-1].settled_ms is None:
            entries[-1].superseded = True
            entries[-1].waiting = set()
        entry = Entry(group_id, protocol, at_ms)
        entries.append(entry)
        self._order.append(entry)
        self._count(entry)
        if len(entries) > REBALANCES_MAX:
            self._drop(entries.popleft())
        return entry

    def _count(self, entry: Entry) -> None:
        """The entry has grown; the oldest of all go when that is too much."""
        grown = 1 + sum(len(v.members) for v in (entry.before, entry.after) if v is not None)
        self._weight += grown - entry.weight
        entry.weight = grown
        while self._weight > MEMBERS_MAX and self._order[0] is not entry:
            oldest = self._order.popleft()
            if not oldest.dropped:
                entries = self._groups[oldest.group_id]
                self._drop(entries.popleft())
                if not entries:
                    del self._groups[oldest.group_id]
                    self._held.pop(oldest.group_id, None)

    def _drop(self, entry: Entry) -> None:
        self._weight -= entry.weight
        entry.dropped = True
        entry.before = entry.after = None


def _is_assigned(stored: StoredGroup) -> bool:
    return not stored.members or not stored.lacks_assignment()
