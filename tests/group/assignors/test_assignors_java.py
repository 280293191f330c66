"""Byte for byte and plan for plan as the Java client of Apache Kafka 4.3.0 (spec 3.1).

The vectors in `data/java_assignors.jsonl` were printed by `tools/AssignorOracle.java`.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from kohort.group.assignors import (
    Assignor,
    AssignorError,
    GroupView,
    MemberView,
    Plan,
    TopicView,
    make_assignors,
)
from kohort.group.assignors.base import checked, freeze
from kohort.group.assignors.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kohort.group.assignors.racks import ReplicaRacks
from kohort.group.assignors.user_data import decode_generation, decode_previous
from tests.group.assignor_tools import shown, worth

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "java_assignors.jsonl").read_text().splitlines()
]


def of(kind: str) -> list[dict[str, Any]]:
    return [vector for vector in VECTORS if vector["kind"] == kind]


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def groups(assignor: str) -> list[dict[str, Any]]:
    return [vector for vector in of("group") if vector["assignor"] == assignor]


@pytest.mark.parametrize("vector", of("subscription"))
def test_subscription(vector: dict[str, Any]) -> None:
    """Every version of the member's metadata is written and read as Java does."""
    version, owned = vector["version"], freeze(vector["owned"])
    data = encode_subscription(
        vector["topics"],
        raw(vector["user_data"]),
        owned,
        vector["generation"],
        vector["rack"],
        version,
    )
    assert data.hex() == vector["bytes"]
    view = decode_subscription("m", data)
    assert view == MemberView(
        "m",
        frozenset(vector["topics"]),
        owned=owned if version >= 1 else {},
        generation=vector["generation"] if version >= 2 else -1,
        rack=vector["rack"] if version >= 3 else None,
        user_data=raw(vector["user_data"]),
    )


@pytest.mark.parametrize("vector", of("assignment"))
def test_assignment(vector: dict[str, Any]) -> None:
    data = encode_assignment(vector["owned"], raw(vector["user_data"]))
    assert data.hex() == vector["bytes"]
    assert decode_assignment(data) == (freeze(vector["owned"]), raw(vector["user_data"]))


@pytest.mark.parametrize("vector", of("user_data"))
def test_user_data(vector: dict[str, Any]) -> None:
    """`sticky` v1 and `cooperative-sticky` v0."""
    [assignor] = make_assignors(vector["assignor"])
    if vector["generation"] >= 0:
        assignor.on_assignment(freeze(vector["owned"]), None, vector["generation"])
    data = assignor.subscription(frozenset("t"))
    assert data == raw(vector["bytes"])
    if assignor.cooperative:
        assert decode_generation(data) == vector["generation"]
    else:
        assert decode_previous(data) == (freeze(vector["owned"]), vector["generation"])


def view_of(vector: dict[str, Any]) -> GroupView:
    members = {
        m: MemberView(
            m,
            frozenset(each["topics"]),
            instance_id=each["instance"],
            owned=freeze(each["owned"]),
            rack=each["rack"],
            user_data=raw(each["user_data"]),
        )
        for m, each in vector["members"].items()
    }
    topics = {
        topic: TopicView(len(racks), tuple(frozenset(r for r in each if r) for each in racks))
        for topic, racks in vector["topics"].items()
    }
    return GroupView(members, topics)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_plans_are_those_of_java(name: str) -> None:
    """`range` (with racks as well, KIP-881) and `roundrobin` give everybody what Java gives."""
    [assignor] = make_assignors(name)
    vectors = groups(name)
    assert len(vectors) >= 80
    for vector in vectors:
        view = view_of(vector)
        plan = checked(name, assignor.assign(view), view)
        assert shown(plan) == shown(Plan(vector["plan"])), vector


@pytest.mark.parametrize(("name", "most"), [("sticky", 350), ("cooperative-sticky", 60)])
def test_sticky_is_at_least_as_good_as_java(name: str, most: int) -> None:
    """From Java's own user data and racks: never less balanced; as balanced, never further from
    the replicas (KIP-881); as near, never with more moves.

    Java takes "somebody subscribes to nothing" for "all subscribe to the same" and then gives
    partitions to members that did not ask for them; those few plans are left out.
    """
    [assignor] = make_assignors(name)
    better = compared = 0
    for vector in groups(name):
        view, theirs = view_of(vector), Plan(vector["plan"])
        with contextlib.suppress(AssignorError):
            checked("java", theirs, view)
            compared += 1
            better += as_good(assignor, view, theirs)
    assert compared >= most * 0.95
    assert better >= 1


def as_good(assignor: Assignor, view: GroupView, theirs: Plan) -> bool:
    """Ours is as good as `theirs`; whether it is better."""
    plan = checked(assignor.name, assignor.assign(view), view)
    mine, java = worth(view, plan), worth(view, theirs)
    if not ReplicaRacks(view).matter:
        mine, java = (mine[0], mine[2]), (java[0], java[2])
    assert mine <= java, view
    return mine < java
