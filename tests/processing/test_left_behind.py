"""An exactly-once program whose group has gone on without it (E2, "zombie").

It hangs in the midst of a transaction, is expelled, and another one does its work. What it does
when it comes back must not be seen, wherever it stood: reading on, giving its partitions up in a
rebalance, or ending.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kohort import Admin, Producer
from kohort.processing.app import App
from tests.expelling import expel
from tests.known import known
from tests.processing.conftest import PATIENCE_S
from tests.processing.test_exact import wait_for
from tests.reading import read_committed

RECORDS = 60


class Held:
    """The first call of `send_offsets_to_transaction` that has all of the work behind it waits; the
    number of calls since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.release, self.calls = threading.Event(), threading.Event(), 0
        self.done: list[int] = []
        real = Producer.send_offsets_to_transaction

        def watched(*args, **more) -> None:
            if len(self.done) == RECORDS and not self.reached.is_set():
                self.reached.set()
                assert self.release.wait(2 * PATIENCE_S)  # several others are waited for
            self.calls += self.release.is_set()
            real(*args, **more)

        monkeypatch.setattr(Producer, "send_offsets_to_transaction", watched)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.release.set()


def copying(app: App, topic: str, out: str) -> list[int]:
    """Make it copy the topic; the list of what its handler was given."""
    handled: list[int] = []

    @app.handler(topic)
    def handle(record) -> None:
        handled.append(int(record.value))
        record.send(out, record.value)

    return handled


@pytest.mark.rows(2)
@pytest.mark.parametrize("then", ["ends", "ends_last", "gives_up", "goes_on"])
@pytest.mark.parametrize("instance", [None, "one"], ids=["dynamic", "static"])
def test_what_a_zombie_has_done_is_never_seen(
    cluster, topic, produce, app, start, held, instance, then
) -> None:
    """It stops soon, too: a member that its group does not know cannot put anything through."""
    out = f"{topic}-out"
    cluster.create_topic(out, partitions=3)
    produce(RECORDS)
    client = {"heartbeat_interval_ms": 50, "retry_backoff_ms": 20}
    made = app(
        exactly_once="kafka", crash_guard=False, client=client | {"group_instance_id": instance}
    )
    other = app(exactly_once="kafka", crash_guard=False)
    held.done = copying(made, topic, out)
    copying(other, topic, out)
    zombie, taking_over = start(made), None
    assert held.reached.wait(PATIENCE_S)
    consumer = made._runner.consumer
    if then.startswith("ends"):
        made.stop()
    elif then == "gives_up":  # another one joins, and it is asked to give up first
        taking_over = start(other)
        wait_for(lambda: consumer.rebalance_pending, "a rebalance")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:

        def committed() -> int:
            return sum(at.offset for at in admin.list_group_offsets(made.group).values())

        session, member = consumer._core.session, consumer._core.session.identity
        expel(admin, consumer.group_metadata())
        wait_for(lambda: session.identity != member, "the word that it is expelled")
        if then != "gives_up":
            taking_over = start(other)
        if then == "goes_on":  # it joins again, and waits for its transaction
            held.release.set()
        wait_for(lambda: committed() == RECORDS, "the other's work")
    if then == "ends_last":  # the group is empty then, and would take any commit of nobody's
        known(taking_over).stop()
    held.release.set()
    if then.startswith("ends"):
        assert zombie.ended() is None
        assert held.calls < 5
    zombie.stop()
    known(taking_over).stop()
    assert zombie.error is None
    seen = sorted(int(known(r.value)) for r in read_committed(cluster.bootstrap, out))
    assert seen == list(range(RECORDS))
