"""What kafka-python and aiokafka write we read, and what we write they read (spec 3.1)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kohort.group.assignors import MemberView
from kohort.group.assignors.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kohort.group.assignors.user_data import decode_previous, encode_previous

OWNED = {"a": (0, 2), "b": (5,)}


def test_kafka_python_reads_our_subscription() -> None:
    metadata = pytest.importorskip("kafka.protocol.consumer.metadata")
    for version in range(4):
        data = encode_subscription(["b", "a"], b"mine", OWNED, 7, "r", version)
        theirs = metadata.ConsumerProtocolSubscription.decode(data)
        assert theirs.topics == ["a", "b"]
        assert theirs.user_data == b"mine"
        if version >= 1:
            owned = {each.topic: tuple(each.partitions) for each in theirs.owned_partitions}
            assert owned == OWNED
        if version >= 2:
            assert theirs.generation_id == 7
        if version >= 3:
            assert theirs.rack_id == "r"


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative_sticky"])
def test_we_read_kafka_pythons_metadata(name: str) -> None:
    """Each of its assignors, before and after an assignment."""
    package = "kafka.coordinator.assignors"
    where = f"{package}.sticky.sticky_assignor" if name == "sticky" else f"{package}.{name}"
    module = pytest.importorskip(where)
    structs = pytest.importorskip("kafka.structs")
    found = [each for each in vars(module).values() if isinstance(each, type)]
    wanted = name.replace("_", "-")
    [cls] = [each for each in found if getattr(each, "name", None) == wanted]
    assignor = cls()
    view = decode_subscription("m", assignor.metadata({"b", "a"}).encode())
    assert (view.topics, view.owned, view.generation) == ({"a", "b"}, {}, -1)
    parts = [structs.TopicPartition(t, n) for t, numbers in OWNED.items() for n in numbers]
    assignor.on_assignment(SimpleNamespace(partitions=lambda: parts), 9)
    view = decode_subscription("m", assignor.metadata({"a"}).encode())
    if name == "sticky":
        assert decode_previous(view.user_data) == (OWNED, 9)
    if name == "cooperative_sticky":
        assert view.owned == OWNED


def test_kafka_python_reads_our_assignment() -> None:
    metadata = pytest.importorskip("kafka.protocol.consumer.metadata")
    theirs = metadata.ConsumerProtocolAssignment.decode(encode_assignment(OWNED, b"x"))
    assert [(t, n) for t, n in theirs.partitions()] == [("a", 0), ("a", 2), ("b", 5)]
    assert decode_assignment(theirs.encode())[0] == OWNED


def test_aiokafka_and_we_read_each_other() -> None:
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")
    theirs = protocol.ConsumerProtocolMemberMetadata(0, ["a", "b"], b"u")
    view = decode_subscription("m", theirs.encode())
    assert view == MemberView("m", frozenset("ab"), user_data=b"u")
    assert encode_subscription(["b", "a"], b"u", {}, -1, None, 0) == theirs.encode()
    ours = protocol.ConsumerProtocolMemberMetadata.decode(
        encode_subscription(["a"], None, OWNED, 4, "r")
    )
    assert ours.subscription == ["a"]
    assignment = protocol.ConsumerProtocolMemberAssignment(0, [("a", [2, 0])], b"")
    assert decode_assignment(assignment.encode()) == ({"a": (0, 2)}, b"")
    ours = protocol.ConsumerProtocolMemberAssignment.decode(encode_assignment(OWNED))
    assert ours.assignment == [("a", [0, 2]), ("b", [5])]


def test_aiokafka_reads_our_sticky_user_data() -> None:
    module = pytest.importorskip("aiokafka.coordinator.assignors.sticky.sticky_assignor")
    read = module.StickyAssignorUserDataV1.decode(encode_previous(OWNED, 3))
    assert (dict(read.previous_assignment), read.generation) == ({"a": [0, 2], "b": [5]}, 3)
    theirs = module.StickyAssignorUserDataV1([("b", [5]), ("a", [2, 0])], 4).encode()
    assert decode_previous(theirs) == (OWNED, 4)
