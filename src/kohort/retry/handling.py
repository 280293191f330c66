"""The boundary to the user's code: records in, effects or failures out.

Shell: the threads of a handler that has several (`threads`), for one call at a time.

Rules:
- With `threads`, records of different keys are handled at once and those of one key in their order,
  each after the one before it has ended. Outcomes are in the order of the records either way.
- Decoding happens inside the boundary: a value that does not decode is that record's permanent
  failure (`deserialize`), its bytes untouched, and its handler is never called.
- A handler computes; it does not write. It may look things up (`store.query`), and it may be called
  again for the same record, since a transaction can be retried.
- A batch handler must decide about every record. When it raises, the batch is halved until the
  record that raised is alone: one bad record never fails its neighbours.
- Errors of the store itself are not the record's: they end the task, which is retried.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from kohort.errors import KohortError, StorageError, UsageError
from kohort.records import Record as Fetched
from kohort.retry.classify import Classifier, Disposition, Failure, Permanent, describe, stated
from kohort.retry.copies import UNDECODABLE, Attempt
from kohort.retry.headers import Header, Origin
from kohort.retry.sql_statements import Effect, Execute, Insert, Params, Upsert, statements
from kohort.retry.store import ConstraintError, Store, StoreBusyError

Decoder = Callable[[bytes], Any]
Decode = Literal["json", "text"] | Decoder | None
Outcome = Sequence[Effect] | Failure
UNANSWERED = "decoder_unanswered"
"""Reason of a value that does not decode because a schema registry did not answer."""
UNDIRECTED = "replay_effect"
"""Reason of a record whose handler names a table itself, in a replay into other tables."""
_EFFECTS = (Insert, Upsert, Execute)


class RecordView:
    """One record as a handler sees it; a retried record shows its original position.

    Attributes:
        topic, partition, offset: the original position, also when the record is retried.
        timestamp_ms: its first timestamp, milliseconds since the epoch.
        key, value: the bytes as they were produced; None for null.
        data: the decoded value (see `decode` of the handler), else the bytes.
        attempt: 0 for the first try, 1 for the first retry, and so on.
        headers: pairs of name and bytes, ours included when it is a retry.
    """

    __slots__ = ()

    _source: Any
    """The attempt, or the record of a source topic as it was fetched."""
    _attempt: Attempt | None
    """None for a record of a source topic, which is at its original position."""
    data: Any

    @property
    def topic(self) -> str:
        attempt = self._attempt
        return self._source.topic if attempt is None else attempt.origin.topic

    @property
    def partition(self) -> int:
        attempt = self._attempt
        return self._source.partition if attempt is None else attempt.origin.partition

    @property
    def offset(self) -> int:
        attempt = self._attempt
        return self._source.offset if attempt is None else attempt.origin.offset

    @property
    def timestamp_ms(self) -> int:
        attempt = self._attempt
        return self._source.timestamp if attempt is None else attempt.origin.timestamp_ms

    @property
    def key(self) -> bytes | None:
        return self._source.key

    @property
    def value(self) -> bytes | None:
        return self._source.value

    @property
    def headers(self) -> Sequence[Header]:
        return self._source.headers

    @property
    def attempt(self) -> int:
        return 0 if self._attempt is None else self._attempt.number

    @property
    def id(self) -> str:
        """`TOPIC/PARTITION/OFFSET` of the first place: an idempotency key for other systems."""
        source = self._source
        if self._attempt is not None:
            return self._attempt.origin.retry_id
        return Origin(source.topic, source.partition, source.offset, source.timestamp).retry_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, attempt={self.attempt})"


class Record(RecordView):
    """What a handler of a pipeline gets."""

    __slots__ = ("_attempt", "_source", "data")

    def __init__(self, source: Attempt | Fetched, attempt: Attempt | None, data: Any) -> None:
        self._source = source
        self._attempt = attempt
        self.data = data


class Lookup:
    """What a handler may ask of the store: committed rows, and a cache for reference tables.

    Handlers in several threads ask one after another.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asking = threading.Lock()
        self.cache: dict[str, Any] = {}
        """A place for a handler's own data; lives as long as the task, then starts empty."""

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT; `?` marks parameters in every database."""
        try:
            with self._asking:
                return self._store.query(sql, params)
        except (StoreBusyError, ConstraintError):
            raise
        except KohortError:
            raise
        except Exception as error:  # any error of the database: the query is at fault
            raise StorageError(f"the handler's query failed: {error}: {sql[:200]}") from error

    def one(self, sql: str, params: Params = ()) -> tuple[Any, ...] | None:
        """The first row of a SELECT, or None."""
        rows = self.query(sql, params)
        return rows[0] if rows else None


class SetupStore(Lookup):
    """What a setup function gets: it may create tables and fill them, before anything starts."""

    def run(self, sql: str, params: Params = ()) -> None:
        """One statement in a transaction of its own; `?` marks parameters."""
        self._store.execute(statements([Execute(sql, params)]))

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows in one transaction."""
        self._store.execute(statements(Insert(table, row) for row in rows))

    def upsert(self, table: str, rows: Iterable[Mapping[str, Any]], key: tuple[str, ...]) -> None:
        """Insert rows, or replace those with the same key, in one transaction."""
        self._store.execute(statements(Upsert(table, row, key) for row in rows))


