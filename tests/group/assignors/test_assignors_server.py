"""Server-side assignors (KIP-848) give what Apache Kafka 4.3.0 gives.

The vectors in `data/java_server_assignors.jsonl` were printed by `tools/ServerAssignorOracle.java`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.group.assignors import (
    GroupView,
    MemberView,
    Plan,
    TopicView,
    UniformAssignor,
    make_server_assignors,
)
from kohort.group.assignors.base import checked, freeze
from tests.group.assignor_tools import counts, group, owning, shown

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "java_server_assignors.jsonl")
    .read_text()
    .splitlines()
]


def view_of(vector: dict[str, Any]) -> GroupView:
    """The group of a vector; its topics are t0, t1, … by size, each replica rack by partition."""
    members = {
        m: MemberView(
            m,
            frozenset(each["topics"]),
            instance_id=each["instance"],
            rack=each["rack"],
            owned=freeze(each["owned"]),
        )
        for m, each in vector["members"].items()
    }
    topics = {
        f"t{n}": TopicView(size, tuple(frozenset({f"r{p % 3}"}) for p in range(size)))
        for n, size in enumerate(vector["topics"])
    }
    return GroupView(members, topics)


@pytest.mark.parametrize("name", ["uniform", "range"])
def test_plans_are_those_of_kafka(name: str) -> None:
    """Members that come, go and change their minds, topics that grow: the same to the partition."""
    [assignor] = make_server_assignors(name)
    vectors = [vector for vector in VECTORS if vector["assignor"] == name]
    assert len(vectors) >= 40
    for vector in vectors:
        view = view_of(vector)
        plan = checked(name, assignor.assign(view), view)
        assert shown(plan) == shown(Plan(vector["plan"])), vector


def test_uniform_keeps_what_levels_allow() -> None:
    """One member leaves: its partitions alone move."""
    before = group(dict.fromkeys("abcd", "t u"), {"t": 8, "u": 8})
    plan = UniformAssignor().assign(before)
    assert counts(plan) == dict.fromkeys("abcd", 4)
    after = owning(before, plan, without="b")
    again = UniformAssignor().assign(after)
    for member_id in "acd":
        for topic, numbers in plan.assignments[member_id].items():
            assert set(numbers) <= set(again.assignments[member_id][topic])


def test_uniform_of_nobody_and_of_nothing() -> None:
    assert UniformAssignor().assign(group({}, {"t": 3})).assignments == {}
    assert UniformAssignor().assign(group({"a": "", "b": ""}, {})).assignments == {"a": {}, "b": {}}
    assert shown(UniformAssignor().assign(group({"a": "x", "b": "t"}, {"t": 2}))) == {
        "a": "",
        "b": "tp0 tp1",
    }


def test_only_server_side_names() -> None:
    with pytest.raises(ConfigError, match="unknown assignor 'sticky'; known: uniform, range"):
        make_server_assignors("sticky")
