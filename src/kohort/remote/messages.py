"""The messages between processes and operators: JSON records of bounded size.

Rules:
- A status describes one process: its key is the process, so compaction keeps the latest one.
- A status has at most `STATUS_BYTES_MAX` bytes: of many partitions it holds the worst.
- A command is for a group, or for one process of it. A process executes it within `COMMAND_TTL_MS`
  or never, so a process that was down does not execute an old command.
- Messages of other programs are checked field by field; an invalid one raises MessageFault.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, cast

from kohort.errors import KohortError

SCHEMA: Final = 1
STATUS_BYTES_MAX: Final = 32 * 1024
COMMAND_BYTES_MAX: Final = 4 * 1024
TEXT_MAX: Final = 400
PARTITIONS_MAX: Final = 50
TROUBLES_MAX: Final = 10
RESULTS_MAX: Final = 8
COMMAND_TTL_MS: Final = 60_000


class MessageFault(KohortError):
    """A record of a status or commands topic that is none."""


class Action(Enum):
    """The commands of a process."""

    STATUS = "status"
    """Publish the status now."""
    PAUSE = "pause"
    """Begin no further record; keep partitions and membership."""
    RESUME = "resume"
    DRAIN = "drain"
    """Finish what was begun, commit, leave the group and end."""
    RETRY_NOW = "retry-now"
    """Try at once what waits in retry topics."""
    RETRY_RECORD = "retry-record"
    """Try the record `at` a place of a retry topic now."""
    DEAD_LETTER_RECORD = "dead-letter-record"
    """Send the record `at` a place of a retry topic to the dead-letter topic now."""

    @property
    def commands_process(self) -> bool:
        """Whether it changes what a process as a whole does."""
        return self is not Action.STATUS and not self.of_record

    @property
    def of_record(self) -> bool:
        """Whether it is about one record, which one process of the group has."""
        return self in (Action.RETRY_RECORD, Action.DEAD_LETTER_RECORD)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a command in one process."""

    command: str
    ok: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """How a process is.

    Attributes:
        process: unique among all, such as `billing@host-7/4711`.
        kind: `app`, `consumer` or `pipeline`.
        group: the consumer group, or the name of the pipeline.
        state: `running`, `paused`, `draining`, or another word of its kind.
        at_ms: when it was sent, by its own clock.
        interval_ms: when the next one follows, at the latest.
        actions: the commands that it accepts.
        figures: numbers and texts by name, of its kind.
        partitions: the worst of them, each as a mapping.
        troubles: outside problems, as text.
        results: of the last commands, the latest last.
    """

    process: str
    kind: str
    group: str
    host: str
    pid: int
    version: str
    started_ms: int
    at_ms: int
    interval_ms: int
    state: str
    actions: tuple[Action, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])
    partitions: Sequence[Mapping[str, Any]] = ()
    troubles: Sequence[str] = ()
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """Something to do.

    Attributes:
        id: unique; its result carries it too.
        process: the only one that shall obey; empty for every process of the group.
        by: the sender, for the log; not verified.
        at_ms: when it was sent.
        at: the record that it is about, as TOPIC/PARTITION/OFFSET.
    """

    id: str
    group: str
    action: Action
    process: str = ""
    by: str = ""
    at_ms: int = 0
    at: str = ""

    @property
    def place(self) -> tuple[str, int, int]:
        """The topic, partition and offset of `at`. Raises MessageFault."""
        topic, _, rest = self.at.partition("/")
        partition, _, offset = rest.partition("/")
        if not (topic and partition.isdecimal() and offset.isdecimal()):
            raise MessageFault(f"at={self.at!r} is no TOPIC/PARTITION/OFFSET")
        return topic, int(partition), int(offset)


def encode_status(status: ProcessStatus) -> bytes:
    """A record's value, cut to `STATUS_BYTES_MAX`: partitions go first, the worst last."""
    count = min(len(status.partitions), PARTITIONS_MAX)
    while True:
        data = _dump(_status_fields(status, count))
        if len(data) <= STATUS_BYTES_MAX:
            return data
        if not count:
            return _dump(_status_fields(status, 0) | {"figures": {}, "troubles": []})
        count //= 2


