"""The boundary to the user's code: records in, outcomes out.

Rules:
- Decoding happens inside the boundary: a value that does not decode is that record's permanent
  failure, its bytes untouched, and its handler is never called.
- Any error of a handler is classified and belongs to its record alone. The records it sent count
  only when it succeeds (W5).
- A batch handler that raises is run again on halves, until the record that raises is alone.
- Behind a failed record of a lane that must keep its order, no more records of that lane begin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import groupby
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast, overload

from kohort.client.common import arguments
from kohort.errors import UsageError
from kohort.processing.engine.engine import NOT_BEGUN, Done, Outcome
from kohort.processing.engine.items_choice import Shown, run_plain
from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import Item
from kohort.retry.classify import Classifier, Failure, stated
from kohort.retry.handling import Decode, Lookup, RecordView, decoder_of, not_decoded
from kohort.retry.handling import HandlerSpec as RowSpec
from kohort.retry.headers import Header
from kohort.retry.registering import refuse_returned
from kohort.retry.sql_statements import Effect

if TYPE_CHECKING:
    from kohort.serdes.basic import Serde

TIMED_OUT = "handler_timed_out"
Lookups = Callable[[], Lookup]


class Kind(StrEnum):
    """What a handler is called with, and how."""

    SYNC = "sync"
    ASYNC = "async"
    BATCH = "batch"
    ARROW = "arrow"


@dataclass(frozen=True)
class HandlerSpec:
    """One handler as it was registered.

    Args:
        topic: the source topic whose records it gets, from that topic's retry topics too; for
            topics that match a pattern, the pattern as text.
        function: the user's.
        decode: "json", "text", a function of the bytes, a `kohort.serdes` format, or None: `data`
            is the bytes.
        timeout_ms: how long one call may take; 0 for ever. Async handlers and processes only.
        max_batch: the most records of one call of a batch handler.
        rows: how what it returns becomes rows, when its results go into a store.
    """

    topic: str
    function: Callable[..., Any]
    kind: Kind = Kind.SYNC
    decode: Decode | Serde[Any] = None
    classifier: Classifier = field(default_factory=Classifier)
    timeout_ms: int = 0
    max_batch: int = 500
    rows: RowSpec | None = None

    def classify(self, error: Exception) -> Failure:
        """What an error of the handler means."""
        return self.classifier.classify(error)


class Received(Shown, RecordView):
    """One record as a handler sees it, and what is to be produced when it succeeds."""

    __slots__ = ()

    @property
    def store(self) -> Lookup:
        """What the results go into (`exactly_once="sqlite:///..."`), to be asked: `store.one(sql)`.

        Raises UsageError for an app without a store.
        """
        if self._lookups is None:
            raise UsageError('this app has no store; App(..., exactly_once="sqlite:///FILE.db")')
        return self._lookups()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Produce a record when the handler has succeeded; this one is done when that one is safe.

        Nothing is produced when the handler fails, so a retry produces nothing twice. Raises
        TypeError for a text where Kafka keeps bytes.
        """
        arguments.record(topic, value, key, partition, None, headers)
        if self.outputs is None:
            self.outputs = []
        self.outputs.append(Output(topic, value, key, partition, headers))


class ReceivedBatch(Sequence[Received]):
    """Records of one topic. Those that are not marked `retry` or `fail` are done.

    With a store, `load(index, row, ...)` says what is to be written for a record.
    """

    def __init__(self, records: Sequence[Received]) -> None:
        self._records = records
        self.failures: dict[int, Failure] = {}
        self.rows: dict[int, list[Any]] = {}

    @overload
    def __getitem__(self, index: int) -> Received: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Received]: ...
    def __getitem__(self, index: int | slice) -> Received | Sequence[Received]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def data(self) -> list[Any]:
        """The decoded values, in order."""
        return [record.data for record in self._records]

    def load(self, index: int, *rows: Any) -> None:
        """Rows or effects to be written with this record's offset; with a store only."""
        self.rows.setdefault(self._checked(index), []).extend(rows)

    def retry(self, index: int, reason: str, message: str = "", *, min_delay_ms: int = 0) -> None:
        """This record failed for now: on to its next try."""
        self.failures[self._checked(index)] = stated(
            reason, permanent=False, message=message, min_delay_ms=min_delay_ms
        )

    def fail(self, index: int, reason: str, message: str = "") -> None:
        """This record failed permanently: to the dead-letter topic."""
        self.failures[self._checked(index)] = stated(reason, permanent=True, message=message)

    def to_arrow(self) -> Any:
        """The records as a `pyarrow.RecordBatch`: topic, partition, offset, timestamp, key, value,
        attempt. Needs the extra `kohort[arrow]`.
        """
        import pyarrow as pa  # an extra

        rows = self._records
        arrow: Any = pa
        return arrow.record_batch(
            {
                "topic": arrow.array([r.topic for r in rows], arrow.string()),
                "partition": arrow.array([r.partition for r in rows], arrow.int32()),
                "offset": arrow.array([r.offset for r in rows], arrow.int64()),
                "timestamp": arrow.array([r.timestamp_ms for r in rows], arrow.timestamp("ms")),
                "key": arrow.array([r.key for r in rows], arrow.binary()),
                "value": arrow.array([r.value for r in rows], arrow.binary()),
                "attempt": arrow.array([r.attempt for r in rows], arrow.int32()),
            }
        )

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self._records):
            raise UsageError(f"there is no record {index}; the batch has {len(self._records)}")
        return index


