"""What an assignor sees and gives: views of members and topics in, a plan out.

Rules:
- An assignor is pure: `assign` depends on its argument alone, not on the order of members, topics
  or claims (G14). One `Assignor` object belongs to one consumer; what it keeps between rebalances
  (`on_assignment`) goes into the group only through `subscription`.
- Partitions are written as a mapping from topic to partition numbers, never as one object each.
- A plan is checked before it leaves the member (`checked`): every partition of every subscribed
  topic once, only to members that subscribe to its topic, nothing that does not exist (G2).
- The two phases of a cooperative rebalance (KIP-429) are applied by the member, not here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import cast

from kohort.errors import KohortError
from kohort.group.assignors.loops import FREE
from kohort.group.assignors.loops_implementation import note
from kohort.lean import dataclass, field

Partitions = Mapping[str, tuple[int, ...]]
"""Partitions by topic, the numbers ascending. Topics without partitions are left out."""

NO_GENERATION = -1
"""The generation of a member that never was in one."""


class AssignorError(KohortError):
    """An assignor failed, or gave a plan that breaks its contract. The text says which rule."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as the group's leader sees it.

    `partitions` is how many there are, numbered from 0. `racks`, `leaders` and `leader_racks` are
    by partition: the racks of its replicas, the node id of its leader, and that node's rack (None:
    it does not say); each empty where it is not known.
    `topic_id` (16 bytes, KIP-516) is for members of the consumer protocol; empty: not known.
    """

    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    leaders: tuple[int, ...] = ()
    topic_id: bytes = b""
    leader_racks: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as the group's leader sees it.

    `owned` is what it says it owns and `generation` the generation it got that in (-1: unknown);
    `rack` is its `client.rack`; `user_data` is what its assignor's `subscription` gave.
    """

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: Partitions = field(default_factory=dict[str, tuple[int, ...]])
    generation: int = NO_GENERATION
    rack: str | None = None
    user_data: bytes | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Kafka's order of members: static ones first by instance id, the others by member id."""
        return (self.instance_id is None, self.instance_id or self.member_id)


@dataclass(frozen=True, slots=True)
class GroupView:
    """Everybody in the group by member id, and the topics that exist among the subscribed ones."""

    members: Mapping[str, MemberView]
    topics: Mapping[str, TopicView]

    def in_order(self) -> list[MemberView]:
        """The members in Kafka's order."""
        return sorted(self.members.values(), key=lambda member: member.order)

    def subscribers(self) -> dict[str, list[MemberView]]:
        """The members of each existing topic, in Kafka's order, topics in order of name.

        Topics with the same members share one list: do not change it.
        """
        same: dict[frozenset[str], list[MemberView]] = {}
        for member in self.in_order():
            same.setdefault(member.topics, []).append(member)
        kinds = list(same.items())
        lists: dict[tuple[int, ...], list[MemberView]] = {}
        by_topic: dict[str, list[MemberView]] = {}
        for topic in sorted(self.topics):
            key = tuple(n for n, (topics, _) in enumerate(kinds) if topic in topics)
            if len(key) == 1:
                by_topic[topic] = kinds[key[0]][1]
            elif key:
                if key not in lists:
                    several = [member for n in key for member in kinds[n][1]]
                    lists[key] = sorted(several, key=lambda member: member.order)
                by_topic[topic] = lists[key]
        return by_topic


