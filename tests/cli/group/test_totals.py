"""`kohort group lag --total`: the console's own figures on the command line (spec 8.1)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kohort import Admin, Producer, TopicPartition
from kohort.cli.group import totals
from kohort.errors import ConnectionFailedError
from tests.cli.conftest import Run
from tests.clusters import Cluster


def test_a_line_for_each_group(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "totals", "-p", "2")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(6):
            producer.send("totals", b"v", None, n % 2, 1_000_000)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("late", {TopicPartition("totals", n): 1 for n in (0, 1)})
        admin.alter_group_offsets("done", {TopicPartition("totals", n): 3 for n in (0, 1)})
    ran = kohort("group", "lag", "late", "done", "--total", "--sort", "lag")
    assert ran.lines[0].split() == [
        "GROUP",
        "STATE",
        "MEMBERS",
        "PARTITIONS",
        "LAG",
        "OLDEST-UNREAD",
    ]
    assert ran.lines[1].split()[:5] == ["late", "Empty", "0", "2", "4"]
    once = kohort("group", "lag", "late", "--total", "-o", "json").json["rows"]
    assert once[0]["oldest_unread"] > 1_000_000_000_000  # one look reads the record's own time
    assert ran.lines[2].split() == ["done", "Empty", "0", "2", "0", "0ms"]
    rows = kohort("group", "lag", "late", "--total", "--for", "1ms", "-o", "json").json["rows"]
    assert rows[0]["lag"] == 4
    assert rows[0]["oldest_unread"] > 1_000_000_000_000
    assert rows[0]["health"] == "waiting"
    assert "--total" in kohort("group", "lag", "late", "--for", "1s").err


def test_partitions_whose_lag_is_unknown_are_counted(kohort: Run, cluster: Cluster) -> None:
    """A program sees what the table's `>=` says: the sum is not the whole."""
    kohort("topic", "create", "doubtful", "-p", "2")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        places = {TopicPartition("doubtful", 0): 0, TopicPartition("doubtful", 1): 9}
        admin.alter_group_offsets("partly-known", places)
        admin.alter_group_offsets("unknown", {TopicPartition("doubtful", 0): 9})
    asked = ("group", "lag", "partly-known", "unknown", "--total", "--sort", "name", "-o")
    rows = kohort(*asked, "json").json["rows"]
    assert [(row["lag"], row["unknown"]) for row in rows] == [(0, 1), (None, 1)]
    assert kohort(*asked, "csv").lines[0] == (
        "group,state,members,partitions,lag,unknown,oldest_unread"
    )
    table = kohort(*asked, "table").lines
    assert [line.split()[4] for line in table] == ["LAG", ">=0", "-"]


def test_groups_are_chosen_and_sorted(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "sorted", "-p", "1")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(6):
            producer.send("sorted", b"v", None, 0, 1_000_000 + n)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for name, offset in (("pick-b", 5), ("pick-a", 2), ("pick-c", 6), ("other", 0)):
            admin.alter_group_offsets(name, {TopicPartition("sorted", 0): offset})

    def order(by: str) -> list[str]:
        words = ("--all", "--match", "^pick-", "--total", "--sort", by, "-o", "json")
        return [row["group"][-1] for row in kohort("group", "lag", *words).json["rows"]]

    assert order("name") == ["a", "b", "c"]
    assert order("lag") == ["a", "b", "c"]
    assert order("age") == ["a", "b", "c"]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("pick-c", {TopicPartition("sorted", 0): 0})
    assert order("lag") == order("age") == ["c", "a", "b"]
    assert "no group has" in kohort("group", "lag", "--all", "--match", "no-one", "--total").err


def test_it_looks_again_until_it_is_interrupted(
    kohort: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TopicPartition("again", 0)
    kohort("topic", "create", "again", "-p", "1")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(6):
            producer.send("again", b"v", None, 0)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        admin.alter_group_offsets("watched", {place: 5})

    monkeypatch.setattr(totals, "time", SimpleNamespace(sleep=wait))
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("watched", {place: 1})
        ran = kohort("group", "lag", "watched", "--total", "--watch")
    assert ran.code == 130
    assert waits == [5.0, 5.0]
    assert [line.split()[4] for line in ran.lines if line.startswith("watched")] == ["5", "1"]


def test_figures_that_could_not_be_had_are_no_empty_answer(
    kohort: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> object:
        raise ConnectionFailedError("no broker answers")

    monkeypatch.setattr("kohort.sampling.sampler.take", silent)
    for more in ((), ("--for", "1ms"), ("-o", "json")):
        ran = kohort("group", "lag", "--all", "--total", *more)
        assert (ran.code, ran.out) == (1, "")
        assert "error: no broker answers" in ran.err


def test_some_of_the_groups_only_are_said_to_be_some(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "partly", "-p", "1")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for name in ("open", "shut"):
            admin.alter_group_offsets(name, {TopicPartition("partly", 0): 0})
    everything = ("group", "lag", "--all", "--total", "-o", "json")
    assert kohort(*everything).code == 0
    refusal = "GROUP_AUTHORIZATION_FAILED"
    for request in ("DescribeGroups", "OffsetFetch"):
        with cluster.faults.fail(request, refusal, group="shut", times=1_000):
            ran = kohort(*everything)
            assert ran.code == 4
            assert {"open", "shut"} <= {row["group"] for row in ran.json["rows"]}
            assert f"error: group 'shut': {refusal}" in ran.err
    with cluster.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=1_000):
        ran = kohort(*everything)
        assert ran.code == 4
        assert "does not answer for its groups" in ran.err
