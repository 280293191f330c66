"""`kohort verifiable-consumer` and `verifiable-producer`, and histories of whole runs (issue 4)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kohort.testing import Cluster, History, Kind
from tests.patience import PATIENCE_S, until
from tests.testing.verifiable_run import ENV, KOHORT, Run

# What Apache Kafka 4.3's tools print; tests/interop/test_verifiable_tools.py compares with them.
FIELDS = {
    "startup_complete": ["timestamp", "name"],
    "partitions_assigned": ["timestamp", "name", "partitions"],
    "partitions_revoked": ["timestamp", "name", "partitions"],
    "record_data": ["timestamp", "name", "key", "value", "topic", "partition", "offset"],
    "records_consumed": ["timestamp", "name", "count", "partitions"],
    "offsets_committed": ["timestamp", "name", "offsets", "success"],
    "shutdown_complete": ["timestamp", "name"],
    "shutdown_requested": ["timestamp", "name"],
    "producer_send_success": [
        "timestamp",
        "name",
        "key",
        "value",
        "offset",
        "topic",
        "partition",
    ],
    "producer_send_error": [
        "timestamp",
        "name",
        "topic",
        "key",
        "value",
        "exception",
        "message",
    ],
    "tool_data": ["timestamp", "name", "sent", "acked", "target_throughput", "avg_throughput"],
}


KILLED_MS = 3_000
"""How soon a killed member is missed; who lives has to be heard of within it."""


@pytest.fixture(scope="module")
def cluster():
    sessions: dict[str, Any] = {
        "group_consumer_session_timeout_ms": KILLED_MS,
        "group_consumer_min_session_timeout_ms": 500,
        "group_consumer_heartbeat_interval_ms": 300,
        "group_consumer_min_heartbeat_interval_ms": 100,
    }
    with Cluster(nodes=3, group_min_session_timeout_ms=500, **sessions) as running:
        yield running


def ran(
    cluster: Cluster,
    topic: str,
    tool: str,
    *options: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    with subprocess.Popen(
        [*KOHORT, tool, "--bootstrap-server", cluster.bootstrap, "--topic", topic, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    ) as process:
        try:
            meanwhile()
            out, error = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert not process.returncode, error
    return [json.loads(line) for line in out.splitlines()]


def test_events_have_kafkas_fields(cluster: Cluster, tmp_path: Path):
    """Every event, its fields in Java's order; also of a send and a commit that failed."""
    cluster.create_topic("fields")
    cluster.faults.fail("Produce", "INVALID_RECORD", topic="fields")
    config = tmp_path / "java.properties"
    # One record a batch: the refused one is not to take those behind it along.
    config.write_text("linger.ms=0\nbatch.size=1\nkey.serializer=org.example.Serializer\n")
    produced = ran(
        cluster,
        "fields",
        "verifiable-producer",
        "--max-messages",
        "6",
        "--repeating-keys",
        "2",
        "--value-prefix",
        "7",
        "--throughput",
        "20",
        "--command-config",
        str(config),
        "--message-create-time",
        "1000",
    )
    stored = [e for e in produced if e["name"] == "producer_send_success"]
    assert stored
    fault = cluster.faults.fail("OffsetCommit", "UNKNOWN_MEMBER_ID", group="fields")

    def expire() -> None:
        """Who was told that it is no member waits for the one it was."""
        joins = lambda: cluster.requests.of("JoinGroup", group="fields")  # noqa: E731
        until(lambda: fault.hits and any(j.answered_ms is None for j in joins()), "a second join")
        cluster.advance(61)

    consumed = ran(
        cluster,
        "fields",
        "verifiable-consumer",
        "--group-id",
        "fields",
        "--max-messages",
        str(len(stored) + 1),
        "--verbose",
        "--session-timeout",
        "60000",
        meanwhile=expire,
    )
    events = produced + consumed
    for event in events:
        wanted = FIELDS[event["name"]]
        if event["name"] == "offsets_committed" and not event["success"]:
            wanted = [*wanted[:-1], "error", "success"]
        if event.get("lost"):
            wanted = [*wanted, "lost"]
        assert list(event) == wanted
    assert {e["name"] for e in events} == set(FIELDS) - {"shutdown_requested"}
    assert [e["offset"] for e in stored] == list(range(len(stored)))
    for event in produced:
        if "value" in event:
            number = int(event["value"].removeprefix("7."))
            assert (event["key"], event["value"]) == (str(number % 2), f"7.{number}")
    assert (produced[-1]["sent"], produced[-1]["acked"]) == (6, len(stored))
    # The first commit failed and the member was expelled: it read again what it had not committed.
    assert [e["success"] for e in consumed if e["name"] == "offsets_committed"] == [False, True]