class Invoker:
    """Runs the handlers of one app over what a worker took. Has no state but the handlers.

    `lookups` gives the calling thread's line to the store, when the app has one.
    """

    def __init__(self, specs: Mapping[str, HandlerSpec], lookups: Lookups | None = None) -> None:
        self._lookups = lookups
        self.specs = dict(specs)
        """By `Route.handler`."""
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        """By source topic: formats of `kohort.serdes` need it."""
        kinds = {spec.kind for spec in specs.values()} - {Kind.ASYNC}
        self._mixed = Kind.SYNC in kinds and len(kinds) > 1

    def run(self, items: Sequence[Item]) -> list[Outcome] | None:
        """All of them, in order, on this thread; None when every one succeeded."""
        if self._mixed:
            return self._run_mixed(items)
        return self._run_batches(items) if self._in_batches(items[0]) else self._run_singly(items)

    def _in_batches(self, item: Item) -> bool:
        return self.specs[item.partition.route.handler].kind is not Kind.SYNC

    def _run_mixed(self, items: Sequence[Item]) -> list[Outcome] | None:
        """Records for handlers of one record and of batches: neighbours that are alike at once."""
        merged, failed = all_done(items), set[Hashable]()
        for batches, neighbours in groupby(
            range(len(items)), lambda at: self._in_batches(items[at])
        ):
            begun: list[int] = []
            for index in neighbours:
                if items[index].lane in failed:
                    merged[index] = NOT_BEGUN
                else:
                    begun.append(index)
            chosen = [items[index] for index in begun]
            run = self._run_batches if batches else self._run_singly
            outcomes = (run(chosen) if chosen else None) or all_done(chosen)
            for index, outcome in zip(begun, outcomes, strict=True):
                merged[index] = outcome
                note_lane(items[index], outcome, failed)
        return merged if any(outcome is not None for outcome in merged) else None

    def _run_singly(self, items: Sequence[Item]) -> list[Outcome] | None:
        outcomes: list[Outcome] | None = None
        failed: set[Hashable] = set()
        index = 0
        while index < len(items):
            item = items[index]
            spec = self.specs[item.partition.route.handler]
            if failed and item.lane in failed:
                outcome: Outcome = NOT_BEGUN
            elif failed or spec.decode is not None or spec.rows is not None:
                outcome = self._run_one(spec, item)
            else:
                index, shown, error = run_plain(
                    items, index, spec.function, Received, self._lookups
                )
                if shown is None:
                    continue
                item = items[index]
                outcome = done(spec, shown, None) if error is None else spec.classify(error)
            if outcome is not None:
                outcomes = outcomes or all_done(items)
                outcomes[index] = outcome
                note_lane(item, outcome, failed)
            index += 1
        return outcomes

    def _run_one(self, spec: HandlerSpec, item: Item) -> Outcome:
        received = self.received(spec, item)
        if isinstance(received, Failure):
            return received
        try:
            returned = spec.function(received)
        except Exception as error:  # the handler is the user's, and may raise anything
            return spec.classify(error)
        return done(spec, received, returned)

    def received(self, spec: HandlerSpec, item: Item) -> Received | Failure:
        """A record as its handler is to see it, or why it does not decode."""
        value = item.record.value
        if spec.decode is not None and value is not None:
            try:
                value = self._decoder(spec, item.partition.route.topic)(value)
            except Exception as error:  # the decoder is the user's, and may raise anything
                return not_decoded(error)
        return Received(item.record, item.attempt, self._lookups, value)

    def _decoder(self, spec: HandlerSpec, topic: str) -> Callable[[bytes], Any]:
        decode = self._decoders.get(topic)
        if decode is None:
            serde = serde_of(spec.decode)
            decode = self._decoders[topic] = (
                decoder_of(cast(Any, spec.decode))
                if serde is None
                else partial(serde.deserialize, topic)
            )
        return decode

    def undecoded(self, item: Item) -> Received:
        """A record as a handler without `decode` is to see it."""
        return Received(item.record, item.attempt, self._lookups, item.record.value)

    def decoding_waits(self, spec: HandlerSpec, item: Item) -> bool:
        """Whether `received` would have to ask a service first, such as a schema registry."""
        value, serde = item.record.value, serde_of(spec.decode)
        return serde is not None and value is not None and serde.waits_for(value)

    def _run_batches(self, items: Sequence[Item]) -> list[Outcome] | None:
        """Calls of neighbours of one topic, at most `max_batch` at once."""
        outcomes: list[Outcome] = []
        failed: set[Hashable] = set()
        start = 0
        while start < len(items):
            route = items[start].partition.route
            spec, end = self.specs[route.handler], start + 1
            while (
                end < len(items)
                and end - start < spec.max_batch
                and items[end].partition.route.topic == route.topic
            ):
                end += 1
            outcomes += self._run_batch(spec, items[start:end], failed)
            start = end
        return outcomes if any(outcome is not None for outcome in outcomes) else None

    def _run_batch(
        self, spec: HandlerSpec, items: Sequence[Item], failed: set[Hashable]
    ) -> list[Outcome]:
        """One call, without what is behind a failed record of its lane; notes who fails now."""
        outcomes: list[Outcome] = [NOT_BEGUN for _ in items]
        begun: list[tuple[int, Received]] = []
        held = set(failed)
        for index, item in enumerate(items):
            if held and item.lane in held:
                continue
            received = self.received(spec, item)
            if isinstance(received, Failure):
                outcomes[index] = received
                note_lane(item, received, held)
            else:
                begun.append((index, received))
        if begun:
            _BatchRun(spec, items, outcomes).call(begun)
        _hold_back(items, outcomes, failed)
        return outcomes


