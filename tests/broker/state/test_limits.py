"""Limits on everything that grows (issue D): what a broker keeps for clients is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.acl import ANYBODY, WILDCARD, Acl, Operation, Pattern, Permission, Resource
from kohort.broker.coordinator import shard_host as shards
from kohort.broker.security import acls, users
from kohort.broker.state import group_config as group_configs
from kohort.broker.state.leadership import Leadership
from kohort.errors import BrokerError, ErrorCode
from kohort.sasl.scram import SCRAM_SHA_256, credential_of
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from tests.broker.harness import Harness


def acl(name: str) -> Acl:
    return Acl(
        Resource.TOPIC, name, Pattern.LITERAL, ANYBODY, WILDCARD, Operation.READ, Permission.ALLOW
    )


def refusal(act: Any, *args: Any, **named: Any) -> ErrorCode | int:
    with pytest.raises(BrokerError) as refused:
        act(*args, **named)
    return refused.value.code


def test_access_control_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is whole or nothing; what is there already, or goes, needs no room."""
    monkeypatch.setattr(acls, "ACLS_MAX", 3)
    harness = Harness(acls=True)
    change = harness.state.acls.change
    change(add=[acl("a"), acl("b")])
    assert refusal(change, add=[acl("c"), acl("d")]) == ErrorCode.POLICY_VIOLATION
    change(add=[acl("a"), acl("c")])
    change(add=[acl("d")], remove=[acl("a")])
    found = harness.state.directory.registry.acls
    assert sorted(row[1] for row in found) == ["b", "c", "d"]


def test_configurations_of_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_configs, "GROUPS_MAX", 2)
    configure = Harness().state.group_configs.configure
    values = {"consumer.session.timeout.ms": "50000"}
    configure("a", values)
    configure("b", values)
    assert refusal(configure, "c", values, validate_only=True) == ErrorCode.POLICY_VIOLATION
    configure("b", {})
    configure("c", values)
    assert refusal(configure, "b", values) == ErrorCode.POLICY_VIOLATION


def test_partitions_that_are_added_are_counted() -> None:
    """With those of all topics, and nothing is added beyond the limit."""
    harness = Harness(max_partitions=5)
    topics = harness.state.topics
    one, two = topics.create("one", 2, {}), topics.create("two", 1, {})
    assert refusal(topics.add_partitions, one, 5) == ErrorCode.POLICY_VIOLATION
    assert refusal(topics.add_partitions, one, 5, validate_only=True) == ErrorCode.POLICY_VIOLATION
    topics.add_partitions(one, 4)
    assert refusal(topics.add_partitions, two, 2) == ErrorCode.POLICY_VIOLATION
    assert [len(topic.partitions) for topic in (one, two)] == [4, 1]


def test_partitions_beyond_the_limit_are_not_even_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number in a request must not cost memory and time of the thread that serves everybody."""
    harness = Harness(nodes=3, max_partitions=10)
    placed = Leadership.replicas
    calls = 0

    def counted(leadership: Leadership, *where: Any) -> list[int]:
        nonlocal calls
        calls += 1
        assert calls < 300
        return list(placed(leadership, *where))

    monkeypatch.setattr(Leadership, "replicas", counted)
    for validate_only in (True, False):
        topic = CreatableTopic(name="t", num_partitions=2_000_000_000, replication_factor=2)
        request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
        answer = harness.ask(request, CreateTopicsResponse)
        assert answer.topics[0].error_code == ErrorCode.POLICY_VIOLATION
    many = [CreatableTopic(name=f"t{n}", num_partitions=8, replication_factor=2) for n in range(90)]
    answer = harness.ask(CreateTopicsRequest(topics=many), CreateTopicsResponse)
    codes = [topic.error_code for topic in answer.topics]
    assert codes == [0] + [ErrorCode.POLICY_VIOLATION] * 89
    assert [topic.replication_factor for topic in answer.topics[:1]] == [2]


def test_where_groups_are_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_NEAR_MAX", 10)
    node = Harness(offsets_topic_num_partitions=1).node
    host = node.groups.host_of("g")
    for n in range(95):
        assert node.groups.host_near(f"g{n}") is host
    assert len(node.groups._near) <= 10


def test_users_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new password of a user who is there needs no room."""
    monkeypatch.setattr(users, "MAX_USERS", 2)
    known = Harness().state.users
    made = credential_of(SCRAM_SHA_256, b"salted", b"salt", 4_096)
    known.alter("ann", SCRAM_SHA_256, made)
    known.alter("bob", SCRAM_SHA_256, made)
    assert refusal(known.alter, "cid", SCRAM_SHA_256, made) == ErrorCode.POLICY_VIOLATION
    known.alter("bob", SCRAM_SHA_256, made)
    known.alter("bob", SCRAM_SHA_256, None)
    known.alter("cid", SCRAM_SHA_256, made)
    assert len(known) == 2
