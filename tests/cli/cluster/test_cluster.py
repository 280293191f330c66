"""`kohort cluster describe`: brokers that run and brokers that are away (spec 8.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, NewTopic
from kohort.cli.common.root import EXIT_CHECK_FAILED
from tests.cli.conftest import Run
from tests.clusters import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics([NewTopic("safe", 3, 3), NewTopic("single", 3, 1)])
        yield running


def test_a_healthy_cluster_and_one_without_a_broker(kohort: Run, cluster: Cluster) -> None:
    whole = kohort("cluster", "describe", "--check")
    assert whole.code == 0
    assert "3 partitions" not in whole.out
    assert "(0 offline, 0 under-replicated)" in whole.lines[0]
    assert [line.split()[0] for line in whole.lines[3:6]] == ["1", "2", "3"]

    cluster.kill_node(3)
    soon = ("-X", "default.api.timeout.ms=2000")  # how long the dead one is waited for
    found, trouble = {}, "it does not answer"
    while trouble.startswith("it does not answer"):  # the others have not noticed yet
        part = kohort("cluster", "describe", "--check", "-o", "json", *soon)
        assert part.code == EXIT_CHECK_FAILED
        found = part.json
        trouble = next(one for one in found["brokers"] if one["broker"] == 3)["trouble"]
    assert "does not run" in trouble
    assert {"safe-0", "safe-1", "safe-2"} <= set(found["under_replicated"])
    assert len([name for name in found["offline"] if name.startswith("single")]) == 1
    assert kohort("cluster", "describe", *soon).code == 0
    cluster.restart_node(3)


def test_a_broker_that_leaves_while_it_is_described_is_in_trouble(
    kohort: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = Admin.describe_topics

    def leave_first(admin: Admin, names: Any, **how: Any) -> Any:
        cluster.stop_node(3)
        return describe(admin, names, **how)

    monkeypatch.setattr(Admin, "describe_topics", leave_first)
    described = kohort("cluster", "describe", "--check", "-o", "json")
    cluster.restart_node(3)
    third = described.json["brokers"][2]
    assert (third["broker"], described.code) == (3, EXIT_CHECK_FAILED)
    assert third["trouble"] == "it does not run, and replicas are on it"


def test_a_broker_that_does_not_answer_costs_no_other_and_is_named(
    kohort: Run, cluster: Cluster
) -> None:
    """A broker that has just died stays in the metadata; the others' numbers come all the same."""
    soon = ("-X", "default.api.timeout.ms=1000")
    with (
        cluster.faults.silence("DescribeLogDirs", node=3, times=99),
        cluster.faults.silence("DescribeConfigs", node=3, times=99),
    ):
        described = kohort("cluster", "describe", "--check", "-o", "json", *soon)
        disks = kohort("cluster", "log-dirs", "-o", "json", *soon)
        configs = kohort("cluster", "config", "--all", "-o", "json", *soon)
        assert kohort("cluster", "config", "--broker", "3", *soon).code == 1
    for answer in (described, disks, configs):
        assert "warning: broker 3 does not answer: " in answer.err
    assert described.code == EXIT_CHECK_FAILED
    rows = {row["broker"]: row for row in described.json["brokers"]}
    assert [rows[n]["stored_bytes"] is None for n in (1, 2, 3)] == [False, False, True]
    assert [(rows[n]["trouble"] or "").split(":")[0] for n in (1, 2, 3)] == [
        "",
        "",
        "it does not answer",
    ]
    assert {row["broker"] for row in disks.json["rows"]} == {1, 2}
    assert {row["broker"] for row in configs.json["rows"]} == {1, 2}


def test_disks_and_settings_of_brokers(kohort: Run, cluster: Cluster) -> None:
    rows = kohort("cluster", "log-dirs", "--broker", "1", "-o", "json").json["rows"]
    assert [row["broker"] for row in rows] == [1]
    assert rows[0]["replicas"] >= 3
    assert rows[0]["error"] is None
    own = kohort("cluster", "config", "--broker", "1", "-o", "json").json["rows"]
    every = kohort("cluster", "config", "--broker", "1", "--all", "-o", "json").json["rows"]
    assert {row["broker"] for row in every} == {1}
    assert len(every) > len(own)
    assert "num.partitions" in {row["name"] for row in every}
    assert kohort("cluster", "config", "--broker", "9").code == 1
