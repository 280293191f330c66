"""`kohort doctor --cluster` (spec 8.1): reachable, which release, clocks, rights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort.cli.doctor.cluster import clock_finding, release, replicas_finding
from kohort.client.admin.types import BrokerFeatures
from kohort.observe.cluster import ClusterHealth
from tests.cli.conftest import Run
from tests.clusters import Cluster


def test_a_healthy_cluster_passes_every_check(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "orders", "-p", "2")
    kohort("consume", "orders", "--group", "billing", "--from-beginning", "--until-end")
    ran = kohort("doctor", "--cluster", "-o", "json")
    assert ran.code == 0
    rows = ran.json["rows"]
    by_check = {row["check"]: row for row in rows}
    assert {row["state"] for row in rows} == {"ok"}
    assert by_check["broker 1"]["found"] == f"{cluster.bootstrap} accepts connections"
    assert "1 broker, controller 1" in by_check["cluster"]["found"]
    assert "on the cluster: alter" in by_check["rights"]["found"]
    assert by_check["visible"]["found"].startswith("1 topics, ")
    features = [row["found"] for row in rows if row["check"] == "feature"]
    assert "consumer groups of KIP-848 (ConsumerGroupHeartbeat): yes" in features


def test_a_cluster_out_of_reach_is_a_finding(bare: Run) -> None:
    ran = bare("doctor", "--cluster", "-b", "127.0.0.1:1", "-o", "json")
    assert ran.code == 3
    (row,) = ran.json["rows"]
    assert (row["check"], row["state"]) == ("cluster", "failed")
    assert "refused the connection" in row["found"]


def test_what_may_not_be_asked_is_a_warning_and_the_rest_is_shown(
    kohort: Run, cluster: Cluster
) -> None:
    with cluster.faults.fail("DescribeCluster", "CLUSTER_AUTHORIZATION_FAILED", times=10):
        ran = kohort("doctor", "--cluster", "-o", "json")
    states = {row["check"]: row["state"] for row in ran.json["rows"]}
    assert (ran.code, states["rights"], states["version"]) == (0, "warning", "ok")


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        ("CLUSTER_AUTHORIZATION_FAILED", "`kohort acl add` gives the right"),
        ("UNKNOWN_SERVER_ERROR", "`kohort cluster describe` shows what does not answer"),
    ],
)
def test_a_right_is_the_cure_of_a_missing_right_alone(
    kohort: Run, cluster: Cluster, error: str, cure: str
) -> None:
    with cluster.faults.fail("ListGroups", error, times=10):
        ran = kohort("doctor", "--cluster", "-o", "json")
    (groups,) = [row for row in ran.json["rows"] if row["check"] == "groups"]
    assert (ran.code, groups["state"], groups["cure"]) == (0, "warning", cure)


def test_partitions_without_a_leader_are_broken_and_those_short_of_replicas_are_not() -> None:
    nothing = ClusterHealth("c", 1, 1, 3, (), (), ())
    for health, state in (
        (nothing, "ok"),
        (replace(nothing, under_replicated=("orders-0",)), "warning"),
        (replace(nothing, offline=("orders-0",)), "failed"),
    ):
        assert replicas_finding(health).state == state


def test_a_commit_in_the_future_proves_that_our_clock_is_behind() -> None:
    assert clock_finding(-1, 100_000).state == "ok"
    assert clock_finding(100_900, 100_000).state == "ok"
    behind = clock_finding(163_000, 100_000)
    assert behind.state == "warning"
    assert "1m3s in the future of this machine" in behind.found


def test_the_release_is_the_last_one_whose_level_was_agreed() -> None:
    def named(level: int | None) -> str:
        features = {} if level is None else {"metadata.version": level}
        return release(BrokerFeatures({}, features))

    assert named(21) == "metadata.version 21 (Kafka 3.9 or later)"
    assert named(24) == "metadata.version 24 (Kafka 3.9 or later)"
    assert "no metadata.version (a broker of Kohort, Kafka before 3.3" in named(None)
