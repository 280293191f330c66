"""Consumers hear of a rebalance at once: their waiting fetch ends, and they heartbeat (issue 3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Consumer
from kohort.broker.base.request import HintCursor
from kohort.broker.state.group_hints import MAX_REMEMBERED, HeartbeatHints
from tests.clusters import Embedded as Cluster
from tests.patience import PATIENCE_S

SELDOM_MS = 1_000 * 5 * int(PATIENCE_S)
ME, OTHER = ("me", "/h"), ("other", "/h")


class Fetch:
    """A fetch that waits, until it is cut short."""

    def __init__(
        self,
        hints: HeartbeatHints,
        client: tuple[str, str] = ME,
        hint_cursor: HintCursor | None = None,
    ) -> None:
        self.hints, self.client, self.cut = hints, client, 0
        self.hint_cursor = hint_cursor or HintCursor()
        self.waits = hints.wait(client, self.hint_cursor, self)

    def cut_short(self) -> None:
        self.cut += 1
        self.hints.stop(self.client, self)

    def again(self) -> Fetch:
        """The next fetch on the same connection."""
        return Fetch(self.hints, self.client, self.hint_cursor)


def test_news_end_every_fetch_of_a_client_and_no_other() -> None:
    hints = HeartbeatHints()
    mine, second, other = Fetch(hints), Fetch(hints), Fetch(hints, OTHER)
    hints.notify([ME, ME])
    assert (mine.cut, second.cut, other.cut) == (1, 1, 0)
    assert mine.again().waits
    assert other.again().waits


def test_a_connection_that_comes_after_the_news_has_not_heard_it() -> None:
    """A member joins, its group rebalances, and only then it fetches for the first time."""
    hints = HeartbeatHints()
    hints.notify([ME])
    first = Fetch(hints)
    assert not first.waits
    assert first.again().waits
    assert Fetch(hints, OTHER).waits


def test_each_connection_hears_once_also_if_it_is_busy() -> None:
    """Several consumers may have one client id: one that waits must not hear for all."""
    hints = HeartbeatHints()
    busy, waiting = Fetch(hints), Fetch(hints)
    hints.stop(ME, busy)
    hints.notify([ME])
    assert (waiting.cut, busy.cut) == (1, 0)
    late = busy.again()
    assert not late.waits
    assert late.again().waits


def test_what_is_remembered_is_bounded() -> None:
    """Limits on everything that grows: whoever never fetches must not cost memory."""
    hints = HeartbeatHints()
    hints.notify((str(n), "/h") for n in range(MAX_REMEMBERED + 10))
    assert len(hints._latest) == MAX_REMEMBERED


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Heartbeats so seldom that no machine is so slow that a change would wait for one."""
    seldom = {
        "group_max_session_timeout_ms": 12 * SELDOM_MS,
        "group_consumer_heartbeat_interval_ms": SELDOM_MS,
        "group_consumer_max_heartbeat_interval_ms": SELDOM_MS,
        "group_consumer_session_timeout_ms": 3 * SELDOM_MS,
        "group_consumer_max_session_timeout_ms": 3 * SELDOM_MS,
    }
    with Cluster(group_initial_rebalance_delay_ms=0, **seldom) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_change_is_settled_long_before_the_next_heartbeat(
    cluster: Cluster, protocol: str
) -> None:
    """Issue 3: half a second with default settings; here at all before the next heartbeat."""
    cluster.create_topic(protocol, partitions=4)

    settings: dict[str, Any] = {"group_protocol": protocol}
    if protocol == "classic":
        settings |= {"heartbeat_interval_ms": SELDOM_MS, "session_timeout_ms": 3 * SELDOM_MS}

    def member() -> Consumer:
        made = Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=protocol,
            **settings,
        )
        made.subscribe([protocol])
        return made

    def settled(*members: Consumer) -> None:
        began = time.monotonic()
        while {len(m.assignment()) for m in members} != {4 // len(members)}:
            assert time.monotonic() - began < PATIENCE_S
            for m in members:
                m.poll(0.005)

    with member() as first:
        settled(first)
        with member() as second:
            settled(first, second)
        settled(first)