def _status_fields(status: ProcessStatus, partitions: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "process": status.process,
        "kind": status.kind,
        "group": status.group,
        "host": status.host,
        "pid": status.pid,
        "version": status.version,
        "started_ms": status.started_ms,
        "at_ms": status.at_ms,
        "interval_ms": status.interval_ms,
        "state": status.state,
        "actions": [action.value for action in status.actions],
        "figures": {key: _short(value) for key, value in status.figures.items()},
        "partitions": [
            {key: _short(value) for key, value in one.items()}
            for one in status.partitions[:partitions]
        ],
        "troubles": [_cut(text) for text in status.troubles[:TROUBLES_MAX]],
        "results": [
            {"command": r.command, "ok": r.ok, "text": _cut(r.text)}
            for r in status.results[-RESULTS_MAX:]
        ],
    }


def decode_status(data: bytes) -> ProcessStatus:
    """The status in a record's value. Raises MessageFault."""
    fields = _load(data, STATUS_BYTES_MAX)
    known = {action.value: action for action in Action}
    results = [
        Result(_text(r, "command"), r.get("ok") is True, _text(r, "text"))
        for r in _mappings(fields, "results")[-RESULTS_MAX:]
    ]
    figures = fields.get("figures")
    return ProcessStatus(
        process=_name(fields, "process"),
        kind=_text(fields, "kind"),
        group=_name(fields, "group"),
        host=_text(fields, "host"),
        pid=_number(fields, "pid"),
        version=_text(fields, "version"),
        started_ms=_number(fields, "started_ms"),
        at_ms=_number(fields, "at_ms"),
        interval_ms=_number(fields, "interval_ms"),
        state=_text(fields, "state"),
        actions=tuple(known[a] for a in _texts(fields, "actions") if a in known),
        figures=_flat(cast("dict[str, Any]", figures)) if isinstance(figures, dict) else {},
        partitions=[_flat(one) for one in _mappings(fields, "partitions")[:PARTITIONS_MAX]],
        troubles=_texts(fields, "troubles")[:TROUBLES_MAX],
        results=tuple(results),
    )


def encode_command(command: Command) -> bytes:
    """A record's value."""
    return _dump(
        {
            "schema": SCHEMA,
            "id": command.id,
            "group": command.group,
            "action": command.action.value,
            "process": command.process,
            "by": command.by,
            "at_ms": command.at_ms,
            **({"at": command.at} if command.at else {}),
        }
    )


def decode_command(data: bytes) -> Command:
    """The command in a record's value. Raises MessageFault."""
    fields = _load(data, COMMAND_BYTES_MAX)
    known = {action.value: action for action in Action}
    action = _text(fields, "action")
    if action not in known:
        raise MessageFault(f"{action!r} is no action; there are {', '.join(known)}")
    return Command(
        _name(fields, "id"),
        _name(fields, "group"),
        known[action],
        _text(fields, "process"),
        _text(fields, "by"),
        _number(fields, "at_ms"),
        _text(fields, "at"),
    )


# -- fields


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def _load(data: bytes, most: int) -> dict[str, Any]:
    if len(data) > most:
        raise MessageFault(f"{len(data):,} bytes; at most {most:,} are read")
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageFault(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MessageFault("not a JSON object")
    fields = cast("dict[str, Any]", found)
    if fields.get("schema") != SCHEMA:
        raise MessageFault(f"schema {fields.get('schema')!r}; this version reads {SCHEMA}")
    return fields


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise MessageFault(f"{name} is no text")
    return _cut(value)


def _name(fields: Mapping[str, Any], name: str) -> str:
    value = _text(fields, name)
    if not value:
        raise MessageFault(f"{name} is missing")
    return value


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise MessageFault(f"{name} is no whole number of at least 0")
    return value


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise MessageFault(f"{name} is no list")
    return [_cut(one) for one in cast("list[Any]", value) if isinstance(one, str)]


def _mappings(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise MessageFault(f"{name} is no list")
    several = cast("list[Any]", value)
    return [cast("dict[str, Any]", one) for one in several if isinstance(one, dict)]


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, texts and None by name; deeper things are not shown."""
    return {key[:TEXT_MAX]: _short(value) for key, value in list(fields.items())[:PARTITIONS_MAX]}


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | None) else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
