"""What the flights demonstration should have put out, and what is there: tables and topic.

Rules:
- What should be there is computed from the data set's own tables, by Arrow, without the pipeline.
- A flight is loaded when its destination is in the airport table and its hour has weather.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from kohort import Consumer, TopicPartition
from kohort.demo.flights_data import read_table
from kohort.retry.store import Store

pc: Any = pyarrow.compute
Hours = dict[tuple[str, str], tuple[int, int]]
"""By origin and hour: flights, and their departure delays in minutes."""


@dataclass(frozen=True)
class Outputs:
    """The outputs as they are, beside what they should be.

    Attributes:
        rows: rows of the table `flights`.
        groups, flights, dep_delay_sum: of the table `delays_by_hour`.
        mismatches: its groups that differ from the data set's, are missing or too many.
        records, duplicates: of the topic `departures`, as a reader with read_committed sees it.
    """

    rows: int
    groups: int
    flights: int
    dep_delay_sum: int
    mismatches: int
    records: int
    duplicates: int

    def problems(self, loaded: int) -> list[str]:
        """Every broken promise, as text."""
        wrong: list[str] = []
        if self.rows != loaded:
            wrong.append(f"{loaded} flights were loaded, but the table has {self.rows} rows")
        if self.mismatches:
            wrong.append(f"{self.mismatches} groups of delays_by_hour differ from the data set's")
        if self.records - self.duplicates != loaded or self.duplicates:
            wrong.append(
                f"{loaded} flights were loaded, but departures has {self.records} records, "
                f"{self.duplicates} of them twice"
            )
        return wrong

    def as_json(self) -> dict[str, Any]:
        """The part `outputs` of `report.json`."""
        found = asdict(self)
        hourly = ("groups", "flights", "dep_delay_sum", "mismatches")
        return {
            "flights": {"rows": self.rows},
            "delays_by_hour": {name: found[name] for name in hourly},
            "departures": {"records": self.records, "duplicates": self.duplicates},
        }


def expected_hours(limit: int | None) -> Hours:
    """The groups of `delays_by_hour`, from the data set alone."""
    flights = read_table("flights")
    flights = flights.sort_by([("time_hour", "ascending"), ("minute", "ascending")])
    flights = flights.slice(0, limit)
    known = pc.is_in(flights["dest"], value_set=read_table("airports")["faa"])
    observed = pc.is_in(_hours(flights), value_set=_hours(read_table("weather")))
    loaded = flights.filter(pc.and_(known, observed))
    sums = loaded.group_by(["origin", "time_hour"]).aggregate(
        [([], "count_all"), ("dep_delay", "sum")]
    )
    columns = ("origin", "time_hour", "count_all", "dep_delay_sum")
    rows = zip(*(sums[column].to_pylist() for column in columns), strict=True)
    return {(origin, hour): (count, minutes or 0) for origin, hour, count, minutes in rows}


def _hours(table: pa.Table) -> Any:
    """Origin and hour of each row as one text."""
    return pc.binary_join_element_wise(table["origin"], table["time_hour"], "/")


def look_at(store: Store, servers: str, topic: str, partitions: int, wanted: Hours) -> Outputs:
    """The outputs as they are in the store and the topic."""
    ((rows,),) = store.query("SELECT count(*) FROM flights")
    hours: Hours = {
        (origin, hour): (int(flights), int(minutes))
        for origin, hour, flights, minutes in store.query(
            "SELECT origin, hour, flights, dep_delay_sum FROM delays_by_hour"
        )
    }
    records, distinct = count_keys(servers, topic, partitions)
    return Outputs(
        rows=int(rows),
        groups=len(hours),
        flights=sum(count for count, _ in hours.values()),
        dep_delay_sum=sum(minutes for _, minutes in hours.values()),
        mismatches=differences(hours, wanted),
        records=records,
        duplicates=records - distinct,
    )


def differences(found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> int:
    """How many keys differ, or are on one side only."""
    return sum(found.get(key) != wanted.get(key) for key in {*found, *wanted})


def count_keys(servers: str, topic: str, partitions: int) -> tuple[int, int]:
    """How many committed records a topic has, and how many keys; each key names a flight."""
    keys: list[pa.Array] = []
    parts = [TopicPartition(topic, p) for p in range(partitions)]
    with Consumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        ends = consumer.end_offsets(parts)
        consumer.assign(parts)
        while any(consumer.position(tp) < ends[tp] for tp in parts):
            batch = consumer.poll_arrow(5.0, columns=["key"])
            if batch is not None:
                keys.append(batch.column("key"))
    every = pa.chunked_array(keys, pa.binary())
    return len(every), pc.count_distinct(every, mode="all").as_py()
