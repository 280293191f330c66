"""Tables that are rebuilt beside the live ones, and swapped in (spec 6.10)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.errors import ConfigError, ConnectionFailedError
from kohort.retry.cluster_port import ClusterPort
from kohort.spark import Insert, Pipeline, reconcile, replay
from kohort.spark.outputs.swapping import swapping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

INTO = {"results": "results_next", "standings": "standings_next"}


class League:
    """Matches into a table and sums by team; the second version counts away goals double."""

    def __init__(
        self, cluster: Cluster, topic: Callable[..., str], produce: Any, directory: Path
    ) -> None:
        self.servers, self._send = cluster.bootstrap, produce
        self.matches = topic(name="matches")
        self.directory = directory
        self.sent: list[tuple[str, int]] = []

    def version(self, number: int) -> Pipeline:
        p = Pipeline(
            f"league-{number}-{self.matches}",
            store=f"sqlite:///{self.directory / 'db.sqlite'}",
            retries="none",
            bootstrap_servers=self.servers,
            trigger="50ms",
            checkpoint=self.directory / f"checkpoint{number}",
        )

        @p.setup
        def tables(store: Any) -> None:
            store.run("CREATE TABLE IF NOT EXISTS results (team TEXT, goals BIGINT)")
            store.run("CREATE TABLE IF NOT EXISTS standings (team TEXT PRIMARY KEY, goals BIGINT)")

        p.source(self.matches, name="matches", schema="team STRING, goals INT")

        @p.table("results")
        def results(matches: Any) -> Any:
            return matches.selectExpr("team", f"goals * {number} AS goals")

        @p.table("standings", key="team")
        def standings(results: Any) -> Any:
            return "SELECT team, sum(goals) AS goals FROM results GROUP BY team"

        return p

    def send(self, *matches: tuple[str, int]) -> None:
        values = [json.dumps({"team": team, "goals": goals}).encode() for team, goals in matches]
        self._send(self.matches, *((n % 2, None, value) for n, value in enumerate(values)))
        self.sent += matches

    def check(self, factor: int) -> None:
        """The tables hold all that was sent, by one version's logic, once."""
        store = self.version(1).open_store()
        rows = store.query("SELECT team, goals FROM results")
        assert sorted(rows) == sorted((team, factor * goals) for team, goals in self.sent)
        sums: dict[str, int] = {}
        for team, goals in self.sent:
            sums[team] = sums.get(team, 0) + factor * goals
        assert dict(store.query("SELECT team, goals FROM standings")) == sums
        store.close()


@pytest.fixture
def league(cluster: Cluster, topic: Callable[..., str], produce: Any, tmp_path: Path) -> League:
    return League(cluster, topic, produce, tmp_path)


def test_a_replay_since_a_time_that_was_cut_off_keeps_the_time(
    league: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is begun before Kafka has said where, and the next call continues there."""
    league.send(*[("reds", n) for n in range(4)])
    old, new = league.version(1), league.version(2)
    store = old.open_store()
    old.prepare_store(store)
    store.open_fence(old.name, league.matches, "id", 0, 2, 0)
    swapping(store).prepare()

    def unreachable(*_: Any) -> Any:
        raise ConnectionFailedError("no broker")

    reached = ClusterPort.by_time
    monkeypatch.setattr(ClusterPort, "by_time", unreachable)
    with pytest.raises(ConnectionFailedError):
        replay(new, replaces=old.name, into=INTO, since_ms=1 << 41)
    assert swapping(store).replays() == []
    monkeypatch.setattr(ClusterPort, "by_time", reached)

    class Killed(Exception):
        pass

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    monkeypatch.setattr(Pipeline, "run", killed)
    for since_ms in (1 << 41, None):
        with pytest.raises(Killed):
            replay(league.version(2), replaces=old.name, into=INTO, since_ms=since_ms)
    assert [fence.next_offset for fence in store.fences(new.name)] == [2, 2]
    store.close()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rebuilt_while_the_old_one_goes_on_then_swapped(
    spark: SparkSession, league: League
) -> None:
    old = league.version(1).name
    league.send(("reds", 1), ("blues", 2), ("reds", 3))
    league.version(1).run("available_now", spark=spark)
    replay(league.version(2), replaces=old, into=INTO, swap=False, spark=spark)
    league.send(("reds", 5))
    league.version(1).run("available_now", spark=spark)
    league.check(1)
    with pytest.raises(ConfigError, match=r"not swapped yet\. Nothing was started"):
        league.version(2).run("available_now", spark=spark)
    ended = replay(league.version(2), replaces=old, into=INTO, spark=spark)
    assert ended.tables["results"] == f"results_of_{old.replace('-', '_')}"
    league.check(2)
    with pytest.raises(ConfigError, match=f"replaced by {league.version(2).name}"):
        league.version(1).run("available_now", spark=spark)
    league.send(("blues", 7))
    league.version(2).run("available_now", spark=spark)
    league.check(2)
    assert reconcile(league.version(2)).exact
    with pytest.raises(ConfigError, match=r"has replaced .* already"):
        replay(league.version(2), replaces=old, into=INTO, spark=spark)


def test_what_cannot_be_replayed_is_refused(league: League) -> None:
    """Before anything is connected or made."""
    pipeline = league.version(2)
    name, old = pipeline.name, league.version(1).name
    for replaces, into, text in [
        (name, INTO, f"Give the pipeline of this file another name, such as {name}-2"),
        (old, {"results": "x"}, "fills table standings, too"),
        (old, {**INTO, "teams": "x"}, "does not fill table teams; it fills results, standings"),
        (old, {"results": "x", "standings": "x"}, "another name"),
        (old, INTO, "knows no pipeline"),
    ]:
        with pytest.raises(ConfigError, match=text):
            replay(pipeline, replaces=replaces, into=into)
    pipeline.handler("other")(lambda record, store: None)
    with pytest.raises(ConfigError, match="handler of other names no table"):
        replay(pipeline, replaces=old, into=INTO)


def test_what_the_store_says_against_a_replay(league: League) -> None:
    """Before a shadow table is made."""
    pipeline, old = league.version(2), league.version(1).name
    store = pipeline.open_store()
    store.prepare()
    store.open_fence(old, "other", "id", 0, 0, 0)
    store.open_fence(old, f"other.{old}.retry.0s", "id", 0, 0, 0)
    with pytest.raises(ConfigError, match=f"{old} reads other, too, which this pipeline does not"):
        replay(pipeline, replaces=old, into=INTO)
    store.open_fence(pipeline.name, "matches", "id", 0, 0, 0)
    with pytest.raises(ConfigError, match="has run already, into its own tables"):
        replay(pipeline, replaces=old, into=INTO)
    assert store.query("SELECT * FROM kohort_replay") == []
    store.close()


def test_effects_that_name_their_table_are_not_redirected(league: League) -> None:
    pipeline = Pipeline("handlers", store=f"sqlite:///{league.directory / 'db.sqlite'}")

    @pipeline.handler("sales", table="sales")
    def sale(record: Any, store: Any) -> Any:
        return Insert("audit", {"n": 1})

    pipeline.fill_instead({"sales": "sales_next"})
    (handler,) = pipeline.handlers
    assert handler.table == "sales_next"
    with pytest.raises(Exception, match="cannot send it to a shadow table"):
        handler.effects(Insert("audit", {"n": 1}), None)  # type: ignore[arg-type]
