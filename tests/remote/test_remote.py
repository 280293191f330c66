"""An app is seen and commanded from elsewhere (issue 18, item 5), by the command line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer, Temporary, TopicPartition
from kohort.client.common.completion import wall_ms
from kohort.client.consumer.health import ConsumerHealth, PartitionHealth
from kohort.errors import ConfigError, UsageError
from kohort.processing.app import App
from kohort.remote import Action, RemoteControl, agent, publish
from kohort.remote.agent import ensure_topics
from kohort.remote.consumers import look_at
from kohort.remote.messages import ProcessStatus, encode_status
from tests.cli.conftest import Ran, Run
from tests.cli.conftest import bare as bare
from tests.cli.conftest import kohort as kohort
from tests.clusters import Cluster
from tests.patience import PATIENCE_S, until
from tests.processing.conftest import Running, Until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


class Billing:
    """An app that fails each record once, and counts what it has handled."""

    def __init__(self, cluster: Cluster, topic: str, **more: Any) -> None:
        self.cluster, self.topic = cluster, topic
        self.failed, self.done = Until(1), Until(1)
        self.handled = list[bytes]()
        self.app = App(
            f"{topic}-app",
            bootstrap_servers=cluster.bootstrap,
            retries="1h",
            remote="fleet",
            **more,
        )  # type: ignore[arg-type]
        seen = set[bytes]()

        @self.app.handler(topic)
        def handle(record) -> None:
            if record.value.startswith(b"once") and record.value not in seen:
                seen.add(record.value)
                self.failed.count()
                raise Temporary("down")
            self.handled.append(record.value)
            self.done.count()

        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([topic])
        self.running = Running(self.app)

    def send(self, *values: bytes) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for value in values:
                producer.send(self.topic, value)


def eventually(run: Run, *args: str, until) -> Ran:
    """The command, again until its answer is as it should be."""
    pause, left = threading.Event(), int(PATIENCE_S / 0.1)
    while True:
        ran = run(*args)
        if until(ran) or not left:
            assert until(ran), ran
            return ran
        left -= 1
        pause.wait(0.1)


def has_state(group: str, state: str):
    def check(ran: Ran) -> bool:
        if ran.code:
            return False
        return [p["state"] for p in ran.json["processes"] if p["group"] == group] == [state]

    return check


def test_an_app_is_paused_resumed_and_drained_from_elsewhere(kohort: Run, cluster: Cluster) -> None:
    """Paused nothing is begun and the membership stays; drained it commits, leaves and ends."""
    billing = Billing(cluster, "bills")
    status = ("app", "status", "bills-app", "--remote", "fleet", "-o", "json")
    running = eventually(kohort, *status, until=has_state("bills-app", "running"))
    found = running.json["processes"][0]
    assert found["kind"] == "app"
    assert found["actions"] == [
        "status",
        "pause",
        "resume",
        "drain",
        "retry-now",
        "retry-record",
        "dead-letter-record",
    ]
    assert found["figures"]["partitions"] is not None
    paused = kohort("app", "pause", "bills-app", "--remote", "fleet", "-o", "json")
    assert paused.code == 0
    assert [row["ok"] for row in paused.json["rows"]] == [True]
    assert has_state("bills-app", "paused")(kohort(*status))
    assert any("paused by hand" in trouble for trouble in billing.app.troubles())
    billing.send(b"a")
    assert kohort("app", "status", "--remote", "fleet").lines[1].split()[3] == "paused"
    assert billing.handled == []
    assert kohort("app", "resume", "bills-app", "--remote", "fleet").code == 0
    billing.done.wait()
    plan = kohort("app", "drain", "bills-app", "--remote", "fleet")
    assert plan.out == f"would drain {found['process']}\n"
    assert "nothing was changed" in plan.err
    assert kohort("app", "drain", "bills-app", "--remote", "fleet", "--execute").code == 0
    assert billing.running.ended() is None
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.describe_groups(["bills-app"])["bills-app"].members == ()
        assert admin.list_group_offsets("bills-app")[TopicPartition("bills", 0)].offset == 1
    gone = eventually(kohort, *status, until=lambda ran: ran.code == 3)
    assert gone.json["processes"] == []


def test_what_waits_is_retried_at_once_on_command(kohort: Run, cluster: Cluster) -> None:
    """A delay of an hour, and the dependency is back: nobody waits for it. Each record once."""
    orders = Billing(cluster, "orders")
    orders.failed, orders.done = Until(20), Until(20)
    try:
        orders.send(*(b"once-%d" % n for n in range(20)))
        orders.failed.wait()
        waits = ("app", "status", "orders-app", "--remote", "fleet", "-o", "json")
        eventually(
            kohort,
            *waits,
            until=lambda ran: (
                ran.code == 0
                and bool(ran.json["processes"])
                and ran.json["processes"][0]["figures"].get("retries_waiting") == 20
            ),
        )
        ran = kohort("app", "retry-now", "orders-app", "--remote", "fleet", "-o", "csv")
        assert ran.code == 0
        assert ran.lines[1].endswith("trying 20 waiting records now")
        orders.done.wait()
        assert sorted(orders.handled) == sorted(b"once-%d" % n for n in range(20))
    finally:
        orders.running.stop()


def test_one_record_is_retried_and_one_is_dead_lettered_by_hand(
    kohort: Run, cluster: Cluster
) -> None:
    """Before its turn, once, and noted beside the commit (R2): also after the app has ended."""
    parts = Billing(cluster, "parts", threads=1)
    parts.failed = Until(5)
    retry_topic = parts.app.topics["parts"].retry_topic(3_600_000)
    try:
        parts.send(*(b"once-%d" % n for n in range(5)))
        parts.failed.wait()
        until(lambda: parts.app.counts().get("to_retry") == 5)
        command = ("parts-app", f"{retry_topic}/0/3", "--remote", "fleet", "-o", "json")
        ran = eventually(kohort, "app", "retry-record", *command, until=lambda ran: not ran.code)
        assert "trying" in ran.json["rows"][0]["answer"]
        parts.done.wait()
        assert parts.handled == [b"once-3"]
        again = kohort("app", "retry-record", *command)
        assert again.code == 3
        assert "is being handled, was handled" in again.json["rows"][0]["answer"]
        dead = ("parts-app", f"{retry_topic}/0/1", "--remote", "fleet")
        assert kohort("app", "dead-letter-record", *dead).code == 0
        until(lambda: parts.app.counts().get("to_dead_letter") == 1)
        for at, answer in (("0/99", "no record at offset 99"), ("x", "no TOPIC/PARTITION/OFFSET")):
            wrong = kohort(
                "app", "retry-record", "parts-app", f"{retry_topic}/{at}", "--remote", "fleet"
            )
            assert (wrong.code, answer in wrong.out) == (3, True), wrong
    finally:
        parts.running.stop()
    letters = kohort("dlq", "list", "--topic", "parts", "--group", "parts-app", "-o", "json")
    assert "dead_lettered_by_hand" in letters.out
    waiting = kohort("retry", "list", "--topic", "parts", "--group", "parts-app", "-o", "json")
    assert sorted(row["offset"] for row in waiting.json["rows"]) == [0, 2, 4]
    parts.running = Running(again_of(parts))
    try:
        until(lambda: sorted(parts.handled[1:]) == [b"once-0", b"once-2", b"once-4"])
    finally:
        parts.running.stop()
    assert parts.handled[0] == b"once-3"


def again_of(billing: Billing) -> App:
    """The same program, started again, whose retries wait for a millisecond more than nothing."""
    app = App(
        billing.app.group, bootstrap_servers=billing.cluster.bootstrap, retries="1h", clock_skew=0
    )
    app.handler(billing.topic)(lambda record: billing.handled.append(record.value))
    threading.Timer(0.5, app.retry_now).start()
    return app


def test_a_command_that_nobody_would_obey_is_refused_before_it_is_sent(
    kohort: Run, cluster: Cluster
) -> None:
    parcels = Billing(cluster, "parcels")
    try:
        with RemoteControl("fleet", {"bootstrap_servers": cluster.bootstrap}) as control:
            while not [p for p in control.processes() if p.status.group == "parcels-app"]:
                pass
            (answer,) = control.send("parcels-app", Action.STATUS)
            assert answer.result is not None
            assert "partitions are moving" in answer.result.text
        for args, message in (
            (("pause", "parcel-app"), "Did you mean 'parcels-app'?"),
            (("pause", "parcels-app", "--process", "p"), "has no process 'p'; it has parcels-app@"),
        ):
            ran = kohort("app", *args, "--remote", "fleet")
            assert ran.code == 1
            assert message in ran.err
    finally:
        parcels.running.stop()
    nowhere = kohort("app", "status", "--remote", "nowhere")
    assert nowhere.code == 1
    assert "there is no topic nowhere.status" in nowhere.err
    assert kohort("app", "status", "--remote", "a b").code == 2


def test_a_cluster_that_refuses_harms_nothing_and_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process works on; the refusal is one warning, however often it is repeated."""
    monkeypatch.setattr(agent, "PAUSE_S", 0.01)
    client = {"bootstrap_servers": cluster.bootstrap}
    here = agent.Agent("closed", client, "app", "g", lambda: agent.Look("running"), {})
    fault = cluster.faults.fail("CreateTopics", "TOPIC_AUTHORIZATION_FAILED", times=5)
    here.start()
    try:
        pause = threading.Event()
        while True:
            with contextlib.suppress(UsageError), RemoteControl("closed", client) as control:
                if control.processes():
                    break
            pause.wait(0.05)
    finally:
        here.stop()
    assert fault.hits == 5
    texts = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    warnings = [text for text in texts if "watched" in text]
    assert len(warnings) == 1