def trouble_kill(run: Run) -> None:
    run.kill("c1")
    run.consumer("c4", *run.options)


def trouble_coordinator(run: Run) -> None:
    for _ in range(3):
        run.cluster.move_coordinator(run.group)
        run.history.wait("committed", count=_committed(run) + 2)
    coordinator = run.cluster.coordinator_of(run.group)
    run.cluster.kill_node(coordinator)
    run.history.wait("committed", count=_committed(run) + 2)
    run.cluster.restart_node(coordinator)


def trouble_cuts(run: Run) -> None:
    heartbeats = ("Heartbeat", "ConsumerGroupHeartbeat")
    for api in (*heartbeats, "OffsetCommit", "Fetch", "JoinGroup", "SyncGroup", "Produce"):
        run.cluster.faults.cut(api, handled=True, times=2)
        run.cluster.faults.cut(api, times=2)
    with run.cluster.faults.cut("OffsetCommit", times=5) as cut:
        cut.wait(2)
    run.consumer("c4", *run.options)
    run.history.wait("assigned", "c4")


def _committed(run: Run) -> int:
    return sum(event.act == "committed" for event in run.history.events)


def every_trouble() -> list[Any]:
    """Each with each protocol; `make test` has each trouble and each protocol once."""
    troubles = (trouble_kill, trouble_coordinator, trouble_cuts)
    return [
        pytest.param(trouble, protocol, marks=[] if n == m else [pytest.mark.extended])
        for n, trouble in enumerate(troubles)
        for m, protocol in enumerate(("classic", "cooperative", "consumer"))
    ]


@pytest.mark.rows(1)
@pytest.mark.slow
@pytest.mark.parametrize(("trouble", "protocol"), every_trouble())
def test_runs_with_trouble_have_a_good_history(
    cluster: Cluster, trouble: Callable[[Run], None], protocol: str
):
    """Killed members, moved and killed coordinators, cut connections: at least once holds."""
    name = f"{trouble.__name__}-{protocol}"
    cluster.create_topic(name, partitions=4)
    session = ["--session-timeout", str(30_000 if trouble is trouble_coordinator else KILLED_MS)]
    if protocol == "consumer":
        session = ["--group-protocol", "consumer"]
    if protocol == "cooperative":
        session += ["--assignment-strategy", "CooperativeStickyAssignor"]
    history = History()
    try:
        with Run(cluster, name, name, history, session) as run:
            run.producer("p", "--throughput", "400")
            for member in ("c1", "c2", "c3"):
                run.consumer(member, *run.options)
            for member in ("c1", "c2", "c3"):
                history.wait("committed", member, count=2)
            trouble(run)
            history.wait("committed", count=_committed(run) + 10)
            run.stop("p")
            history.wait_until_read()
            run.stop(*[n for n in run.processes if n != "p"])
    finally:
        cluster.faults.clear()
    history.verify(complete=True)
    assert len(history.events) > 50
    mutants_are_found(history)


def mutants_are_found(history: History) -> None:
    """The same history with one thing in it changed is refused, for the right reason."""
    acts = history.events
    sent = next(a for a in acts if a.act == "sent")
    tp = sent.topic, sent.partition
    committed = [a for a in acts if a.act == "committed"]
    last = committed[-1]
    place = last.topic, last.partition

    def planted(**changes: Any) -> set[Kind]:
        copy = History()
        for act in acts:
            copy._add(
                act.member,
                act.act,
                [(act.topic, act.partition)],
                act.first,
                act.last,
                act.value,
                act.time_ms,
            )
        for method, arguments in changes.items():
            getattr(copy, method)(*arguments, time_ms=acts[-1].time_ms + 1)
        return {violation.kind for violation in copy.check(complete=True).violations}

    assert planted() == set()
    beyond = max(a.last for a in acts if (a.topic, a.partition) == tp) + 1
    assert planted(sent=(*tp, beyond)) == {Kind.LOST}
    assert Kind.TWO_OWNERS in planted(read=(last.member, *place, last.first - 1))
    assert Kind.DUPLICATE in planted(
        assigned=(last.member, [place]), read=(last.member, *place, last.first - 1)
    )
    assert Kind.COMMIT_WENT_BACK in planted(committed=(last.member, {place: last.first - 1}))
