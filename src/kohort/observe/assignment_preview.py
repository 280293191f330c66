"""What an assignor would make of a group, and what a change of it would move.

Rules:
- Members tell the assignor what they would tell a leader: user data, owned partitions where it is
  cooperative, racks. A broker's assignor is shown what a member's target is.
- A plan is checked as a leader would check it; one that breaks its contract is an AssignorError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kohort.errors import ConfigError
from kohort.lean import dataclass, replace

if TYPE_CHECKING:
    from kohort.client.admin.types import GroupDescription, MemberDescription
    from kohort.client.common.types import TopicPartition
    from kohort.group.assignors import Assignor, GroupView, MemberView, Partitions, TopicView
    from kohort.group.assignors.measure import Move

CONSUMER = "consumer"
MOST_MEMBERS = 100_000


@dataclass(frozen=True)
class Participant:
    """A member before an assignor has been asked what it would tell."""

    name: str
    topics: frozenset[str]
    rack: str | None = None
    weight: int | None = None
    instance_id: str | None = None
    user_data: bytes | None = None
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scene:
    """The members, the topics, and the present assignment (None: not requested yet)."""

    members: Mapping[str, Participant]
    topics: Mapping[str, TopicView]
    today: Mapping[str, Partitions] | None
    assignor: str
    server_side: bool


@dataclass(frozen=True)
class Planned:
    """A plan and its inputs."""

    assignor: Assignor
    group: GroupView
    scene: Scene
    before: Mapping[str, Partitions]
    after: Mapping[str, Partitions]


def parse_members(text: str, topics: Iterable[str]) -> list[Participant]:
    """Members as a person writes them: a number, or NAME[:rack=R][:weight=N]...

    Args:
        text: one of these.
        topics: what they read when they name no topics.

    Raises:
        ConfigError: neither of them, or too many members.
    """
    name, *details = text.split(":")
    if name.isdecimal() and not details:
        count = int(name)
        if not 1 <= count <= MOST_MEMBERS:
            raise ConfigError(f"1 to {MOST_MEMBERS:,} members can be made up, not {count}")
        width = len(name)
        return [Participant(f"m{k:0{width}}", frozenset(topics)) for k in range(1, count + 1)]
    made = Participant(name, frozenset(topics))
    for setting in details:
        key, _, value = setting.partition("=")
        if key == "rack" and value:
            made = replace(made, rack=value)
        elif key == "weight" and value.isdecimal():
            made = replace(made, weight=int(value))
        elif key == "static" and value:
            made = replace(made, instance_id=value)
        elif key == "topics" and value:
            made = replace(made, topics=frozenset(value.split("+")))
        else:
            raise ConfigError(
                f"a member is NAME[:rack=R][:weight=N][:static=ID][:topics=T+T], not {text!r}"
            )
    if not name:
        raise ConfigError(f"a member needs a name: {text!r}")
    return [made]


def live_scene(
    described: GroupDescription,
    topics_of: Callable[[Iterable[str]], Mapping[str, TopicView]],
    assignor: str | None = None,
    joining: Sequence[str] = (),
    *,
    server_side: bool = False,
) -> Scene:
    """A live group, with the topics that it and those who join read.

    Args:
        described: the group.
        topics_of: gives the named topics as an assignor sees them.
        assignor: by name; None: the group's own.
        joining: members to come, as `parse_members` reads them.
        server_side: the broker's assignor of that name.

    Raises:
        ConfigError: the group has no assignor now, and none is named.
    """
    from kohort.group.assignors import SERVER_SIDE

    chosen = assignor or described.protocol
    if not chosen:
        raise ConfigError(
            f"group {described.group_id} has no assignor of its own now; choose one (--assignor)"
        )
    new = [member for each in joining for member in parse_members(each, ())]
    # What members tell their own assignor means nothing to another.
    same = chosen.partition(":")[0] == described.protocol
    members = {m.member_id: _participant(m, same) for m in described.members}
    wanted = frozenset[str]().union(*[m.topics for m in (*members.values(), *new)])
    topics = topics_of(wanted)
    today = {
        m.member_id: _by_topic(m.assignment if m.target is None else m.target)
        for m in described.members
    }
    brokers = described.group_type.lower() == CONSUMER and chosen in SERVER_SIDE
    return Scene(members, topics, today, chosen, server_side or brokers)


def _participant(member: MemberDescription, same: bool) -> Participant:
    topics = frozenset(member.topics) or frozenset(tp.topic for tp in member.assignment)
    aliases = {member.client_id, member.group_instance_id} - {None}
    return Participant(
        member.member_id,
        topics,
        member.rack,
        None,
        member.group_instance_id,
        member.user_data if same else None,
        frozenset(str(alias) for alias in aliases),
    )


def _by_topic(assignment: Iterable[TopicPartition]) -> Partitions:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(assignment):
        by_topic.setdefault(topic, []).append(number)
    return {topic: tuple(numbers) for topic, numbers in by_topic.items()}


def planned(scene: Scene, without: Sequence[str], joining: Sequence[str]) -> Planned:
    """The plan when some members leave and others join.

    Args:
        scene: the group as it is.
        without: members that leave, by id, client id or instance id.
        joining: members that join, as `parse_members` reads them.

    Raises:
        ConfigError: a member that is not there, or there already.
    """
    today: Mapping[str, Partitions] = scene.today or {}
    if scene.today is None and (without or joining):
        today = assigned(scene, {}).after  # a made-up group begins with the assignor's own plan
    members = dict(scene.members)
    for each in without:
        del members[_known(each, members)]
    topics = frozenset[str]().union(*[m.topics for m in scene.members.values()])
    for each in joining:
        for new in parse_members(each, topics):
            if new.name in members:
                raise ConfigError(f"{new.name!r} is in the group already")
            members[new.name] = new
    return assigned(replace(scene, members=members), today)


def _known(name: str, members: Mapping[str, Participant]) -> str:
    matches = [m for m, each in members.items() if name == m or name in each.aliases]
    if len(matches) == 1:
        return matches[0]
    what = f"several members are {name!r}" if matches else f"nobody in the group is {name!r}"
    raise ConfigError(f"{what}; there are: {', '.join(list(members)[:10])}")


def assigned(scene: Scene, today: Mapping[str, Partitions]) -> Planned:
    """What the scene's assignor gives whom, from what they have today."""
    from kohort.group.assignors import GroupView
    from kohort.group.assignors.base import freeze
    from kohort.group.member.leader_plan import planned_by

    leader = _maker(scene)(None)
    views = {m: _view(scene, each, today.get(m, {})) for m, each in scene.members.items()}
    subscribed = frozenset[str]().union(*[m.topics for m in scene.members.values()])
    topics = {topic: view for topic, view in scene.topics.items() if topic in subscribed}
    group = GroupView(views, topics)
    made = planned_by(leader, group)
    after = {m: freeze(made.assignments.get(m, {})) for m in views}
    return Planned(leader, group, scene, today, after)


