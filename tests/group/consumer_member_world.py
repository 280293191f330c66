"""The seeded world of `member_world` for groups of the consumer protocol, and for mixed ones.

Callers have a member of either kind; a caller may be replaced by one of the other kind, so that a
group migrates while faults happen. Beside C6, what must hold after every event: whom the
coordinator counts in holds nothing that the coordinator takes for free or for another's (G1, B2).
"""

from __future__ import annotations

from kohort.group.assignors import TopicView, make_assignors
from kohort.group.config import GroupConfig
from kohort.group.consumer_member import ConsumerMember
from kohort.group.consumer_member_table import State
from kohort.group.member import ClassicMember
from kohort.group.member_config import MemberConfig
from kohort.group.shard import GroupShard
from kohort.group.topics import TopicImage, TopicsImage
from tests.group.member_world import BEAT_MS, POLL_MS, SESSION_MS, Caller, World, flat

CONSUMER = "consumer"


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\1")


class ConsumerWorld(World):
    """Members of `protocol` ("consumer", or a classic assignor's name for classic ones)."""

    def image(self) -> TopicsImage:
        return TopicsImage.of(TopicImage(topic_id(t), t, n) for t, n in self.topics.items())

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
        self.took(self.shard, self.shard.topics_changed(self.image(), self.now))

    def seen(self) -> dict[str, TopicView | None]:
        return {t: TopicView(size, topic_id=topic_id(t)) for t, size in self.topics.items()}

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
        holder: dict[tuple[str, int], str] = {}
        for caller in self.callers:
            member = caller.member
            if not caller.alive or member.member_id not in group.members or member.generation < 0:
                continue
            given = group.current(member.member_id)
            if given.epoch < member.generation:
                continue  # it has left, or was fenced and has not heard of it
            mine = {
                (name, n)
                for held in (given.assigned, given.pending)
                for name in self.topics
                for n in held.get(topic_id(name), ())
            }
            if isinstance(member, ConsumerMember):
                assert caller.holds <= mine, (self.now, caller.name, caller.holds - mine)
            for partition in mine:
                other = holder.setdefault(partition, caller.name)
                assert other == caller.name, (self.now, partition, other, caller.name)

    def settled(self) -> None:
        """GL1, GL2, GL5 (as far as owning goes): all in, all stable, all partitions owned once."""
        live = [c for c in self.callers if c.alive and c.member.state.name != "LEFT"]
        for caller in live:
            assert caller.member.state.name == State.STABLE.name, (caller.name, caller.member.state)
        owned = [partition for caller in live for partition in caller.holds]
        wanted = {(topic, n) for topic, size in self.topics.items() for n in range(size)}
        assert sorted(owned) == sorted(wanted if live else [])
        assert len({caller.member.generation for caller in live}) <= 1
        for caller in live:
            assert flat(caller.member.assignment) == caller.holds


def migrate(world: ConsumerWorld, to: str) -> None:
    """One caller after the other is closed and comes back with the other protocol."""
    for caller in [c for c in world.callers if c.alive and c.member.state.name != "LEFT"]:
        world.close(caller)
        world.run(world.now + world.chance.choice([50, 500, 3_000]))
        world.start(caller.member.group_instance_id, to)
        world.run(world.now + world.chance.choice([50, 1_000, 5_000]))
