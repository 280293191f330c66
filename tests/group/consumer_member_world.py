"""The seeded world of `member_world` for groups of the consumer protocol, and for mixed ones.

Callers have a member of either kind; a caller may be replaced by one of the other kind, so that a
group migrates while faults happen. Beside C6, what must hold after every event: whom the
coordinator counts in holds nothing that the coordinator takes for free or for another's (G1, B2).
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.assignors import TopicView, make_assignors
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.config import GroupConfig
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.group.member.classic import ClassicMember
from kohort.group.member.config import MemberConfig
from kohort.group.member.consumer import ConsumerMember
from kohort.group.member.consumer_table import State
from kohort.group.member.effects import Effect, Fatal, WatchTopics
from tests.group.member_world import BEAT_MS, POLL_MS, SESSION_MS, Caller, World, flat

CONSUMER = "consumer"


class ConsumerWorld(World):
    """Members of `protocol` ("consumer", or a classic assignor's name for classic ones)."""

    def __init__(self, seed: int, protocol: str, *, static: bool = False) -> None:
        self.made: dict[str, int] = {}
        super().__init__(seed, protocol, static=static)

    def topic_id(self, name: str) -> bytes:
        """A topic created again has another id."""
        return f"{name}{self.made.get(name, 0)}".encode().rjust(16, b"\1")

    def image(self) -> TopicsImage:
        return TopicsImage.of(TopicImage(self.topic_id(t), t, n) for t, n in self.topics.items())

    def load(self) -> GroupShard:
        config = GroupConfig(
            group_initial_rebalance_delay_ms=0,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_min_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=BEAT_MS,
            group_consumer_min_heartbeat_interval_ms=BEAT_MS,
        )
        shard = GroupShard(0, config, lambda: f"id{next(self.serial)}")
        shard.topics_changed(self.image(), self.now)
        for offset, record in enumerate(self.log):
            shard.replay(record, offset)
        self.shard = shard
        self.took(shard, shard.loaded(self.now))
        return shard

    def grow(self) -> None:
        super().grow()
        self.spread()

    def remake(self) -> None:
        """A topic is created again with fewer or more partitions, or a new one is created."""
        topic = self.chance.choice(["b", "c"])
        self.made[topic] = self.made.get(topic, 0) + 1
        self.topics[topic] = self.chance.randint(1, 4)
        self.spread()

    def spread(self) -> None:
        """The coordinator knows at once, the members sooner or later."""
        self.took(self.shard, self.shard.topics_changed(self.image(), self.now))
        for caller in self.callers:
            if caller.alive:
                self.at(self.chance.randint(0, 3_000), lambda c=caller: self.look(c))

    def look(self, caller: Caller) -> None:
        if caller.alive:
            super().look(caller)

    def subscribe(self, caller: Caller) -> None:
        """Other topics, by name or, under the consumer protocol, by a pattern of the broker."""
        member = caller.member
        caller.topics = set(self.chance.choice(["a", "b", "ab", "abc"]))
        if isinstance(member, ConsumerMember) and self.chance.random() < 0.5:
            pattern = f"[{''.join(sorted(caller.topics))}]"
            self.do(caller, member.subscribe_pattern(pattern, self.now))
        else:
            self.do(caller, member.subscribe(caller.topics, self.now))

    def do(self, caller: Caller, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, WatchTopics) and effect.ids:
                self.at(self.chance.randint(1, 500), lambda: self.look(caller))
            code = getattr(effect.error, "code", None) if isinstance(effect, Fatal) else None
            if code == ErrorCode.UNRELEASED_INSTANCE_ID:
                # Its supervisor starts it again, until the session of the old one is over.
                self.crash(caller)
                self.at(1_000, lambda: self.restart(caller))
        super().do(caller, [e for e in effects if caller.alive or not isinstance(e, Fatal)])

    def restart(self, caller: Caller) -> None:
        self.start(caller.member.group_instance_id)

    def seen(self) -> dict[str, TopicView | None]:
        return {t: TopicView(size, topic_id=self.topic_id(t)) for t, size in self.topics.items()}

    def start(self, instance_id: str | None = None, protocol: str | None = None) -> Caller:
        name, protocol = f"c{len(self.callers)}", protocol or self.protocol
        config = MemberConfig(
            group_id="g",
            group_instance_id=instance_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=BEAT_MS,
            max_poll_interval_ms=POLL_MS,
        )
        member: ConsumerMember | ClassicMember
        if protocol == CONSUMER:
            member = ConsumerMember(config, lambda: f"m{next(self.serial)}", self.chance.random)
        else:
            member = ClassicMember(config, make_assignors(protocol), self.chance.random)
        caller = Caller(name, member, {"a", "b"})  # type: ignore[arg-type]
        self.callers.append(caller)
        self.do(caller, member.topics_changed(self.seen(), self.now))
        self.do(caller, member.subscribe(caller.topics, self.now))
        self.at(1, lambda: self.poll(caller))
        return caller

    def check(self) -> None:
        super().check()
        group = self.shard.consumer_groups.get("g")
        if group is None:
            return
        holder: dict[tuple[bytes, int], str] = {}
        for caller in self.callers:
            member = caller.member
            if not caller.alive or member.member_id not in group.members or member.generation < 0:
                continue
            current = group.current(member.member_id)
            if current.epoch < member.generation:
                continue  # it has left, or was fenced and has not heard of it
            mine = {
                (i, n)
                for held in (current.assigned, current.pending)
                for i, numbers in held.items()
                for n in numbers
            }
            if isinstance(member, ConsumerMember):
                named = {(chr(i.lstrip(b"\1")[0]), n) for i, n in mine}
                assert caller.holds <= named, (self.now, caller.name, caller.holds - named)
            for partition in mine:
                other = holder.setdefault(partition, caller.name)
                assert other == caller.name, (self.now, partition, other, caller.name)

    def settled(self) -> None:
        """GL1, GL2, GL5 (as far as owning goes): all in, all stable, all partitions owned once."""
        live = [c for c in self.callers if c.alive and c.member.state.name != "LEFT"]
        for caller in live:
            assert caller.member.state.name == State.STABLE.name, (caller.name, caller.member.state)
        owned = [partition for caller in live for partition in caller.holds]
        read = {topic for caller in live for topic in caller.topics}
        wanted = {(t, n) for t, size in self.topics.items() if t in read for n in range(size)}
        assert sorted(owned) == sorted(wanted)
        assert len({caller.member.generation for caller in live}) <= 1
        for caller in live:
            assert flat(caller.member.assignment) == caller.holds
            assert {topic for topic, _ in caller.holds} <= caller.topics


def change(world: ConsumerWorld) -> None:
    """One random thing changes under the members, or a static one comes back."""
    live = [c for c in world.callers if c.alive and c.member.state.name != "LEFT"]
    kind = world.chance.choice(["subscribe", "subscribe", "remake", "leave and be back", "back"])
    if kind == "remake":
        world.remake()
    elif live:
        caller = world.chance.choice(live)
        if kind == "subscribe":
            world.subscribe(caller)
        elif kind == "leave and be back":
            world.do(caller, caller.member.unsubscribe(world.now))
            world.at(world.chance.randint(0, 2_000), lambda: world.subscribe(caller))
        elif world.static and caller.member.state.name == "STABLE":
            world.crash(caller) if world.chance.random() < 0.5 else world.close(caller)
            world.start(caller.member.group_instance_id)


def migrate(world: ConsumerWorld, to: str) -> None:
    """One caller after the other is closed and comes back with the other protocol."""
    for caller in [c for c in world.callers if c.alive and c.member.state.name != "LEFT"]:
        world.close(caller)
        world.run(world.now + world.chance.choice([50, 500, 3_000]))
        world.start(caller.member.group_instance_id, to)
        world.run(world.now + world.chance.choice([50, 1_000, 5_000]))
