"""The options of `format("kohort")`: parsed and refused before anything is started.

Rules:
- Names and meanings are those of Spark's own Kafka connector, so that a query is carried over by
  changing its format. Spark hands keys over in lower case; so they are matched.
- `kafka.*` goes to the client, except what the source itself decides.
- An unknown option is an error that names the nearest one. Spark hands its own options to every
  source and sink (`checkpointLocation`, `path`, ...); they are accepted and say nothing to us.
- Options hold no passwords in clear text that would show in a plan: `repr` leaves values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from kohort.client.common.config import ConsumerConfig
from kohort.config import nearest, plain
from kohort.errors import ConfigError

EARLIEST: Final = -2
LATEST: Final = -1
GROUP: Final = "group"
COLUMNS: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
)  # fmt: skip
DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_BATCH_BYTES: Final = 8 << 20

_KNOWN: Final = (
    "kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger",
    "failOnDataLoss", "includeHeaders", "minPartitions", "maxRecordsPerPartition", "group.id",
    "columns", "batchRows", "batchBytes", "topic", "tierDelaysMs", "clockSkewMs", "rangeMarkers",
    "publishProgress",
)  # fmt: skip
_SPARKS_OWN: Final = frozenset(
    name.lower()
    for name in (
        "checkpointLocation", "queryName", "path", "paths", "asyncProgressTrackingEnabled",
        "asyncProgressTrackingCheckpointIntervalMs",
        "asyncProgressTrackingOverrideSinkSupportCheck",
    )
)  # fmt: skip
"""What Spark 4.3 hands over with the user's options, in lower case. Its query acts on them."""
_BY_LOWER = {name.lower(): name for name in _KNOWN}
_ALIASES = {"bootstrap.servers": "kafka.bootstrap.servers", "kafka.group.id": "group.id"}
_OURS_TO_DECIDE = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the source publishes progress itself when group.id is given",
    "key.deserializer": "keys are bytes; decode them with DataFrame functions",
    "value.deserializer": "values are bytes; decode them with DataFrame functions",
    "key.serializer": "keys are written as they are",
    "value.serializer": "values are written as they are",
    "interceptor.classes": "there are no interceptors",
    "enable.partition.eof": "ends are planned by the driver",
}

Start = str | dict[str, dict[int, int]]


