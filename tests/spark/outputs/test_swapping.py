"""Shadow tables and their swap, in SQLite and PostgreSQL (spec 6.10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.errors import ConfigError, StorageError
from kohort.retry.ledger import FenceMove, FenceRow
from kohort.retry.store import Applied, Store, Transaction
from kohort.retry.stores import open_store
from kohort.spark.outputs.fence import Batch
from kohort.spark.outputs.protocol import Written
from kohort.spark.outputs.swapping import NOWHERE, Replay, swapping
from kohort.spark.outputs.table_transaction import open_batches

REPLAY = Replay("league-2", "league", {"standings": "standings_next"})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A database in which `league` has filled its table up to offset 5."""
    url = f"sqlite:///{tmp_path / 'db.sqlite'}"
    if request.param == "postgres":
        url = request.getfixturevalue("database")
    made = open_store(url)
    made.prepare()
    run(
        made,
        "CREATE TABLE standings (team TEXT PRIMARY KEY, goals BIGINT CHECK (goals >= 0))",
        "CREATE INDEX by_goals ON standings (goals)",
        "INSERT INTO standings VALUES ('reds', 5)",
    )
    made.open_fence("league", "matches", "id", 0, 5, 0)
    swapping(made).prepare()
    yield made
    made.close()


def run(store: Store, *statements: str) -> None:
    with store.transaction() as cursor:
        for sql in statements:
            cursor.execute(sql)


def test_the_swap_is_one_transaction_and_ends_the_replaced_pipeline(store: Store) -> None:
    shadows = swapping(store)
    shadows.begin(REPLAY, 1)
    assert shadows.replays() == [REPLAY]
    run(store, "INSERT INTO standings_next VALUES ('reds', 7), ('blues', 1)")
    with pytest.raises(Exception, match=r"(?i)check"):  # the shadow has the table's constraints
        run(store, "INSERT INTO standings_next VALUES ('greens', -1)")
    shadows.swap(REPLAY, 2)
    now = store.query("SELECT team, goals FROM standings ORDER BY 1")
    assert now == [("blues", 1), ("reds", 7)]
    assert store.query("SELECT * FROM standings_of_league") == [("reds", 5)]
    assert [r.swapped for r in shadows.replays()] == [True]
    move = FenceMove("matches", 0, 5, 6)
    assert store.apply(Transaction("league", move, 3)) is Applied.FENCE_LOST
    fence = store.fence("league", "matches", 0)
    assert fence is not None, "without its fence, the topic would be read from its beginning"
    assert fence.next_offset == NOWHERE


def test_a_stage_of_the_replaced_pipeline_commits_no_batch(store: Store) -> None:
    """Its fence is moved, and no other pipeline's whose name begins alike."""
    drivers = [open_batches(store.url, query, []) for query in ("league.totals", "league.x.totals")]
    batches = [Batch(driver.query, 0, "c") for driver in drivers]
    for driver, batch in zip(drivers, batches, strict=True):
        driver.prepare()
        assert driver.commit(batch, None, Written(), None) == ""
    shadows = swapping(store)
    shadows.begin(REPLAY, 1)
    before = [driver.fence() for driver in drivers]
    shadows.swap(REPLAY, 2)
    refusals = [
        driver.commit(Batch(driver.query, 1, "c"), fence, Written(), None)
        for driver, fence in zip(drivers, before, strict=True)
    ]
    assert refusals == ["another driver of this query was faster", ""]
    for driver in drivers:
        driver.store.close()


def test_a_batch_that_is_half_done_is_not_cut_off(store: Store) -> None:
    """Its records wait for the end of their Kafka transaction, which nobody else would send."""
    driver = open_batches(store.url, "league.totals", [])
    driver.prepare()
    driver.commit(Batch("league.totals", 0, "c"), None, Written(), None)
    run(store, "UPDATE kohort_batch_fence SET ended = 0")
    shadows = swapping(store)
    shadows.begin(REPLAY, 1)
    with pytest.raises(StorageError, match=r"has not ended yet .league.totals"):
        shadows.swap(REPLAY, 2)
    assert store.query("SELECT * FROM standings") == [("reds", 5)]
    driver.store.close()


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("CREATE VIEW best AS SELECT * FROM standings", "view best would keep"),
        (
            "CREATE TABLE fans (team TEXT REFERENCES standings (team))",
            "a foreign key of fans would keep",
        ),
        ("CREATE TABLE standings_of_league (n INTEGER)", "Drop it first"),
        ("DROP TABLE standings", "no table standings"),
    ],
)
def test_what_cannot_be_swapped_is_refused_before_it_begins(
    store: Store, statement: str, text: str
) -> None:
    run(store, statement)
    with pytest.raises(ConfigError, match=text):
        swapping(store).begin(REPLAY, 1)
    assert swapping(store).replays() == []


def test_a_replay_is_noted_with_the_place_where_it_begins(store: Store) -> None:
    """All or nothing: run again after a kill, it would have begun at the beginning."""
    shadows = swapping(store)
    fences = [FenceRow("matches", "id", 0, 3), FenceRow("matches", "id", 1, 0)]
    shadows.begin(REPLAY, 1, fences)
    assert store.fences("league-2") == fences


def test_a_shadow_of_the_users_own_must_be_empty(store: Store) -> None:
    run(store, "CREATE TABLE standings_next (team TEXT PRIMARY KEY, goals BIGINT, points BIGINT)")
    shadows = swapping(store)
    run(store, "INSERT INTO standings_next VALUES ('x', 1, 1)")
    with pytest.raises(ConfigError, match="has rows already"):
        shadows.begin(REPLAY, 1)
    run(store, "DELETE FROM standings_next")
    shadows.begin(REPLAY, 1)
    shadows.swap(REPLAY, 2)
    assert store.query("SELECT points FROM standings") == []


@pytest.mark.postgres
def test_a_table_with_a_foreign_key_needs_a_shadow_of_the_users_own(database: str) -> None:
    store = open_store(database)
    run(
        store,
        "CREATE TABLE teams (team TEXT PRIMARY KEY)",
        "CREATE TABLE standings (team TEXT PRIMARY KEY REFERENCES teams, goals BIGINT)",
    )
    shadows = swapping(store)
    shadows.prepare()
    with pytest.raises(ConfigError, match="has a foreign key to teams"):
        shadows.begin(REPLAY, 1)
    store.close()