@dataclass(frozen=True, slots=True)
class _BatchRun:
    """The calls of a batch handler for one list of records.

    Args:
        outcomes: by record; those of the records that are called are filled in.
    """

    spec: HandlerSpec
    items: Sequence[Item]
    outcomes: list[Outcome]

    def call(self, begun: Sequence[tuple[int, Received]]) -> None:
        """Call the handler with records, which come with their index; in halves when it raises."""
        spec, returned = self.spec, None
        batch = ReceivedBatch([received for _, received in begun])
        try:
            if spec.kind is Kind.ARROW:
                _mark(batch, spec.function(batch.to_arrow()))
            else:
                returned = spec.function(batch)
        except Exception as error:  # the handler is the user's, and may raise anything
            if len(begun) == 1:
                self.outcomes[begun[0][0]] = spec.classify(error)
            else:
                self._call_halves(begun)
            return
        if returned is not None:
            instead = "Call batch.load(i, row)" if spec.rows is not None else ""
            refuse_returned(spec.topic, returned, instead=instead)
        failures, rows = batch.failures, batch.rows
        for at, (index, received) in enumerate(begun):
            self.outcomes[index] = failures.get(at) or done(spec, received, rows.get(at))

    def _call_halves(self, begun: Sequence[tuple[int, Received]]) -> None:
        """Two calls; what is behind a failure of the first is not in the second."""
        for _, received in begun:
            received.outputs = None  # what a failed call sent does not count
        half = len(begun) // 2
        self.call(begun[:half])
        failed: set[Hashable] = set()
        for index, _ in begun[:half]:
            note_lane(self.items[index], self.outcomes[index], failed)
        if second := [each for each in begun[half:] if self.items[each[0]].lane not in failed]:
            self.call(second)


def done(spec: HandlerSpec, received: Received, returned: Any) -> Outcome:
    """The outcome of a call that did not raise.

    Raises:
        UsageError: it returned what can be no row, or a value that is not used.
    """
    effects: Sequence[Effect] = ()
    if returned is not None and (spec.rows is None or isinstance(returned, CoroutineType)):
        refuse_returned(spec.topic, cast("object", returned))
    if spec.rows is not None:
        effects = spec.rows.effects(returned, received)
    if received.outputs is None and not effects:
        return None
    return Done(received.outputs or (), effects)


def _mark(batch: ReceivedBatch, returned: Any) -> None:
    """What an Arrow handler returned: None, or for each row None (done) or a reason to retry."""
    if returned is None:
        return
    reasons: list[Any] = returned.to_pylist() if hasattr(returned, "to_pylist") else list(returned)
    if len(reasons) != len(batch):
        raise UsageError(
            f"the Arrow handler returned {len(reasons)} outcomes for {len(batch)} rows; return "
            "None when all are done, else for each row None (done), a failure's reason (retry), "
            "or an exception"
        )
    for index, reason in enumerate(reasons):
        if isinstance(reason, Exception):
            batch.failures[index] = Classifier().classify(reason)
        elif reason is not None and reason is not True:
            batch.retry(index, "failed" if reason is False else str(reason))


def serde_of(decode: Decode | Serde[Any]) -> Serde[Any] | None:
    """The format of `kohort.serdes` that a handler was registered with, if it is one."""
    return None if decode is None or isinstance(decode, str) or callable(decode) else decode


def all_done(items: Sequence[Item]) -> list[Outcome]:
    """An outcome for each record: done."""
    return [None for _ in items]


def note_lane(item: Item, outcome: Outcome, failed: set[Hashable]) -> None:
    """Remember a lane that must not continue behind this failure."""
    if isinstance(outcome, Failure) and item.lane is not None and item.partition.route.stops_lane:
        failed.add(item.lane)


def _hold_back(items: Sequence[Item], outcomes: list[Outcome], failed: set[Hashable]) -> None:
    """A batch has run as a whole: what succeeded behind a failure of its lane stays done, and what
    failed behind it has not begun."""
    for index, (item, outcome) in enumerate(zip(items, outcomes, strict=True)):
        if isinstance(outcome, Failure) and item.lane is not None and item.lane in failed:
            outcomes[index] = NOT_BEGUN
        note_lane(item, outcome, failed)