@dataclass(frozen=True, slots=True)
class Plan:
    """Who gets what, by member id. `user_data` reaches each member's `on_assignment`."""

    assignments: Mapping[str, Mapping[str, Sequence[int]]]
    user_data: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class Assignor:
    """Base of an assignor of one's own: give it a `name` and write `assign`.

    The name is what members vote for, so every member of the group needs an assignor of this name.
    With `cooperative`, members keep what they own during a rebalance (KIP-429), provided that all
    assignors of their configuration can; a partition then changes hands in two rebalances, which
    the member sees to.
    """

    name: str = ""
    cooperative: bool = False

    def subscription(self, topics: frozenset[str]) -> bytes | None:
        """User data to send with each join, for the leader's `assign`. None: there is none."""
        return None

    def assign(self, group: GroupView) -> Plan:
        """Divide the partitions of `group.topics` among `group.members`; runs in the leader only.

        Members that get nothing may be left out. It runs on the network thread that all clients of
        the process share: compute, and wait for nothing. Its errors are fatal to the member; in
        a broker (KIP-848) it fails the heartbeat, and the group keeps its old assignment.
        """
        raise TypeError(f"assignor {type(self).__name__} does not define assign(group)")

    def generation_of(self, member: MemberView) -> int:
        """In which generation the member was given what it says it owns."""
        return member.generation

    def on_assignment(
        self, assignment: Partitions, user_data: bytes | None, generation: int
    ) -> None:
        """Called with this member's assignment and generation, before its listener is."""