@dataclass(frozen=True)
class SourceOptions:
    """What a reader was asked for; see `parse_source`."""

    client: dict[str, str] = field(repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None
    starting: Start = "earliest"
    ending: Start = "latest"
    starting_ms: int | None = None
    ending_ms: int | None = None
    max_offsets: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    group: str | None = None
    columns: tuple[str, ...] | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    batch_bytes: int = DEFAULT_BATCH_BYTES
    tier_delays_ms: dict[str, int] = field(default_factory=dict[str, int])
    clock_skew_ms: int = 1_000
    range_markers: bool = False
    publish_progress: bool = True
    streaming: bool = False

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """The columns of the rows, in the connector's order."""
        if self.columns is not None:
            return self.columns
        return COLUMNS if self.include_headers else COLUMNS[:-1]


@dataclass(frozen=True)
class SinkOptions:
    """What a writer was asked for."""

    client: dict[str, str] = field(repr=False)
    topic: str | None = None
    include_headers: bool = True


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The source's options, checked. Raises ConfigError before anything is connected."""
    found, client = _sorted_out(options)
    _only_one_subscription(found)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if name in found:
                raise ConfigError(f"{name} is for batch reads; a stream has no end")
    elif "maxOffsetsPerTrigger" in found:
        raise ConfigError("maxOffsetsPerTrigger is for streams; a batch read has no triggers")
    group = found.get("group.id")
    default = GROUP if group else ("latest" if streaming else "earliest")
    starting = _start(found.get("startingOffsets", default), "startingOffsets")
    if starting == GROUP and not group:
        raise ConfigError("startingOffsets=group needs group.id")
    _check_latest(starting, streaming=streaming, group=group)
    ending = _start(found.get("endingOffsets", "latest"), "endingOffsets")
    if ending in ("earliest", GROUP):
        raise ConfigError("endingOffsets is latest or JSON")
    return SourceOptions(
        client=client,
        topics=_names(found.get("subscribe", "")),
        pattern=_pattern(found.get("subscribePattern")),
        assign=_assign(found.get("assign")),
        starting=starting,
        ending=ending,
        starting_ms=_int(found, "startingTimestamp", 0),
        ending_ms=_int(found, "endingTimestamp", 0),
        max_offsets=_int(found, "maxOffsetsPerTrigger", 1),
        fail_on_data_loss=_bool(found, "failOnDataLoss", True),
        include_headers=_bool(found, "includeHeaders", False),
        min_partitions=_int(found, "minPartitions", 1),
        max_records_per_partition=_int(found, "maxRecordsPerPartition", 1),
        group=group,
        columns=_columns(found.get("columns")),
        batch_rows=_int(found, "batchRows", 1) or DEFAULT_BATCH_ROWS,
        batch_bytes=_int(found, "batchBytes", 1024) or DEFAULT_BATCH_BYTES,
        tier_delays_ms=_delays(found.get("tierDelaysMs")),
        clock_skew_ms=_skew(found),
        range_markers=_bool(found, "rangeMarkers", False),
        publish_progress=_bool(found, "publishProgress", True),
        streaming=streaming,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The sink's options, checked. Raises ConfigError before anything is connected."""
    found, client = _sorted_out(options)
    for name in found:
        if name not in ("topic", "includeHeaders"):
            raise ConfigError(f"{name} is an option of the source, not of the sink")
    return SinkOptions(client, found.get("topic"), _bool(found, "includeHeaders", True))


def _check_latest(starting: Start, *, streaming: bool, group: str | None) -> None:
    """Refuse a start at the end that cannot be kept, or that reads nothing."""
    if isinstance(starting, dict):
        at_end = any(o == LATEST for offsets in starting.values() for o in offsets.values())
    else:
        at_end = starting == "latest"
    if not at_end:
        return
    if not streaming:
        raise ConfigError(
            "startingOffsets=latest (-1) is for streams; a batch read of it would be empty"
        )
    if not group:
        raise ConfigError(
            "startingOffsets=latest (-1; the default of a stream) needs the option group.id: "
            "Spark keeps no record of where a Python source began, so the group keeps it; without "
            "a group a restart before the first batch would skip records. Or say "
            "startingOffsets=earliest"
        )


def _behind_kafka(key: str) -> str | None:
    """A setting of the client that lacks its prefix, with it."""
    known = plain(key).removesuffix("_file") in ConsumerConfig.field_names()
    return f"kafka.{key}" if known else None


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Our options by their proper names, and what goes to the client."""
    found: dict[str, str] = {}
    client: dict[str, str] = {}
    for given, value in options.items():
        key = _ALIASES.get(given.lower(), given.lower())
        name = _BY_LOWER.get(key)
        if name == "kafka.bootstrap.servers":
            client["bootstrap.servers"] = value
        elif name is not None:
            found[name] = value
        elif key.startswith("kafka."):
            bare = key.removeprefix("kafka.")
            if bare in _OURS_TO_DECIDE:
                raise ConfigError(f"option {given} cannot be set: {_OURS_TO_DECIDE[bare]}")
            client[bare] = value
        elif key not in _SPARKS_OWN:
            near = _BY_LOWER.get(nearest(key, _BY_LOWER) or "") or _behind_kafka(key)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"unknown option {given!r} of format kohort{hint}")
    if "bootstrap.servers" not in client:
        raise ConfigError("option kafka.bootstrap.servers is missing; for example localhost:9092")
    return found, client


def _only_one_subscription(found: Mapping[str, str]) -> None:
    given = [n for n in ("subscribe", "subscribePattern", "assign") if n in found]
    if len(given) != 1:
        said = " and ".join(given) if given else "none of them is given"
        raise ConfigError(f"give exactly one of subscribe, subscribePattern, assign ({said})")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"subscribePattern {text!r} is not a regular expression: {error}") from (
            error
        )
    return text


def _assign(text: str | None) -> dict[str, tuple[int, ...]] | None:
    if text is None:
        return None
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _json_object(text, "assign").items():
        listed = cast(list[Any], partitions if isinstance(partitions, list) else [])
        if not listed or not all(isinstance(p, int) and p >= 0 for p in listed):
            raise ConfigError(f'assign: write {{"topic": [0, 1]}}, not {text!r}')
        found[topic] = tuple(sorted(set(cast(list[int], listed))))
    return found


def _start(text: str, name: str) -> Start:
    if text.lower() in ("earliest", "latest", GROUP):
        return text.lower()
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(text, name).items():
        if not isinstance(partitions, dict) or not partitions:
            raise ConfigError(f'{name}: write {{"topic": {{"0": 23}}}}, not {text!r}')
        found[topic] = {}
        for partition, offset in cast(dict[str, Any], partitions).items():
            good = partition.isdigit() and isinstance(offset, int) and not isinstance(offset, bool)
            if not good or offset < EARLIEST:
                raise ConfigError(
                    f"{name}: {topic}/{partition}: {offset!r} is not an offset; -2 is earliest, "
                    "-1 latest"
                )
            found[topic][int(partition)] = offset
    return found


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{name} is neither a word that is known nor a JSON object: {text!r}")
    return cast(dict[str, Any], value)


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    wanted = set(_names(text))
    unknown = wanted - set(COLUMNS)
    if unknown or not wanted:
        raise ConfigError(f"columns {text!r}: the columns are {', '.join(COLUMNS)}")
    return tuple(c for c in COLUMNS if c in wanted)


def _delays(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    found = _json_object(text, "tierDelaysMs")
    if not all(isinstance(v, int) and v >= 0 for v in found.values()):
        raise ConfigError(f"tierDelaysMs: write {{TOPIC: MILLISECONDS}}, not {text!r}")
    return cast(dict[str, int], found)


def _skew(found: Mapping[str, str]) -> int:
    given = _int(found, "clockSkewMs", 0)
    return 1_000 if given is None else given


def _int(found: Mapping[str, str], name: str, low: int) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not text.strip().lstrip("-").isdigit() or int(text) < low:
        raise ConfigError(f"option {name}={text!r}: a whole number of at least {low} is needed")
    return int(text)


def _bool(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name}={text!r}: true or false")
    return text == "true"