def test_a_plain_consumer_is_seen_and_can_only_be_looked_at(kohort: Run, cluster: Cluster) -> None:
    """Only the program that polls can pause or end it (issue 18, item 5)."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics(["watched"])
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="watchers", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["watched"])
        while not consumer.assignment():
            consumer.poll(0.1)
        with publish(consumer, "fleet") as agent:
            status = ("app", "status", "watchers", "--remote", "fleet", "-o", "json")
            ran = eventually(kohort, *status, until=has_state("watchers", "running"))
            (found,) = ran.json["processes"]
            assert (found["kind"], found["process"]) == ("consumer", agent.process)
            assert found["actions"] == ["status"]
            assert found["figures"]["partitions"] == 1
            assert found["partitions"][0]["topic"] == "watched"
            assert kohort("app", "pause", "watchers", "--remote", "fleet").code
        gone = eventually(kohort, *status, until=lambda ran: ran.code == 3)
        assert gone.json["processes"] == []


def test_a_consumer_without_a_group_has_no_name_to_be_listed_under(cluster: Cluster) -> None:
    with (
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
        pytest.raises(ConfigError, match="group_id"),
        publish(consumer),
    ):
        pass


def test_a_paused_consumer_and_one_that_polls_too_seldom() -> None:
    part = PartitionHealth(
        TopicPartition("t", 0), "reads", 1, 1, 5, 3, None, 0, paused=True, why="paused"
    )
    free = replace(part, partition=TopicPartition("t", 1), paused=False, why="", lag=None)
    health = ConsumerHealth("stable", 1, "joined", 1, 31_000, 0, 1 << 20, (free, part), ("alone",))
    look = look_at(health)
    assert (look.state, look.figures["lag"], look.figures["moving"]) == ("running", None, 1)
    assert list(look.troubles) == ["poll() was called last 31 s ago", "alone"]
    assert [row["partition"] for row in look.partitions] == [0, 1], "what does not move is first"
    assert look_at(replace(health, partitions=(part,))).state == "paused"


def test_a_process_whose_clock_is_behind_is_there(cluster: Cluster) -> None:
    """Its age is by the broker's clock; by its own it counted as gone, and took no command."""
    client: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap}
    ensure_topics(client, "behind.status", "behind.commands")
    now_ms = wall_ms()
    status = ProcessStatus(
        "g@h/1", "app", "g", "h", 1, "v", now_ms, now_ms, 5_000, "running", (Action.STATUS,)
    )
    with Producer(**client) as producer:
        sent = producer.send(
            "behind.status", encode_status(status), b"g@h/1", timestamp_ms=now_ms - 40_000
        )
        sent.result(PATIENCE_S)
    with RemoteControl("behind", client) as control:
        (process,) = control.processes()
    assert process.silent_ms < 40_000