def freeze(partitions: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Ascending numbers, topics in order, topics without partitions left out."""
    frozen = {topic: tuple(sorted(numbers)) for topic, numbers in sorted(partitions.items())}
    return {topic: numbers for topic, numbers in frozen.items() if numbers}


def subtract(left: Partitions, right: Partitions) -> dict[str, tuple[int, ...]]:
    """What is in `left` and not in `right`."""
    rest: dict[str, tuple[int, ...]] = {}
    for topic, numbers in left.items():
        gone = right.get(topic)
        if gone == numbers:
            continue
        kept = tuple(sorted(set(numbers).difference(gone))) if gone else numbers
        if kept:
            rest[topic] = kept
    return rest


def count(partitions: Mapping[str, Sequence[int]]) -> int:
    """How many partitions there are."""
    return sum(map(len, partitions.values()))


def checked(name: str, plan: Plan, group: GroupView, then: str = "") -> Plan:
    """`plan`, if it keeps the contract; raises AssignorError naming the rule, member, partition.

    `then` tells the reader of the error what follows from a plan that is not valid.
    """
    try:
        _check_types(plan)
        _check(plan, group)
    except _BrokenRuleError as broken:
        raise AssignorError(
            f"assignor {name!r} gave a plan that cannot be used: {broken}. The plan was dropped"
            f"{then and f' and {then}'}; mend the assignor's assign()"
        ) from None
    return plan


class _BrokenRuleError(Exception):
    """A plan breaks a rule; the text says which."""


def kind_of(value: object) -> str:
    """What a value is, for an error: "None", "a dict", "an int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def user_data_of(assignor: Assignor, topics: frozenset[str]) -> bytes | None:
    """What `subscription()` returns; raises AssignorError when it raises or is not bytes."""
    try:
        user_data: object = assignor.subscription(topics)
    except Exception as error:  # a user's own code may raise anything
        raise broken_callback(assignor.name, "subscription", error) from error
    if user_data is None or isinstance(user_data, bytes):
        return user_data
    raise AssignorError(
        f"assignor {assignor.name!r}: subscription() returned {kind_of(user_data)}, not bytes or "
        "None. The member leaves the group; mend the assignor"
    )


def generation_by(assignor: Assignor, member: MemberView) -> int:
    """What `generation_of()` returns; raises AssignorError when it raises or is no int."""
    try:
        generation: object = assignor.generation_of(member)
    except Exception as error:  # a user's own code may raise anything
        raise broken_callback(assignor.name, "generation_of", error) from error
    if isinstance(generation, int):
        return generation
    raise AssignorError(
        f"assignor {assignor.name!r}: generation_of() returned {kind_of(generation)} for member "
        f"{member.member_id!r}, not an int. The member leaves the group; mend the assignor"
    )


def broken_callback(name: str | None, method: str, error: Exception) -> AssignorError:
    """The error for a method of an assignor that has raised."""
    return AssignorError(
        f"assignor {name!r} failed in {method}() with {type(error).__name__}: {error}. The member "
        "leaves the group; mend the assignor"
    )


def _check_types(plan: object) -> None:
    """The parts of a plan are what they are declared to be: a user's code may return anything."""
    if not isinstance(plan, Plan):
        shape = "Plan({MEMBER_ID: {TOPIC: [0, 1]}})"
        raise _BrokenRuleError(f"it is {kind_of(plan)}; assign() returns {shape}")
    for name, field_ in (("assignments", plan.assignments), ("user_data", plan.user_data)):
        if not isinstance(field_, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            its = "its assignments are" if name == "assignments" else "its user_data is"
            raise _BrokenRuleError(f"{its} {kind_of(field_)}, not a mapping of member ids")
    for member_id, parts in plan.assignments.items():
        _check_parts(member_id, parts)
    for member_id, data in plan.user_data.items():
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _BrokenRuleError(f"the user data of {member_id!r} is {kind_of(data)}, not bytes")


def _check_parts(member_id: object, parts: object) -> None:
    if not isinstance(parts, Mapping):
        raise _BrokenRuleError(
            f"what {member_id!r} gets is {kind_of(parts)}, not a mapping of topics to numbers"
        )
    for topic, numbers in cast("Mapping[object, object]", parts).items():
        # A generator would be empty when the plan is written, after it was checked.
        several = isinstance(numbers, Sized) and isinstance(numbers, Iterable)
        if not several or isinstance(numbers, str | bytes | Mapping):
            raise _BrokenRuleError(
                f"what {member_id!r} gets of {topic!r} is {kind_of(cast('object', numbers))}, not "
                "a list of partition numbers"
            )


def _check(plan: Plan, group: GroupView) -> None:
    subscribed = frozenset[str]().union(*{member.topics for member in group.members.values()})
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    for topic in sorted(subscribed.intersection(group.topics)):
        start, end = end, end + group.topics[topic].partitions
        spans[topic] = start, end
    row, count = array("i", [FREE]) * end, 0
    for who, (member_id, parts) in enumerate(plan.assignments.items()):
        member = group.members.get(member_id)
        if member is None:
            raise _BrokenRuleError(f"it assigns to {member_id!r}, who is not a member")
        try:
            count |= note(row, spans, who, parts, member.topics)
        except (TypeError, OverflowError) as error:
            raise _BrokenRuleError(f"what {member_id!r} gets is no partition: {error}") from None
    if count or FREE in row:
        _complain(plan, group, spans)


def _complain(plan: Plan, group: GroupView, topics: Iterable[str]) -> None:
    """Raise for the first rule that is broken."""
    assigned: dict[str, list[Sequence[int]]] = {}
    for member_id, parts in plan.assignments.items():
        for topic, numbers in parts.items():
            if not len(numbers):
                continue
            if topic not in group.members[member_id].topics:
                raise _BrokenRuleError(f"{member_id!r} gets {topic!r} and does not subscribe to it")
            if topic not in group.topics:
                raise _BrokenRuleError(f"{member_id!r} gets partitions of {topic!r}: no such topic")
            assigned.setdefault(topic, []).append(numbers)
    for topic in topics:
        _check_topic(plan, topic, group.topics[topic].partitions, assigned.get(topic, []))


def _check_topic(plan: Plan, topic: str, size: int, assigned: Sequence[Sequence[int]]) -> None:
    """Each of 0 to `size` once."""
    together = set[int]().union(*assigned)
    total = sum(map(len, assigned))
    if strange := sorted(together.difference(range(size))):
        who = next(m for m, parts in plan.assignments.items() if strange[0] in parts.get(topic, ()))
        what = f"{who!r} gets {topic!r} partition {strange[0]}; it has partitions 0..{size - 1}"
        raise _BrokenRuleError(what)
    if total > len(together):
        twice = next(n for n in sorted(together) if sum(list(g).count(n) for g in assigned) > 1)
        owners = [m for m, parts in plan.assignments.items() if twice in parts.get(topic, ())]
        raise _BrokenRuleError(
            f"{topic!r} partition {twice} is given twice, to {', '.join(owners)}"
        )
    if total < size:
        missing = sorted(set(range(size)) - together)[:10]
        raise _BrokenRuleError(f"nobody gets {topic!r} partitions {missing}")
