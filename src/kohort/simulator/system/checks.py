"""What must hold of a simulated system when all faults have ended; each check has a code.

SY1  An acknowledged record is in its log once, at the offset that its producer was answered.
SY2  A record of unknown fate is in its log at most once.
SY3  Records of one producer are in each partition in the order in which they were sent.
SY4  read_committed shows a committed transaction whole and an aborted one not at all; one of
     unknown fate whole or not at all.
SY5  No transaction stays open: read_committed readers reach the end of every log.
SY6  Exactly-once copies: each input is in the output once, and nothing else is.
SY7  A consumer reads what the log holds at that offset, and with read_committed no aborted record.
SY8  A committed offset never moves back, and a member of the group has read all below it.
SY9  Compaction keeps the latest acknowledged value of every key.
SY10 When faults have ended, every program comes to its end.
SY11 An app handles each input until it succeeds, or dead-letters it; nothing else is dead-lettered.
SY12 No retry begins before its delay has passed.
SY13 With a store, each input is in it exactly once, or in its ledger as failed.
SY14, SY15: `retention_checks`; SY16: `redrives`; SY17: `remade_checks`; SY18: `model`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kohort.client.common.types import TopicPartition
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system.apps import BOOKERS, DELAYS_MS, HANDLERS, is_dead
from kohort.simulator.system.history import Fate, History, Sent
from kohort.simulator.system.model import check_offsets
from kohort.simulator.system.programs import INPUT, LEDGER, OUTPUT, READERS, TABLE
from kohort.simulator.system.redrives import Redriven, check_redrives
from kohort.simulator.system.remade import PLACE, REMADE
from kohort.simulator.system.remade_checks import check_remade
from kohort.simulator.system.retained import Window
from kohort.simulator.system.retention_checks import check_retention


@dataclass(frozen=True)
class Stored:
    """One record as a reader finds it at the end."""

    offset: int
    key: bytes | None
    value: bytes | None


Logs = Mapping[TopicPartition, list[Stored]]


@dataclass(frozen=True)
class Handled:
    """What apps have left behind.

    Args:
        kinds: which apps the plan has.
        rows: of the store: value, partition, offset.
        failed: partition and offset of what the ledger knows as failed.
        dead: the values in the dead-letter topic, by group.
    """

    kinds: frozenset[str] = frozenset()
    rows: tuple[tuple[str, int, int], ...] = ()
    failed: frozenset[tuple[int, int]] = frozenset()
    dead: Mapping[str, frozenset[bytes]] = field(default_factory=dict[str, frozenset[bytes]])


@dataclass(frozen=True)
class Final:
    """The logs at the end: all records, and those that read_committed shows."""

    everything: Logs
    committed: Logs
    offsets: Mapping[TopicPartition, int]
    """What the readers' group has committed."""
    apps: Handled = field(default_factory=lambda: Handled())
    windows: Mapping[TopicPartition, Window] = field(default_factory=dict[TopicPartition, Window])
    lost_power: bool = False
    redriven: Redriven = field(default_factory=lambda: Redriven())
    at_ms: int = 0
    groups: Mapping[str, Mapping[TopicPartition, int | None]] = field(
        default_factory=dict[str, Mapping[TopicPartition, int | None]]
    )
    """What each group has committed."""
    kinds: frozenset[str] = frozenset()
    """Of the plan's programs."""


def check(history: History, final: Final) -> None:
    """Raise the first Violation."""
    _acknowledged(history, final)
    _in_order(history, final)
    _transactions(history, final)
    _copies(final)
    _seen(history, final)
    _commits(history, final)
    _compacted(history, final)
    _handled(history, final)
    _in_time(history)
    _booked(final)
    check_redrives(history, final.redriven)
    check_retention(history, final.windows, lost_power=final.lost_power)
    stored = {r.offset: r.value or b"" for r in final.everything.get(PLACE, ())}
    check_remade(history, stored, final.at_ms)
    check_offsets(history, final.groups)


def _places(logs: Logs) -> dict[bytes, list[tuple[TopicPartition, int]]]:
    places: dict[bytes, list[tuple[TopicPartition, int]]] = defaultdict(list)
    for partition, records in logs.items():
        for record in records:
            places[record.value or b""].append((partition, record.offset))
    return places


