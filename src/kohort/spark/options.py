"""The options of `format("kohort")`: parsed and refused before anything is started.

Rules:
- Names and meanings are those of Spark's own Kafka connector, so that a query is carried over by
  changing its format. Spark hands keys over in lower case; so they are matched.
- `kafka.*` goes to the client, except what the source itself decides; what no client knows is an
  error before anything is connected.
- An unknown option is an error that names the nearest one. Spark hands its own options to every
  source and sink (`checkpointLocation`, `path`, ...); they are accepted and ignored.
- Options hold no passwords in clear text that would show in a plan: `repr` leaves values out.
- Spark 4.3 passes a table's options to a Python source when the table is created, and never again.
  Its columns keep them, as metadata; secrets are refused, since a catalog shows metadata.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from kohort.client.common.config import ClientConfig, ConsumerConfig, ProducerConfig, known_to
from kohort.client.common.security_config import in_our_words
from kohort.config import parse_duration_ms
from kohort.errors import ConfigError
from kohort.setting_keys import is_secret, nearest, plain
from kohort.spark.connector import (
    BATCHES_ONLY,
    JAVAS_OWN,
    NO_EFFECT,
    REFUSED,
    STREAMS_ONLY,
    pattern_of,
)
from kohort.spark.formats.options import OPTIONS as FORMAT_OPTIONS
from kohort.spark.formats.options import Formats, parse_formats
from kohort.spark.formats.rows import ROW_ERROR, ROWS, SourceRows, of_option

log = logging.getLogger("kohort.spark")
EARLIEST: Final = -2
LATEST: Final = -1
MAX_MOVED_MS: Final = 10**13
"""A test may move the brokers' clock so far ahead of the driver's: the skew is negative then."""
GROUP: Final = "group"
COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_BATCH_BYTES: Final = 8 << 20
SMALL_TASK: Final = 500
"""Records that are not worth a second task: it costs more than reading them."""

KNOWN: Final = (
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "minRecordsPerPartition",
    "kafkaConsumer.pollTimeoutMs",
    "group.id",
    "columns",
    "batchRows",
    "batchBytes",
    "topic",
    "retryDelaysMs",
    "clockSkewMs",
    "rangeMarkers",
    "publishProgress",
    "pushFilters",
    "maxBytesPerTrigger",
    "targetBatchDuration",
    "targetBatchFloor",
    "topicFloor",
    "topicPriorities",
    "alignWithin",
    "rowFormats",
    "lossRemedy",
    *FORMAT_OPTIONS,
)
_SPARKS_OWN: Final = frozenset(
    name.lower()
    for name in (
        "checkpointLocation",
        "queryName",
        "path",
        "paths",
        "asyncProgressTrackingEnabled",
        "asyncProgressTrackingCheckpointIntervalMs",
        "asyncProgressTrackingOverrideSinkSupportCheck",
        # of tables: CREATE TABLE ... USING kohort
        "provider",
        "location",
        "comment",
        "collation",
        "owner",
        "external",
        "is_managed_location",
    )
)
"""What Spark 4.3 hands over with the user's options, in lower case. Spark itself acts on them."""
_OF_A_TABLE: Final = "option."
"""A table's options come twice when it is made: by their names, and behind this."""
_SINKS: Final = ("topic", "includeheaders")
"""The sink's options, in lower case, beside those of its client."""
_BY_LOWER = {name.lower(): name for name in KNOWN}
_NO_EFFECT = {name.lower() for name in NO_EFFECT}
_ALIASES = {"bootstrap.servers": "kafka.bootstrap.servers", "kafka.group.id": "group.id"}
DEFAULT_POLL_TIMEOUT_MS: Final = 120_000

ByPartition = dict[str, dict[int, int]]
Start = str | ByPartition
Times = int | ByPartition
"""Milliseconds since the epoch: of every partition, or of each."""


