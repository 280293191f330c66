"""`kohort transaction`: what is open, what hangs (KIP-664), and how it is ended by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kohort import Producer
from kohort.client.admin.admin import Admin
from kohort.client.admin.types import TransactionDescription, TransactionListing
from kohort.errors import KohortError
from kohort.testing import Cluster
from tests.cli.conftest import Run
from tests.patience import until


@pytest.fixture
def topic(kohort: Run, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z]", "-", request.node.name.lower())
    assert kohort("topic", "create", name).code == 0
    return name


@pytest.fixture
def begun(cluster: Cluster, topic: str) -> Iterator[Producer]:
    """A producer whose transaction is open in the topic, named as the topic."""
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"unread").result(30)
        yield producer


def test_one_that_is_open(kohort: Run, begun: Producer, topic: str) -> None:
    """It is listed with where it wrote; aborted by its id, its producer is fenced."""
    kohort("produce", topic, stdin=b"behind\n")
    rows = kohort("transaction", "list", "--state", "Ongoing", "-o", "json").json["rows"]
    (listed,) = [row for row in rows if row["transactional_id"] == topic]
    assert (listed["state"], listed["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert listed["open_s"] >= 0
    assert kohort("transaction", "list", "--longer-than", "1h", "-o", "csv").lines[1:] == []
    assert kohort("transaction", "describe", topic).lines[1].split()[0] == topic
    (row,) = kohort("transaction", "open", topic, "-o", "json").json["rows"]
    assert (row["start_offset"], row["state"], row["transactional_id"]) == (0, "Ongoing", topic)

    ran = kohort("transaction", "abort", topic)
    assert (ran.code, "nothing was changed" in ran.err) == (0, True)
    assert len(kohort("transaction", "open", topic).lines) == 2
    assert kohort("transaction", "abort", topic, "--execute").out.startswith(f"aborted {topic}")
    ran = kohort("transaction", "open", topic)
    assert (len(ran.lines), "no transaction is open" in ran.err) == (1, True)
    with pytest.raises(KohortError):
        begun.commit_transaction()
    ran = kohort("transaction", "abort", topic, "--execute")
    assert (ran.code, "is not open" in ran.err) == (1, True)


def test_one_that_hangs(
    kohort: Run, begun: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in its partition, by its producer; refused while a coordinator knows of it."""
    (row,) = kohort("transaction", "open", topic, "-o", "json").json["rows"]
    where = ("--partition", f"{topic}:0", "--producer-id", str(row["producer_id"]))
    ran = kohort("transaction", "abort", *where, "--execute")
    assert (ran.code, f"kohort transaction abort {topic}`" in ran.err) == (1, True)

    def forgotten(*_: object, **__: Any) -> list[TransactionListing]:
        return []

    monkeypatch.setattr(Admin, "list_transactions", forgotten)
    (row,) = kohort("transaction", "open", topic, "-o", "json").json["rows"]
    assert (row["state"], row["transactional_id"]) == ("hanging", None)
    assert "would abort" in kohort("transaction", "abort", *where).out
    assert kohort("transaction", "abort", *where, "--execute").code == 0
    assert len(kohort("transaction", "open", topic).lines) == 1


@pytest.mark.parametrize("another", [False, True])
def test_one_that_ends_while_it_is_looked_for(
    kohort: Run, begun: Producer, topic: str, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    """Between its partition's answer and its coordinator's it ends: it does not hang.

    Nor does the next one of the same producer, begun and known before the second look.
    """
    listing, ended = Admin.list_transactions, False

    def list_transactions(admin: Admin, **wanted: Any) -> list[TransactionListing]:
        nonlocal ended
        if ended:
            return listing(admin, **wanted)
        ended = True
        begun.commit_transaction()
        until(  # its markers are written after the answer
            lambda: admin.describe_transactions([topic])[topic].state == "CompleteCommit",
            "the coordinator has ended it",
        )
        found = listing(admin, **wanted)
        if another:
            begun.begin_transaction()
            begun.send(topic, b"the next").result(30)
        return found

    monkeypatch.setattr(Admin, "list_transactions", list_transactions)
    ran = kohort("transaction", "open", topic, "-o", "json")
    states = [(row["state"], row["start_offset"]) for row in ran.json["rows"]]
    assert states == ([("Ongoing", 2)] if another else [])


def test_one_whose_coordinator_moves_while_it_is_asked(
    kohort: Run, begun: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither broker may list it then: it is asked for again before it is said to hang."""
    listing, asked = Admin.list_transactions, 0

    def list_transactions(admin: Admin, **wanted: Any) -> list[TransactionListing]:
        nonlocal asked
        asked += 1
        return [] if asked == 1 else listing(admin, **wanted)

    monkeypatch.setattr(Admin, "list_transactions", list_transactions)
    (row,) = kohort("transaction", "open", topic, "-o", "json").json["rows"]
    assert (row["state"], row["transactional_id"], asked) == ("Ongoing", topic, 2)


def test_one_that_commits_already_is_not_aborted(
    kohort: Run, begun: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is decided: a new producer of its id would only wait for its markers."""
    describing = Admin.describe_transactions

    def committing(admin: Admin, ids: Any, **more: Any) -> dict[str, TransactionDescription]:
        found = describing(admin, ids, **more)
        return {name: replace(one, state="PrepareCommit") for name, one in found.items()}

    monkeypatch.setattr(Admin, "describe_transactions", committing)
    for more in ((), ("--execute",)):
        ran = kohort("transaction", "abort", topic, *more)
        assert (ran.code, ran.out) == (1, "")
        assert f"transaction {topic!r} is being committed (PrepareCommit)" in ran.err
    begun.commit_transaction()


def test_what_there_is_not(kohort: Run, topic: str) -> None:
    """No such id, partition or producer: told, and nothing is done."""
    for args, message in (
        (("describe", "nobody"), "there is no transactional id 'nobody'"),
        (("abort", "nobody"), "there is no transactional id 'nobody'"),
        (("abort",), "name a transactional id, or --partition and --producer-id"),
        (("abort", "x", "--producer-id", "1"), "name a transactional id"),
        (("abort", "--partition", topic, "--producer-id", "1"), "is not TOPIC:P"),
        (("abort", "--partition", f"{topic}:7", "--producer-id", "1"), "has no partition 7"),
        (("abort", "--partition", f"{topic}:0", "--producer-id", "1"), "no transaction open"),
    ):
        ran = kohort("transaction", *args)
        assert (ran.code in (1, 2), message in ran.err) == (True, True), ran.err