def _acknowledged(history: History, final: Final) -> None:
    places = _places(final.everything)
    for sent in history.sent:
        if sent.partition.topic in {TABLE, REMADE}:
            continue
        stored = places.get(sent.value, [])
        window = final.windows.get(sent.partition)
        is_deleted = window is not None and sent.offset < window.start
        acknowledged = [] if is_deleted else [(sent.partition, sent.offset)]
        if sent.fate is Fate.DONE and stored != acknowledged:
            raise Violation(
                "SY1",
                f"{sent.value!r} was acknowledged at {_place(sent.partition, sent.offset)}"
                f"{', which is deleted' if is_deleted else ''}; "
                f"it is at {[_place(*at) for at in stored] or 'no place'}",
            )
        if len(stored) > 1:
            text = ", ".join(_place(*at) for at in stored)
            raise Violation("SY2", f"{sent.value!r} was sent once and is stored at {text}")


def _in_order(history: History, final: Final) -> None:
    offsets = {value: at[0][1] for value, at in _places(final.everything).items()}
    last: dict[tuple[str, TopicPartition], tuple[int, Sent]] = {}
    for sent in history.sent:
        offset = offsets.get(sent.value)
        if offset is None or sent.partition.topic == TABLE:
            continue
        key = sent.producer, sent.partition
        before = last.get(key)
        if before is not None and before[0] > offset:
            raise Violation(
                "SY3",
                f"{sent.producer} sent {before[1].value!r} before {sent.value!r}; in "
                f"{_place(sent.partition, offset)} they are the other way round",
            )
        last[key] = offset, sent