@dataclass(frozen=True)
class SourceOptions:
    """What a reader was asked for; see `parse_source`."""

    client: dict[str, str] = field(repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None
    starting: Start = "earliest"
    ending: Start = "latest"
    starting_ms: Times | None = None
    ending_ms: Times | None = None
    latest_where_no_record: bool = False
    """`startingOffsetsByTimestampStrategy=latest`."""
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    """The longest time that fewer than `min_offsets` records may wait."""
    max_bytes: int | None = None
    target_batch_ms: int | None = None
    target_floor: int | None = None
    """Records of the first batch of a paced query, and the least of any that has as many."""
    topic_floor: int | None = None
    topic_priorities: dict[str, int] = field(default_factory=dict[str, int])
    align_ms: int | None = None
    """No partition is read further than this past the oldest record that is next."""
    poll_timeout_ms: int = DEFAULT_POLL_TIMEOUT_MS
    fail_on_data_loss: bool = True
    loss_remedy: str = ""
    """What an error of lost records advises in a pipeline, which has no failOnDataLoss."""
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_partition: int | None = None
    group: str | None = None
    columns: tuple[str, ...] | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    batch_bytes: int = DEFAULT_BATCH_BYTES
    retry_delays_ms: dict[str, int] = field(default_factory=dict[str, int])
    clock_skew_ms: int = 1_000
    range_markers: bool = False
    push_filters: bool = False
    formats: Formats = field(default_factory=Formats)
    rows: tuple[SourceRows, ...] = ()
    """How the values of a pipeline's sources become rows beside their bytes."""
    publish_progress: bool = True
    streaming: bool = False

    @property
    def commits(self) -> bool:
        """Whether progress is committed to the group: a stream's, which continues there."""
        return self.group is not None and self.publish_progress and self.streaming

    @property
    def least_records_a_task(self) -> int:
        """Fewer are read by one task; by default 1 where the number of tasks is set."""
        default = 1 if self.min_partitions else SMALL_TASK
        return self.min_records_per_partition or default

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """The columns of the rows, in the connector's order."""
        if self.columns is not None:
            return self.columns
        known = COLUMNS if self.include_headers else COLUMNS[:-1]
        rows = (ROWS, ROW_ERROR) if self.rows else ()
        return known + self.formats.columns + rows


@dataclass(frozen=True)
class SinkOptions:
    """What a writer was asked for."""

    client: dict[str, str] = field(repr=False)
    topic: str | None = None
    include_headers: bool = True


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The source's options, checked. Raises ConfigError before anything is connected."""
    found, client = _sorted_out(options)
    _check_settings(client, ConsumerConfig)
    _only_one_subscription(found)
    _only_where_they_apply(found, streaming=streaming)
    group = found.get("group.id")
    default = (GROUP if group else "latest") if streaming else "earliest"
    starting = _start(found.get("startingOffsets", default), "startingOffsets")
    if starting == GROUP and not group:
        raise ConfigError("startingOffsets=group needs group.id")
    if not streaming:
        _check_begins_before_the_end(starting)
    ending = _start(found.get("endingOffsets", "latest"), "endingOffsets")
    if ending in ("earliest", GROUP) or EARLIEST in _offsets(ending):
        raise ConfigError("endingOffsets is latest, or JSON of offsets in which -1 is latest")
    max_offsets = _int(found, "maxOffsetsPerTrigger", 1)
    min_offsets = _int(found, "minOffsetsPerTrigger", 1)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger={min_offsets} is more than maxOffsetsPerTrigger={max_offsets}"
        )
    topics = _names(found.get("subscribe", ""))
    formats = parse_formats(found, topics)
    range_markers = _bool(found, "rangeMarkers", False)
    if range_markers and formats.columns:
        raise ConfigError("rangeMarkers is for pipelines, which decode values themselves")
    return SourceOptions(
        client=client,
        topics=topics,
        pattern=pattern_of(found["subscribePattern"]) if "subscribePattern" in found else None,
        assign=_assign(found.get("assign")),
        starting=starting,
        ending=ending,
        starting_ms=_times(found, "startingTimestamp", "startingOffsetsByTimestamp"),
        ending_ms=_times(found, "endingTimestamp", "endingOffsetsByTimestamp"),
        latest_where_no_record=_latest_where_no_record(found),
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_delay_ms=_delay(found, "maxTriggerDelay", "15m") or 0,
        max_bytes=_int(found, "maxBytesPerTrigger", 1),
        target_batch_ms=_delay(found, "targetBatchDuration"),
        target_floor=_int(found, "targetBatchFloor", 1),
        topic_floor=_int(found, "topicFloor", 0),
        topic_priorities=_priorities(found.get("topicPriorities")),
        align_ms=_delay(found, "alignWithin"),
        poll_timeout_ms=(_int(found, "kafkaConsumer.pollTimeoutMs", 1) or DEFAULT_POLL_TIMEOUT_MS),
        fail_on_data_loss=_bool(found, "failOnDataLoss", True),
        loss_remedy=found.get("lossRemedy", ""),
        include_headers=_bool(found, "includeHeaders", False),
        min_partitions=_int(found, "minPartitions", 1),
        max_records_per_partition=_int(found, "maxRecordsPerPartition", 1),
        min_records_per_partition=_int(found, "minRecordsPerPartition", 1),
        group=group,
        columns=_columns(found.get("columns"), COLUMNS + formats.columns),
        batch_rows=_int(found, "batchRows", 1) or DEFAULT_BATCH_ROWS,
        batch_bytes=_int(found, "batchBytes", 1024) or DEFAULT_BATCH_BYTES,
        retry_delays_ms=_delays(found.get("retryDelaysMs")),
        clock_skew_ms=_skew(found),
        range_markers=range_markers,
        push_filters=_bool(found, "pushFilters", False),
        formats=formats,
        rows=of_option(found["rowFormats"]) if "rowFormats" in found else (),
        publish_progress=_bool(found, "publishProgress", True),
        streaming=streaming,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The sink's options, checked. Raises ConfigError before anything is connected."""
    found, client = _sorted_out(options)
    _check_settings(client, ProducerConfig)
    for name in found:
        if name.lower() not in _SINKS:
            raise ConfigError(f"{name} is an option of the source, not of the sink")
    topic = found.get("topic", "").strip() or None
    return SinkOptions(client, topic, _bool(found, "includeHeaders", True))


def options_to_keep(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created; None of everything else.

    Raises ConfigError for an option that a catalog must not keep.
    """
    if not _of_a_new_table(options):
        return None
    kept = {
        key.lower().removeprefix(_OF_A_TABLE): value
        for key, value in options.items()
        if key.lower() not in _SPARKS_OWN
    }
    for key, value in kept.items():
        secret = is_secret(plain(key))
        if secret or (key == "schemaregistry" and "@" in value):
            remedy = f"name a file that holds it ({key}.file), or " if secret else ""
            raise ConfigError(
                f"a table keeps its options in the catalog, where {key} can be read: "
                f"{remedy}use CREATE TEMPORARY VIEW, which keeps nothing"
            )
    return kept


def _of_a_new_table(options: Mapping[str, str]) -> bool:
    """Whether Spark creates a table with these options, by OPTIONS or by TBLPROPERTIES."""
    keys = [key.lower() for key in options]
    return "provider" in keys or any(key.startswith(_OF_A_TABLE) for key in keys)


def options_to_write(kept: Mapping[str, str]) -> dict[str, str]:
    """Of a table's options, which are those of a read, what INSERT needs."""
    found = {k: v for k, v in kept.items() if k.startswith("kafka.") or k in _SINKS}
    topics = _names(kept.get("subscribe", ""))
    return {"topic": topics[0], **found} if len(topics) == 1 else found


def _only_where_they_apply(found: dict[str, str], *, streaming: bool) -> None:
    """As the connector: a stream refuses an end, a batch read warns of the limits of triggers."""
    for name in BATCHES_ONLY if streaming else ():
        if name in found:
            raise ConfigError(f"{name} is for batch reads; a stream has no end. Leave it out")
    for name in () if streaming else STREAMS_ONLY:
        if found.pop(name, None) is not None:
            log.warning("%s is for streams; this batch read ignores it", name)


def _check_begins_before_the_end(starting: Start) -> None:
    """Refuse a batch read that would be empty."""
    if starting == "latest" or LATEST in _offsets(starting):
        raise ConfigError(
            "startingOffsets=latest (-1) is for streams; a batch read of it would be empty"
        )


def _offsets(start: Start) -> set[int]:
    return {o for ps in start.values() for o in ps.values()} if isinstance(start, dict) else set()


def _check_settings(client: Mapping[str, str], role: type[ClientConfig]) -> None:
    """Refuse the first setting behind `kafka.` that no client knows; files are not opened."""
    names = set(role.field_names())
    bare = {key: value for key, value in client.items() if not plain(key).endswith("_file")}
    settings = in_our_words(bare, names)
    if role is not ConsumerConfig:  # a query that reads and writes hands both the same settings
        settings = known_to(role, settings)
    for key in settings:
        if plain(key) in names:
            continue
        dotted = key.replace("_", ".")
        if dotted in JAVAS_OWN:
            raise ConfigError(
                f"option kafka.{dotted} is of Java's clients: {JAVAS_OWN[dotted]}. Leave it out"
            )
        raise ConfigError(f"option kafka.{key}: {role.unknown(key)}")


def _behind_kafka(key: str) -> str | None:
    """A setting of the client that lacks its prefix, with it."""
    known = plain(key).removesuffix("_file") in ConsumerConfig.field_names()
    return f"kafka.{key}" if known else None


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Our options by their proper names, and what goes to the client."""
    found: dict[str, str] = {}
    client: dict[str, str] = {}
    for option, value in options.items():
        key = _ALIASES.get(option.lower(), option.lower())
        name = _BY_LOWER.get(key)
        if name == "kafka.bootstrap.servers":
            client["bootstrap.servers"] = value
        elif name is not None:
            found[name] = value
        elif key.startswith("kafka."):
            bare = key.removeprefix("kafka.")
            if bare in REFUSED:
                raise ConfigError(f"option {option} cannot be set: {REFUSED[bare]}")
            client[bare] = value
        elif not (key in _SPARKS_OWN or key in _NO_EFFECT or key.startswith(_OF_A_TABLE)):
            near = _BY_LOWER.get(nearest(key, _BY_LOWER) or "") or _behind_kafka(key)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"unknown option {option!r} of format kohort{hint}")
    if "bootstrap.servers" not in client:
        raise ConfigError("option kafka.bootstrap.servers is missing; for example localhost:9092")
    return found, client


def _only_one_subscription(found: Mapping[str, str]) -> None:
    subscriptions = [n for n in ("subscribe", "subscribePattern", "assign") if n in found]
    if len(subscriptions) != 1:
        which = " and ".join(subscriptions) if subscriptions else "none of them is given"
        raise ConfigError(f"give exactly one of subscribe, subscribePattern, assign ({which})")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))


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
    return _by_partition(text, name, EARLIEST, "an offset; -2 is earliest, -1 latest")


def _by_partition(text: str, name: str, low: int, kind: str) -> ByPartition:
    """A number of at least `low` for each partition, from JSON."""
    found: ByPartition = {}
    for topic, partitions in _json_object(text, name).items():
        if not isinstance(partitions, dict) or not partitions:
            raise ConfigError(f'{name}: write {{"topic": {{"0": 23}}}}, not {text!r}')
        found[topic] = {}
        for partition, number in cast(dict[str, Any], partitions).items():
            good = partition.isdigit() and isinstance(number, int) and not isinstance(number, bool)
            if not good or number < low:
                raise ConfigError(f"{name}: {topic}/{partition}: {number!r} is not {kind}")
            found[topic][int(partition)] = number
    return found


def _times(found: Mapping[str, str], of_all: str, of_each: str) -> Times | None:
    """One time for all partitions wins over one for each, as in the connector."""
    if of_all in found or of_each not in found:
        return _int(found, of_all, 0)
    return _by_partition(found[of_each], of_each, 0, "a time in milliseconds since the epoch")


def _latest_where_no_record(found: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    strategy = found.get(name, "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"{name}={found[name]!r}: error or latest")
    return strategy == "latest"


def _delay(found: Mapping[str, str], name: str, default: str | None = None) -> int | None:
    """A duration as Spark writes it: `15m`, `15min`, `900s`, `900000`."""
    text = found.get(name, default)
    if text is None:
        return None
    text = text.strip().lower()
    return int(text) if text.isdigit() else parse_duration_ms(text.replace("min", "m"))


def _priorities(text: str | None) -> dict[str, int]:
    found = {} if text is None else _json_object(text, "topicPriorities")
    if not all(isinstance(v, int) for v in found.values()):
        raise ConfigError(f'topicPriorities: write {{"TOPIC": 1}}, not {text!r}')
    return cast(dict[str, int], found)


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{name} is neither a word that is known nor a JSON object: {text!r}")
    return cast(dict[str, Any], value)


def _columns(text: str | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
    if text is None:
        return None
    wanted = set(_names(text))
    unknown = wanted - set(known)
    if unknown or not wanted:
        raise ConfigError(f"columns {text!r}: the columns are {', '.join(known)}")
    return tuple(c for c in known if c in wanted)


def _delays(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    found = _json_object(text, "retryDelaysMs")
    if not all(isinstance(v, int) and v >= 0 for v in found.values()):
        raise ConfigError(f"retryDelaysMs: write {{TOPIC: MILLISECONDS}}, not {text!r}")
    return cast(dict[str, int], found)


def _skew(found: Mapping[str, str]) -> int:
    skew = _int(found, "clockSkewMs", -MAX_MOVED_MS)
    return 1_000 if skew is None else skew


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
