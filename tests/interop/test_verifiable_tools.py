"""Our verifiable programs and Java's print the same events (issue 4), in one group too."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from kohort.testing import History
from tests.clusters import Embedded as Cluster
from tests.interop.java import java, needs_java
from tests.testing.verifiable_run import ENV, KOHORT, Run

pytestmark = [needs_java, pytest.mark.slow, pytest.mark.java]
WAIT_S = 180
"""Java begins slowly where others want the processors, too."""
TOOLS = {
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
}


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_min_session_timeout_ms=500) as running:
        yield running


def lines(make: str, tool: str, *options: str) -> list[dict[str, Any]]:
    """What a program prints."""
    command = [*KOHORT, tool] if make == "kohort" else java(TOOLS[tool])
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=ENV if make == "kohort" else None,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def shapes(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each event its fields with their types, in order; of a failed commit by itself."""
    found: dict[str, Any] = {}
    for event in events:
        failed = " failed" if event.get("success") is False else ""
        found.setdefault(event["name"] + failed, shape(event))
    found.pop("shutdown_requested", None)  # Java's tells it at every end of its process
    return found


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.mark.parametrize("failing", [False, True])
def test_the_same_events_with_the_same_fields(cluster: Cluster, failing: bool) -> None:
    events: dict[str, list[dict[str, Any]]] = {}
    for make in ("java", "kohort"):
        topic = f"{make}-{failing}"
        cluster.create_topic(topic)
        if failing:
            cluster.faults.fail("Produce", "INVALID_RECORD", topic=topic)
            cluster.faults.fail("OffsetCommit", "UNKNOWN_MEMBER_ID", group=topic)
        where = ["--bootstrap-server", cluster.bootstrap, "--topic", topic]
        produced = lines(
            make,
            "verifiable-producer",
            *where,
            "--max-messages",
            "10",
            "--repeating-keys",
            "2",
            "--throughput",
            "10",
        )
        stored = produced[-1]["acked"]
        if failing:  # all were one batch, where the start was slow
            more = lines(make, "verifiable-producer", *where, "--max-messages", "5")
            produced, stored = produced + more, stored + more[-1]["acked"]
        consumed = lines(
            make,
            "verifiable-consumer",
            *where,
            "--verbose",
            "--group-id",
            topic,
            "--session-timeout",
            "5000",
            "--max-messages",
            str(stored + failing),
        )
        events[make] = [shapes(produced), shapes(consumed)]
    ours, theirs = events["kohort"], events["java"]
    for mine, other in zip(ours, theirs, strict=True):
        mine.get("partitions_revoked", {}).pop("lost", None)
        assert {n: (list(s), s) for n, s in mine.items()} == {
            n: (list(s), s) for n, s in other.items()
        }


def test_one_group_of_both_has_a_good_history(cluster: Cluster) -> None:
    cluster.create_topic("both", partitions=4)
    history = History()
    with Run(cluster, "both", "both", history) as run:
        run.producer("p-java", "--throughput", "200", command=java(TOOLS["verifiable-producer"]))
        run.producer("p-kohort", "--throughput", "200")
        run.consumer("kohort", "--session-timeout", "5000")
        history.wait("committed", "kohort", count=3, timeout_s=WAIT_S)
        java_tool = java(TOOLS["verifiable-consumer"])
        run.consumer("java", "--session-timeout", "5000", command=java_tool)
        history.wait("committed", "java", count=3, timeout_s=WAIT_S)
        run.kill("kohort")
        run.consumer("kohort-2", "--session-timeout", "5000")
        history.wait("committed", "kohort-2", count=3, timeout_s=WAIT_S)
        run.stop("p-java", "p-kohort")
        history.wait_until_read(timeout_s=WAIT_S)
        run.stop("java", "kohort-2")
    history.verify(complete=True)
