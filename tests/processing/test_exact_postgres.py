"""Exactly once into PostgreSQL: the kill table, and what only a server can do to its clients (E2).

The same worlds as `test_exact_world`, in virtual time; the database is real.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.retry.postgres import CONFLICTS
from tests.known import of_type
from tests.postgres import PostgresServer
from tests.processing.engine.test_exactly_once_world import (
    PLACES,
    a_life,
    check,
    killed_there,
    left_behind,
    make,
)
from tests.processing.exactly_once_world import ExactWorld

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

TROUBLE = """CREATE FUNCTION trouble() RETURNS trigger AS $$ BEGIN
    CASE WHEN nextval('inserts') = 3 OR random() < {rate} THEN RAISE SQLSTATE '{code}';
         WHEN random() < {cut} THEN PERFORM pg_terminate_backend(pg_backend_pid());
         ELSE NULL; END CASE;
    RETURN NEW; END $$ LANGUAGE plpgsql"""
AT_THE_ROW = (
    "CREATE TRIGGER trouble BEFORE INSERT ON loaded FOR EACH ROW EXECUTE FUNCTION trouble()"
)
AT_THE_COMMIT = (
    "CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON loaded DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION trouble()"
)


@pytest.fixture
def world(database: str, tmp_path: Path) -> Iterator[ExactWorld]:
    made = make(database, tmp_path)
    yield made
    made.close()


@pytest.mark.rows(2)
@pytest.mark.parametrize("place", PLACES["store"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_kill_anywhere_changes_nothing(world: ExactWorld, place: str, batch: int) -> None:
    """E2, the kill table: at each step of the first, the second and a later transaction."""
    killed_there(world, place, batch)
    assert world.lives > 2


def test_who_was_left_behind_changes_nothing(world: ExactWorld) -> None:
    """E2, "zombie": its transaction is refused as a whole, whenever it comes."""
    left_behind(world)


@pytest.mark.rows(1)
@pytest.mark.parametrize("seed", range(8))
def test_lives_full_of_trouble(database: str, seed: int, tmp_path: Path) -> None:
    """X1 to X8: kills, refusals, lost answers, zombies; each input has its result once."""
    a_life(database, seed, tmp_path)


@pytest.mark.rows(2)
@pytest.mark.parametrize("where", [AT_THE_ROW, AT_THE_COMMIT], ids=["row", "commit"])
@pytest.mark.parametrize("code", ["40001", "40P01", "57P01", "53300"])
def test_what_the_server_refuses_for_now(
    postgres: PostgresServer, world: ExactWorld, where: str, code: str
) -> None:
    """Serialization failures, deadlocks, shutdowns, too many clients, and connections cut."""
    name = database_of(world)
    cut = 0.03 if where == AT_THE_ROW else 0
    trouble = TROUBLE.format(rate=0.06, cut=cut, code=code)  # the third insert, and some by chance
    postgres.run("CREATE SEQUENCE inserts", trouble, where, database=name)
    for _ in range(120):
        world.step()
        if world.chance.random() < 0.3:
            world.commit()
    ((inserts,),) = postgres.ask("SELECT last_value FROM inserts", database=name)
    assert inserts >= 3, "nothing was refused"
    if code not in CONFLICTS:  # those are run again within the store
        assert world.engine.counts["transactions_aborted"]
    postgres.run("DROP TRIGGER trouble ON loaded", database=name)
    world.run_out()
    check(world)


@pytest.mark.rows(1)
@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("crash", [False, True], ids=["restarted", "crashed"])
def test_the_server_goes_away_in_the_midst_of_a_transaction(
    postgres: PostgresServer, world: ExactWorld, after: bool, crash: bool
) -> None:
    """E2, "COMMIT sent, reply lost": the store itself tells what became of it."""
    chance, left = random.Random(1), [3]
    store = of_type(world.life.transactor, StoreTransactor)._store
    connect = store._connect

    def away() -> None:
        if left[0] and chance.random() < 0.3:
            left[0] -= 1
            postgres.stop(crash=crash)
            postgres.start()

    def connected(*, read_only: bool):
        connection = connect(read_only=read_only)
        commit = connection.commit

        def committed() -> None:
            if not after:
                away()
            commit()
            if after:
                away()
                connection.execute("SELECT 1")  # the answer that does not come

        if not read_only:
            connection.commit = committed
        return connection

    store.close()
    store._connect = connected
    world.run_out()
    assert not left[0]
    check(world)
    assert world.engine.counts["transactions_aborted"] == (0 if after else 3)


def database_of(world: ExactWorld) -> str:
    assert world.url is not None
    return urlsplit(world.url).path[1:]