def set_up(store: Store, functions: Iterable[Callable[[SetupStore], object]]) -> None:
    """Make the store's own tables, then call the user's setup functions."""
    with store.setting_up():
        store.prepare()
        for function in functions:
            function(SetupStore(store))


class Batch:
    """Records of one partition, each to be decided by `load`, `retry`, `fail` or `skip`."""

    def __init__(self, records: Sequence[Record], spec: HandlerSpec) -> None:
        self.records = records
        self._spec = spec
        self._outcomes: list[Outcome | None] = [None] * len(records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def data(self) -> list[Any]:
        """The decoded values, in order."""
        return [r.data for r in self.records]

    def load(self, index: int, *rows: Mapping[str, Any] | Effect) -> None:
        """The record is to be written: rows of the handler's table, or effects."""
        self._outcomes[index] = self._spec.effects(rows, self.records[index])

    def skip(self, index: int) -> None:
        """The record is done and nothing is written for it."""
        self._outcomes[index] = ()

    def retry(self, index: int, reason: str, message: str = "", *, min_delay_ms: int = 0) -> None:
        """A temporary failure: on to the next retry topic."""
        self._outcomes[index] = stated(
            reason, permanent=False, message=message, min_delay_ms=min_delay_ms
        )

    def fail(self, index: int, reason: str, message: str = "") -> None:
        """A permanent failure: to the dead-letter topic."""
        self._outcomes[index] = stated(reason, permanent=True, message=message)

    def decided(self) -> list[Outcome]:
        """All outcomes. Raises UsageError naming the first record without one."""
        for index, outcome in enumerate(self._outcomes):
            if outcome is None:
                raise UsageError(
                    f"the batch handler of {self._spec.topic} decided nothing about "
                    f"{self.records[index]!r}; call load, retry, fail or skip for every record"
                )
        return cast(list[Outcome], self._outcomes)


@dataclass(frozen=True)
class HandlerSpec:
    """One handler as it was registered.

    Args:
        topic: the source topic whose records it gets (also from that topic's retry topics).
        function: `f(record, store)` or, with `batch`, `f(batch, store)`.
        table: where plain rows go; None when the handler returns effects only.
        key: columns by which a row replaces another; empty inserts.
        origin: two columns of `table` that get the record's first partition and offset; with them
            a reconciliation can tell each input apart.
        decode: "json", "text", a function of the bytes, or None for the bytes themselves.
        only_table: refuse effects, which name their tables themselves.
        threads: records of so many keys are handled at once; not with `batch`.
    """

    topic: str
    function: Callable[[Any, Lookup], Any]
    batch: bool = False
    table: str | None = None
    key: tuple[str, ...] = ()
    origin: tuple[str, str] | None = None
    decode: Decode = "json"
    classifier: Classifier = field(default_factory=Classifier)
    only_table: bool = False
    threads: int = 1

    def effects(self, returned: Any, record: RecordView) -> Sequence[Effect]:
        """What a handler returned for a record: None, a row, an effect, or several of them."""
        if returned is None:
            return ()
        if isinstance(returned, dict):  # the common case first: a Mapping is slow to tell
            return (self._row(cast(dict[str, Any], returned), record),)
        if isinstance(returned, _EFFECTS):
            if self.only_table:
                raise Permanent(
                    UNDIRECTED,
                    f"the handler of {self.topic} returned {type(returned).__name__}, which names "
                    "a table itself: a replay cannot send it to a shadow table. Return rows",
                )
            return (returned,)
        if isinstance(returned, Mapping):
            return (self._row(cast(Mapping[str, Any], returned), record),)
        if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
            raise UsageError(
                f"the handler of {self.topic} returned {type(returned).__name__}; return None, a "
                "row (a dict), an effect (Insert, Upsert, Execute), or a list of them"
            )
        effects: list[Effect] = []
        for part in cast(Iterable[Any], returned):
            if isinstance(part, dict | Mapping):
                effects.append(self._row(cast(Mapping[str, Any], part), record))
            else:
                effects += self.effects(part, record)
        return effects

    def _row(self, row: Mapping[str, Any], record: RecordView) -> Effect:
        if self.table is None:
            raise UsageError(
                f"the handler of {self.topic} returned a row, but names no table; register it with "
                "table=..., or return Insert(table, row)"
            )
        if self.origin is not None:
            partition, offset = self.origin
            row = {**row, partition: record.partition, offset: record.offset}
        return Upsert(self.table, row, self.key) if self.key else Insert(self.table, row)


class Handlers:
    """All handlers of a pipeline, as the `Handler` of `kohort.retry.fenced`."""

    def __init__(self, specs: Iterable[HandlerSpec]) -> None:
        self._specs = {spec.topic: spec for spec in specs}
        self._lookup: Lookup | None = None

    def __call__(
        self,
        base: str,
        attempts: Sequence[Attempt] | Sequence[Fetched],
        store: Store,
        handling: Callable[[int, int], None] | None = None,
    ) -> list[Outcome]:
        """Decode and run: one outcome for each record, in order.

        Args:
            handling: called before each call of a function, with the indices of the first and the
                last record that it gets.
        """
        if self._lookup is None:
            self._lookup = Lookup(store)
        spec = self._specs[base]
        decoded = decode_all(spec.decode, [a.value for a in attempts])
        bad = {i: data.failure for i, data in enumerate(decoded) if isinstance(data, Undecodable)}
        if not bad:  # nearly always
            return _run(spec, _records(attempts, decoded), self._lookup, handling)
        good = [i for i in range(len(attempts)) if i not in bad]
        readable: Any = [attempts[i] for i in good]
        note = None if handling is None else _by_index(handling, good)
        records = _records(readable, [decoded[i] for i in good])
        outcomes: dict[int, Outcome] = {**bad}
        outcomes |= zip(good, _run(spec, records, self._lookup, note), strict=True)
        return [outcomes[i] for i in range(len(attempts))]


def _records(attempts: Sequence[Attempt] | Sequence[Fetched], data: Sequence[Any]) -> list[Record]:
    """What a handler gets. Attempts of a retry topic and records of a source topic never mix."""
    if attempts and isinstance(attempts[0], Attempt):
        tried = cast(Sequence[Attempt], attempts)
        return [Record(one, one, value) for one, value in zip(tried, data, strict=True)]
    return [Record(one, None, value) for one, value in zip(attempts, data, strict=True)]


@dataclass(frozen=True, slots=True)
class Undecodable:
    """The place of a value that did not decode."""

    failure: Failure


def decode_all(decode: Decode, values: Sequence[bytes | None]) -> list[Any]:
    """Each value decoded; None stays None (a tombstone), a bad one becomes Undecodable."""
    if decode is None:
        return list(values)
    function: Decoder = decoder_of(decode)
    decoded: list[Any] = []
    for value in values:
        try:
            decoded.append(None if value is None else function(value))
        except Exception as error:  # the decoder is the user's, and may raise anything
            decoded.append(Undecodable(not_decoded(error)))
    return decoded


def not_decoded(error: Exception) -> Failure:
    """Why a value does not decode: permanently, unless a schema registry was not available."""
    if isinstance(error, KohortError) and error.retriable:
        return describe(error, permanent=False, reason=UNANSWERED)
    return describe(error, permanent=True, reason=UNDECODABLE, disposition=Disposition.DESERIALIZE)


Note = Callable[[int, int], None] | None


def _by_index(handling: Callable[[int, int], None], indices: Sequence[int]) -> Note:
    """The indices of what decoded as those of what was asked for."""
    return lambda first, last: handling(indices[first], indices[last])


def _run(spec: HandlerSpec, records: Sequence[Record], lookup: Lookup, note: Note) -> list[Outcome]:
    """One outcome for each record, in order."""
    run = _run_batch if spec.batch else _run_by_key if spec.threads > 1 else _run_each
    return run(spec, records, lookup, note)


def _run_each(
    spec: HandlerSpec, records: Sequence[Record], lookup: Lookup, note: Note
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    function, effects, classify = spec.function, spec.effects, spec.classifier.classify
    for index, record in enumerate(records):
        if note is not None:
            note(index, index)
        try:
            outcomes.append(effects(function(record, lookup), record))
        except (StorageError, UsageError):
            raise
        except Exception as error:  # the handler is the user's, and may raise anything
            outcomes.append(classify(error))
    return outcomes


def _run_by_key(
    spec: HandlerSpec, records: Sequence[Record], lookup: Lookup, note: Note
) -> list[Outcome]:
    """As `_run_each`, over several keys at once. Raises what the first of the threads raised."""
    if not records:
        return []
    if note is not None:
        note(0, len(records) - 1)
    by_thread: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        thread = index if record.key is None else hash(record.key)
        by_thread.setdefault(thread % spec.threads, []).append(index)
    outcomes: list[Outcome] = [()] * len(records)

    def run(indices: list[int]) -> None:
        handled = _run_each(spec, [records[index] for index in indices], lookup, None)
        for index, outcome in zip(indices, handled, strict=True):
            outcomes[index] = outcome

    with ThreadPoolExecutor(len(by_thread), "kohort-handler") as pool:
        for running in [pool.submit(run, indices) for indices in by_thread.values()]:
            running.result()
    return outcomes


def _run_batch(
    spec: HandlerSpec, records: Sequence[Record], lookup: Lookup, note: Note, first: int = 0
) -> list[Outcome]:
    if not records:
        return []
    batch = Batch(records, spec)
    if note is not None:
        note(first, first + len(records) - 1)
    try:
        spec.function(batch, lookup)
    except (StorageError, UsageError):
        raise
    except Exception as error:  # the handler is the user's, and may raise anything
        if len(records) == 1:
            return [spec.classifier.classify(error)]
        half = len(records) // 2
        lower = _run_batch(spec, records[:half], lookup, note, first)
        return lower + _run_batch(spec, records[half:], lookup, note, first + half)
    return batch.decided()


def decoder_of(decode: Literal["json", "text"] | Decoder) -> Decoder:
    """The function that decodes one value."""
    if decode == "json":
        return _json_loads()
    if decode == "text":
        return _text
    return decode


def _text(value: bytes) -> str:
    return value.decode()


def _json_loads() -> Callable[[bytes], Any]:
    """The standard library's values and errors, from msgspec where it is installed: six times as
    fast. What it refuses (NaN, other encodings than UTF-8) is asked of the standard library."""
    try:
        msgspec: Any = importlib.import_module("msgspec")
    except ImportError:
        return json.loads
    fast: Callable[[bytes], Any] = msgspec.json.Decoder().decode

    def loads(value: bytes) -> Any:
        try:
            return fast(value)
        except Exception:  # any error: the standard library decides and explains
            return json.loads(value)

    return loads