def _maker(scene: Scene) -> Callable[[int | None], Assignor]:
    """Makes the assignor of a member with its weight."""
    from kohort.group.assignors import (
        BUILT_IN,
        SERVER_SIDE,
        make_assignors,
        make_server_assignors,
    )

    base = scene.assignor.partition(":")[0]
    on_server = scene.server_side or (base in SERVER_SIDE and base not in BUILT_IN)

    def make(weight: int | None) -> Assignor:
        text = scene.assignor if weight is None else f"{base}:{weight}"
        [one] = make_server_assignors(text) if on_server else make_assignors(text)
        return one

    return make


def _view(scene: Scene, member: Participant, owned: Partitions) -> MemberView:
    from kohort.group.assignors import MemberView

    mine = _maker(scene)(member.weight)
    if owned:
        mine.on_assignment(owned, None, 1)
    user_data = mine.subscription(member.topics)
    if member.user_data is not None and mine.cooperative and member.weight is None:
        user_data = member.user_data  # what the live member says of itself
    return MemberView(
        member.name,
        member.topics,
        member.instance_id,
        owned if mine.cooperative else {},
        1 if owned else -1,
        member.rack,
        user_data,
    )


def moves(plan: Planned) -> list[Move]:
    """Partitions that change hands; none where no member has anything today."""
    from kohort.group.assignors import measure

    return measure.moves(plan.group, plan.before, plan.after) if plan.before else []