def _transactions(history: History, final: Final) -> None:
    visible = set(_places(final.committed))
    members: dict[int, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        if sent.transaction is None:
            continue
        if sent.partition.topic == REMADE:
            continue  # it may be deleted meanwhile
        if sent.partition.topic != TABLE:  # of which later values may have been enough
            members[sent.transaction].append(sent)
        elif sent.value in visible and history.transactions[sent.transaction].fate is Fate.REFUSED:
            raise Violation("SY4", f"{sent.value!r} was aborted and is visible to read_committed")
    for index, records in members.items():
        transaction = history.transactions[index]
        shown = sum(sent.value in visible for sent in records)
        allowed = {
            Fate.DONE: {len(records)},
            Fate.REFUSED: {0},
            Fate.UNKNOWN: {0, len(records)},
        }[transaction.fate]
        # An unsent record of an unknown transaction is not part of it: the producer died first.
        if transaction.fate is Fate.UNKNOWN:
            allowed = {0, *_whole(records, visible)}
        if shown not in allowed:
            raise Violation(
                "SY4",
                f"transaction {index} of {transaction.producer} ({transaction.fate}): "
                f"{shown} of {len(records)} records are visible to read_committed",
            )


def _whole(records: list[Sent], visible: set[bytes]) -> Iterator[int]:
    """How many records of a transaction of unknown fate may be visible: a commit comes after all
    were acknowledged, so either all are, or the producer never asked for it."""
    if all(sent.value in visible for sent in records):
        yield len(records)


def _copies(final: Final) -> None:
    inputs = Counter(
        f"{partition.partition}:{record.offset}:".encode() + (record.value or b"")
        for partition, records in final.committed.items()
        if partition.topic == INPUT
        for record in records
    )
    outputs = Counter(
        record.value or b""
        for partition, records in final.committed.items()
        if partition.topic == OUTPUT
        for record in records
    )
    for value, count in (outputs - inputs).items():
        raise Violation("SY6", f"{value!r} is in the output {count} times too often")
    for value in inputs - outputs if "move" in final.kinds else ():
        raise Violation("SY6", f"{value!r} is in the input and not in the output")


def _seen(history: History, final: Final) -> None:
    everything = {p: {r.offset: r.value for r in rs} for p, rs in final.everything.items()}
    committed = {p: {r.offset for r in rs} for p, rs in final.committed.items()}
    for seen in history.seen:
        stored = everything[seen.partition].get(seen.offset)
        if stored != seen.value:
            raise Violation(
                "SY7",
                f"{seen.consumer} was given {seen.value!r} at "
                f"{_place(seen.partition, seen.offset)}; the log has {stored!r}",
            )
        if seen.committed_only and seen.offset not in committed[seen.partition]:
            raise Violation(
                "SY7",
                f"{seen.consumer} reads committed and was given {seen.value!r} of an aborted "
                f"transaction at {_place(seen.partition, seen.offset)}",
            )


def _commits(history: History, final: Final) -> None:
    for member, partition, offset, floor in history.again:
        raise Violation(
            "SY8",
            f"{member} got {partition.topic}-{partition.partition} after the commit of {floor} was "
            f"acknowledged, and was given offset {offset}",
        )
    committed: dict[TopicPartition, set[int]] = defaultdict(set)
    for seen in history.seen:
        committed[seen.partition].add(seen.offset)
    for (group, partition), offset in history.commits.items():
        if group != READERS:
            continue
        now = final.offsets.get(partition, 0)
        if now < offset:
            raise Violation(
                "SY8",
                f"the commit of {_place(partition, offset)} by group {group} was acknowledged; now "
                f"it is {now}",
            )
        if partition.topic in {INPUT, LEDGER}:
            missed = [
                record.offset
                for record in final.committed[partition]
                if record.offset < now and record.offset not in committed[partition]
            ]
            if missed:
                raise Violation(
                    "SY8",
                    f"group {group} committed {_place(partition, now)} and was never given "
                    f"offset {missed[0]}",
                )


def _compacted(history: History, final: Final) -> None:
    """Compares offsets: of two processes with one transactional id the one that was started later
    may begin first, and then the values of the key do not rise.
    """
    latest: dict[bytes, Stored] = {}
    for partition, records in final.committed.items():
        if partition.topic == TABLE:
            latest.update((record.key or b"", record) for record in records)
    known: dict[bytes, Sent] = {}
    for sent in history.sent:
        decided = sent if sent.transaction is None else history.transactions[sent.transaction]
        if sent.partition.topic == TABLE and decided.fate is Fate.DONE:
            key = sent.key or b""
            if key not in known or known[key].offset < sent.offset:
                known[key] = sent
    for key, sent in known.items():
        found = latest.get(key)
        if found is None or found.offset < sent.offset:
            raise Violation(
                "SY9",
                f"key {key!r}: {sent.value!r} was acknowledged; the latest value is "
                f"{None if found is None else found.value!r}",
            )


def _inputs(final: Final) -> Iterator[tuple[TopicPartition, Stored]]:
    for partition, records in final.committed.items():
        if partition.topic == INPUT:
            yield from ((partition, record) for record in records)


def _handled(history: History, final: Final) -> None:
    if "handle" not in final.apps.kinds:
        return
    succeeded = {a.value for a in history.attempts if a.group == HANDLERS and a.succeeded}
    dead = final.apps.dead.get(HANDLERS, frozenset())
    for partition, record in _inputs(final):
        value = record.value or b""
        if is_dead(value):
            if value not in dead:
                what = "never succeeds and is not in the dead-letter topic"
                raise Violation("SY11", f"{_place(partition, record.offset)} {value!r} {what}")
        elif value not in succeeded:
            what = "was never handled to its end"
            raise Violation("SY11", f"{_place(partition, record.offset)} {value!r} {what}")
    for value in final.redriven.sent:
        if value not in (dead if is_dead(value) else succeeded):
            raise Violation("SY11", f"{value!r} was redriven, and has come to no end")
    for value in dead:
        if not is_dead(value):
            raise Violation("SY11", f"{value!r} would have succeeded and is a dead letter")


def _in_time(history: History) -> None:
    first: dict[tuple[str, TopicPartition, int, bytes, int], int] = {}
    for a in history.attempts:  # in the order of time
        record = a.group, a.partition, a.offset, a.value
        first.setdefault((*record, a.number), a.at_ms)
        if a.number == 0:
            continue
        before_ms = first.get((*record, a.number - 1))
        place = _place(a.partition, a.offset)
        if before_ms is None:
            raise Violation("SY12", f"{a.label} begins retry {a.number} of {place} out of nothing")
        waited_ms = a.at_ms - before_ms
        if waited_ms < DELAYS_MS[a.number - 1]:
            raise Violation(
                "SY12",
                f"{a.label} begins retry {a.number} of {place} after {waited_ms} ms; its delay is "
                f"{DELAYS_MS[a.number - 1]} ms",
            )


def _booked(final: Final) -> None:
    if "book" not in final.apps.kinds:
        return
    booked = Counter((part, at) for _, part, at in final.apps.rows)
    values = {(part, at): value.encode() for value, part, at in final.apps.rows}
    for partition, record in _inputs(final):
        at = partition.partition, record.offset
        value, place = record.value or b"", _place(partition, record.offset)
        wanted = 0 if is_dead(value) else 1
        if booked.pop(at, 0) != wanted:
            raise Violation("SY13", f"{place} {value!r} is not in the store {wanted} times")
        if wanted and values[at] != value:
            raise Violation("SY13", f"{place} is {value!r}; the store has {values[at]!r}")
        if (at in final.apps.failed) is not is_dead(value):
            raise Violation("SY13", f"{place} {value!r}: the ledger knows it as failed, or not")
        if is_dead(value) and value not in final.apps.dead.get(BOOKERS, ()):
            raise Violation("SY13", f"{place} {value!r} is not in the dead-letter topic")
    for part, offset in booked:
        raise Violation("SY13", f"the store has a row of {INPUT}-{part}@{offset}, which is not")


def _place(partition: TopicPartition, offset: int) -> str:
    return f"{partition.topic}-{partition.partition}@{offset}"
