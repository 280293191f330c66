"""A subscription by regular expression (KIP-848) stands for no topic that its reader may not
describe, whoever else reads by it (issue F.9)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.acl import Acl, Operation, Pattern, Permission, Resource
from kohort.broker.log.files import MemoryFiles
from kohort.group.explain import timeline
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from tests.broker.harness import Harness

ALICE, BOB, ROOT = "User:alice", "User:bob", "User:root"
GROUP = "g"


class Reader:
    """One member, which gives up what it is to give up."""

    def __init__(self, harness: Harness, name: str, expression: str, who: str) -> None:
        self.harness, self.name, self.who = harness, name, who
        self.epoch = 0
        self.has: dict[bytes, list[int]] = {}
        self.known_topics: set[bytes] = set()
        """Every topic that it was ever told of."""
        self.beat(subscribed_topic_regex=expression, rebalance_timeout_ms=60_000)

    def beat(self, **says: Any) -> ConsumerGroupHeartbeatResponse:
        owned = [TopicPartitions(topic_id=i, partitions=p) for i, p in self.has.items()]
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            topic_partitions=owned,
            **says,
        )
        sent = self.harness.send(request, 1, principal=self.who)
        self.harness.env.advance(100)
        answer = self.harness.read(sent, ConsumerGroupHeartbeatResponse, 1)
        assert answer.error_code == 0, answer
        self.epoch = max(0, answer.member_epoch)
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            self.has = {bytes(t.topic_id): list(t.partitions) for t in parts}
            self.known_topics |= self.has.keys()
        return answer

    def leave(self) -> None:
        self.epoch, self.has = -1, {}
        self.beat()

    def topics(self) -> set[str]:
        return names(self.harness, self.has)


def names(harness: Harness, ids: Any) -> set[str]:
    topics = (harness.state.topics.by_id(topic_id) for topic_id in ids)
    return {topic.name for topic in topics if topic is not None}


def allow(harness: Harness, who: str, name: str, resource: Resource = Resource.TOPIC) -> Acl:
    acl = Acl(resource, name, Pattern.LITERAL, who, "*", Operation.READ, Permission.ALLOW)
    harness.state.acls.change(add=[acl])
    return acl


def settle(*readers: Reader) -> None:
    for _ in range(6):
        for reader in readers:
            reader.beat()


def opened(files: MemoryFiles | None = None, **config: Any) -> Harness:
    return Harness(files, acls=True, super_users=(ROOT,), **config)


@pytest.fixture
def harness() -> Harness:
    found = opened()
    for name in ("one", "two"):
        found.state.topics.create(name, 2, {})
    for who in (ALICE, BOB):
        allow(found, who, GROUP, Resource.GROUP)
    return found


def test_the_reader_of_an_expression_is_told_of_what_it_may_describe(harness: Harness) -> None:
    nothing = Reader(harness, "a", ".*", ALICE)
    settle(nothing)
    assert nothing.known_topics == set()
    nothing.leave()
    allow(harness, ALICE, "one")
    some = Reader(harness, "b", ".*", ALICE)
    settle(some)
    assert names(harness, some.known_topics) == {"one"}
    some.leave()
    every = Reader(harness, "c", ".*", ROOT)
    settle(every)
    assert {"one", "two"} <= every.topics()


def test_expressions_do_not_tell_which_topics_there_are(harness: Harness) -> None:
    """What matches a hidden topic is answered as what matches none."""
    answers: list[ConsumerGroupHeartbeatResponse] = []
    for expression in ("tw.*", "zz.*"):
        reader = Reader(harness, "a", expression, ALICE)
        answers.append(reader.beat(subscribed_topic_regex=expression, rebalance_timeout_ms=9))
        reader.leave()
    one, other = answers
    assert one.assignment == other.assignment
    assert (one.error_code, one.heartbeat_interval_ms) == (0, other.heartbeat_interval_ms)


def test_by_the_expression_of_another_member_nobody_sees_more(harness: Harness) -> None:
    """Apache Kafka resolves it once, with the rights of who was first."""
    root = Reader(harness, "root", ".*", ROOT)
    settle(root)
    allow(harness, ALICE, "one")
    alice = Reader(harness, "alice", ".*", ALICE)
    settle(root, alice)
    harness.state.topics.create("three", 4, {})
    settle(root, alice)
    settle(alice, root)
    assert names(harness, alice.known_topics) == {"one"}


def test_who_may_see_more_gets_more_by_another_expression(harness: Harness) -> None:
    """A member with fewer rights does not narrow what others' expressions stand for."""
    allow(harness, ALICE, "one")
    root, alice = Reader(harness, "root", "t.*", ROOT), Reader(harness, "alice", ".*", ALICE)
    settle(alice, root)
    harness.state.topics.create("three", 2, {})
    settle(alice, root)
    assert root.topics() == {"two", "three"}
    assert names(harness, alice.known_topics) == {"one"}


def test_when_the_narrower_member_has_left_all_is_as_before(harness: Harness) -> None:
    root, alice = Reader(harness, "root", "one|two", ROOT), Reader(harness, "a", "one|two", ALICE)
    settle(root, alice)
    assert root.topics() == set()
    alice.leave()
    settle(root)
    assert root.topics() == {"one", "two"}


def test_a_right_that_is_given_or_taken_counts_with_the_next_heartbeats(harness: Harness) -> None:
    alice = Reader(harness, "a", "one|two", ALICE)
    acl = allow(harness, ALICE, "one")
    settle(alice)
    assert alice.topics() == {"one"}
    harness.state.acls.change(remove=[acl])
    allow(harness, ALICE, "two")
    settle(alice)
    assert alice.topics() == {"two"}


def test_what_was_resolved_before_a_restart_is_looked_at_again() -> None:
    """A log may have been written by a broker that asked nobody."""
    files = MemoryFiles()
    first = opened(files, durability="os", data_dir="d")
    first.state.topics.create("one", 1, {})
    allow(first, ALICE, GROUP, Resource.GROUP)
    acl = allow(first, ALICE, "one")
    alice = Reader(first, "a", "one", ALICE)
    settle(alice)
    assert alice.topics() == {"one"}
    first.state.acls.change(remove=[acl])
    first.state.close()
    second = opened(files, durability="os", data_dir="d")
    alice.harness, alice.known_topics = second, set()
    second.env.advance(1_000)
    settle(alice)
    assert (alice.topics(), alice.known_topics) == (set(), set())


def test_without_access_control_expressions_stand_for_all_that_match() -> None:
    harness = Harness()
    for name in ("one", "two"):
        harness.state.topics.create(name, 1, {})
    reader = Reader(harness, "a", "one|t.*", ALICE)
    settle(reader)
    harness.state.topics.create("three", 1, {})
    settle(reader)
    assert reader.topics() == {"one", "two", "three"}


def test_the_timeline_of_a_group_leaves_out_topics_that_may_not_be_described(
    harness: Harness,
) -> None:
    """`group why` asks for it; Apache Kafka's DescribeGroups has nothing of the kind."""
    settle(Reader(harness, "root", "one|two", ROOT))
    allow(harness, ALICE, "one")

    def moved(who: str) -> set[str]:
        request = DescribeGroupsRequest(groups=[GROUP], unknown_tags=timeline.ask(20))
        sent = harness.send(request, 6, principal=who)
        [group] = harness.read(sent, DescribeGroupsResponse, 6).groups
        rebalances = timeline.from_tags(group.unknown_tags) or []
        return {move.topic for each in rebalances for move in each.moves}

    assert moved(ROOT) == {"one", "two"}
    assert moved(ALICE) == {"one"}
