"""`kohort group timeline`: exact from an embedded broker, inferred from `__consumer_offsets`."""

from __future__ import annotations

import pytest

from kohort import Consumer
from kohort.client.admin.admin import Admin
from kohort.testing import Cluster
from tests.cli.conftest import Run
from tests.cli.group.test_group import member


@pytest.fixture
def churned(kohort: Run, cluster: Cluster) -> str:
    """A group into which a second member came, and went again."""
    kohort("topic", "create", "moves", "-p", "4", "--if-not-exists")
    with member(cluster, "churned", "moves") as first:
        with Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id="churned",
            client_id="second",
            auto_offset_reset="earliest",
        ) as second:
            second.subscribe(["moves"])
            while not (second.assignment() and len(first.assignment()) == 2):
                second.poll(0.05)
                first.poll(0.05)
        while len(first.assignment()) < 4:
            first.poll(0.05)
    return "churned"


def test_what_happened_in_words(kohort: Run, cluster: Cluster, churned: str) -> None:
    ran = kohort("group", "timeline", churned)
    assert ran.code == 0
    assert "generation 1  stable" in ran.lines[0]
    assert "second (/127.0.0.1) joined" in ran.out
    assert "second (/127.0.0.1) left" in ran.out
    assert "waited for" in ran.out
    assert "2 (the group has 4 partitions): 2 their owner is gone" in ran.out
    assert "moves-" not in ran.out
    assert "moves-0" in kohort("group", "timeline", churned, "--moves").out
    assert not ran.err
    kohort("topic", "create", "single")
    with member(cluster, "alone", "single"):
        assert "1 (the group has 1 partition): 1 nobody" in kohort("group", "timeline", "alone").out


def test_forms_for_programs(kohort: Run, churned: str) -> None:
    rebalances = kohort("group", "timeline", churned, "-o", "json").json["rebalances"]
    assert all(one["source"] == "coordinator" and not one["inferred"] for one in rebalances)
    joined = next(one for one in rebalances if one["generation"] == 2)
    assert [c["trigger"] for c in joined["causes"]] == ["joined"]
    assert (joined["moved"], joined["needed"], joined["not_needed"]) == (2, 2, 0)
    assert joined["settling_ms"] >= 0
    rows = kohort("group", "timeline", churned, "-o", "csv").lines
    assert rows[0].startswith("group,protocol,generation,outcome,began,")
    assert len(rows) == len(rebalances) + 1
    assert len(kohort("group", "timeline", churned, "-o", "jsonl", "--last", "2").lines) == 2


def test_the_same_from_the_log_alone(
    kohort: Run, churned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator without a memory, as Apache Kafka's: exact facts agree, causes are marked."""
    exact = kohort("group", "timeline", churned, "-o", "json").json["rebalances"]
    monkeypatch.setattr(Admin, "group_timeline", lambda *_, **__: None)
    read = kohort("group", "timeline", churned, "-o", "json").json["rebalances"]
    assert {one["source"] for one in read} == {"log"}
    for name in ("generation", "members", "came", "went", "moves", "partitions", "outcome"):
        assert [one[name] for one in read] == [one[name] for one in exact]
    text = kohort("group", "timeline", churned)
    assert "~ cause    second (/127.0.0.1) is gone: it left or was not heard of" in text.out
    assert "inferred" in text.err


def test_what_is_older_than_the_coordinators_memory(kohort: Run) -> None:
    """The next coordinator has no memory of its own: the log has."""
    with Cluster(nodes=3) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics(["t"])
        with member(cluster, "moved", "t"):
            pass
        cluster.move_coordinator("moved")
        with member(cluster, "moved", "t"):
            pass
        ran = kohort("group", "timeline", "moved", "-b", cluster.bootstrap, "-o", "json")
    sources = [one["source"] for one in ran.json["rebalances"]]
    assert sources[0] == "log"
    assert sources[-1] == "coordinator"
    generations = [one["generation"] for one in ran.json["rebalances"]]
    assert generations == sorted(set(generations))


def test_a_group_of_the_consumer_protocol(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "next", "-p", "3", "--if-not-exists")
    with Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id="newer",
        client_id="only",
        group_protocol="consumer",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["next"])
        while len(consumer.assignment()) < 3:
            consumer.poll(0.2)
    out = kohort("group", "timeline", "newer").out
    assert "epoch 1  stable" in out
    assert "phases   target" in out
    assert "only (/127.0.0.1) left" in out


def test_a_group_nobody_knows(kohort: Run) -> None:
    ran = kohort("group", "timeline", "nobody")
    assert ran.code != 0
    assert "no rebalance is known" in ran.err
