"""Hostile input (issue D): only typed errors, bounded memory, other connections unharmed.

`make nightly` sends a million frames; a failure names the seed and the frame that replay it.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from kohort.broker.apis import APIS, describe_user_scram_credentials
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kohort.wire.messages.describe_configs_response import DescribeConfigsResponse
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from kohort.wire.messages.describe_producers_request import DescribeProducersRequest, TopicRequest
from kohort.wire.messages.describe_producers_response import DescribeProducersResponse
from kohort.wire.messages.describe_user_scram_credentials_request import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kohort.wire.messages.describe_user_scram_credentials_response import (
    DescribeUserScramCredentialsResponse,
)
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.offset_delete_response import OffsetDeleteResponse
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from tests.broker.harness import Harness
from tests.broker.hostile import HostileWorld, most_memory

MEMORY_MAX = 64 << 20


def attack(seed: int, frames: int, **config: Any) -> HostileWorld:
    world = HostileWorld(seed, **config)
    for number in range(frames):
        what = "?"
        try:
            what = world.attack()
            if number % 1_000 == 0:
                world.prove_unharmed()
                world.prove_sound()
        except Exception as error:
            error.add_note(f"seed {seed}, frame {number}: {what}")
            raise
    world.prove_unharmed()
    world.prove_sound()
    return world


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("acls", [False, True])
def test_made_and_damaged_frames_end_no_broker(seed: int, acls: bool) -> None:
    """Without rights; with rights that nobody has (seed 1) and that everybody has (2)."""
    world = attack(seed, 2_000, acls=acls, allow_everyone_if_no_acl_found=acls and seed == 2)
    assert world.answered > 200
    assert world.refused > 200
    if not acls:
        assert world.read > 100
    if acls and seed == 1:
        assert not world.taken
    elif world.has_lane:
        assert world.taken > 250


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(10))
def test_a_million_hostile_frames(seed: int) -> None:
    """100,000 frames for each seed, over every API and version."""
    attack(seed, 5_000)  # codecs are made at first use
    gc.collect()
    before = most_memory()
    world = attack(1_000 + seed, 100_000)
    grown = most_memory() - before
    print(
        f"seed {seed}: {world.frames} frames for {len(APIS)} APIs, {world.answered} answered, "
        f"{world.refused} connections closed, {world.taken} by the fast path, "
        f"at most {grown >> 20} MiB more"
    )
    assert world.taken > (10_000 if world.has_lane else -1)
    assert grown < MEMORY_MAX


@pytest.mark.extended
@pytest.mark.once
def test_frames_of_one_kind_do_not_fill_the_memory() -> None:
    """What frames leave behind is bounded by the broker's limits, not by their number."""
    world = attack(3, 1_000)
    tracemalloc.start()
    try:
        for _ in range(700):  # each is ten times slower under this tracing
            world.attack()
        world.harness.env.advance(10 * 86_400_000)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < MEMORY_MAX


# -- one request


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.create("t", 300)
    return made


def test_unknown_partitions_are_told_from_the_others_in_one_pass(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4,000 of each took a broker 20 s, in which it served no other request."""
    compared: list[object] = []

    def counted(one: object, other: object) -> bool:
        compared.append(one)
        return one is other

    monkeypatch.setattr(OffsetDeleteRequestPartition, "__eq__", counted)
    parts = [OffsetDeleteRequestPartition(partition_index=n) for n in range(600)]
    topic = OffsetDeleteRequestTopic(name="t", partitions=parts)
    request = OffsetDeleteRequest(group_id="g", topics=[topic])
    answer = harness.ask(request, OffsetDeleteResponse)
    assert answer.error_code or sum(len(t.partitions) for t in answer.topics) == 600
    assert len(compared) < 600


def test_users_that_are_named_twice_are_found_in_one_pass(harness: Harness) -> None:
    names = [Counted(f"user-{n}") for n in range(300)]
    users = [UserName(name=name) for name in (*names, Counted("user-7"))]
    answers: list[Call] = []
    call = Call(0, 1, "tester", "/127.0.0.1", False, answers.append)
    Counted.compared = 0
    describe_user_scram_credentials.handle(
        harness.node, DescribeUserScramCredentialsRequest(users=users), call
    )
    answer = answers[0].response
    assert isinstance(answer, DescribeUserScramCredentialsResponse)
    codes = [result.error_code for result in answer.results]
    twice = [n for n, code in enumerate(codes) if code == ErrorCode.DUPLICATE_RESOURCE]
    assert (len(codes), twice) == (300, [7])
    assert Counted.compared < 10 * 300


def test_what_a_request_repeats_is_answered_once(harness: Harness) -> None:
    """A small request that names one large thing often would be answered with gigabytes."""
    groups = DescribeGroupsRequest(groups=["b", "a", "b", "b"])
    described = harness.ask(groups, DescribeGroupsResponse)
    assert [group.group_id for group in described.groups] == ["b", "a"]

    resources = [DescribeConfigsResource(resource_type=2, resource_name="t") for _ in range(3)]
    configs = harness.ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    assert [result.resource_name for result in configs.results] == ["t"]

    topics = [TopicRequest(name="t", partition_indexes=[1, 0, 1]) for _ in range(2)]
    producers = harness.ask(DescribeProducersRequest(topics=topics), DescribeProducersResponse)
    pairs = [(t.name, p.partition_index) for t in producers.topics for p in t.partitions]
    assert pairs == [("t", 1), ("t", 0)]


def test_offsets_that_a_request_repeats_are_answered_once(harness: Harness) -> None:
    """An offset's metadata is up to 4 KiB, for 4 bytes that ask for it."""

    def some(*numbers: int) -> OffsetFetchRequestGroup:
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=list(numbers))
        return OffsetFetchRequestGroup(group_id="g", topics=[topic, topic])

    def answered(*groups: OffsetFetchRequestGroup) -> list[tuple[str, int]]:
        request = OffsetFetchRequest(groups=list(groups))
        answer = harness.ask(request, OffsetFetchResponse, 9)
        return [
            (group.group_id, part.partition_index)
            for group in answer.groups
            for topic in group.topics
            for part in topic.partitions
        ]

    assert answered(some(1, 0, 1), some(2, 1)) == [("g", 1), ("g", 0), ("g", 2)]
    every = OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = harness.ask(OffsetFetchRequest(groups=[every, some(1), every]), OffsetFetchResponse, 9)
    assert [group.group_id for group in answer.groups] == ["g"]

    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[1, 1]) for _ in range(2)]
    old = OffsetFetchRequest(group_id="g", topics=topics)
    answer = harness.ask(old, OffsetFetchResponse, 7)
    assert [p.partition_index for t in answer.topics for p in t.partitions] == [1]
