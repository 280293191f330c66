"""The history of a simulated system as a file: everything that its checks need, as JSON lines.

    record(plan, Path("run.jsonl"))          # run it, and write what happened
    judge(read_history(Path("run.jsonl")))   # raises the Violation of the run, without running it

Rules:
- The first line names the format, its version, the plan and the verdict; the last one counts the
  lines before it, so that a file that was cut off is noticed. Each line between has one element of
  one field of `History` or `Final`.
- Bytes are text of one character a byte (Latin-1), so that the values of simulated records can be
  read. Mappings are lists of pairs, because their keys are no text.
- A file is foreign bytes: what does not fit the types, is too long or does not fit together is
  refused with its line.

Shell: files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AnySet
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kohort.errors import ConfigError
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system import checks
from kohort.simulator.system.history import History
from kohort.simulator.system.plan import SystemPlan
from kohort.simulator.system.world import Outcome, SystemWorld

FORMAT: Final = "kohort system history"
VERSION: Final = 1
MAX_LINE_BYTES: Final = 16 << 20
MAX_FILE_BYTES: Final = 512 << 20
_MAX_INT: Final = 1 << 63
_KEPT_WHOLE: Final = (str, int, bool, type(None))
T = TypeVar("T")


@dataclass
class Recorded:
    """One run, as a file has it.

    Args:
        plan: what was run.
        code, what: the verdict of the run itself; None when all held.
        history: what its programs did and saw.
        final: what was left at its end; None when it did not come to it (SY10, CRASH).
    """

    plan: SystemPlan
    code: str | None
    what: str
    history: History
    final: checks.Final | None


class _DoesNotFitError(Exception):
    """A value is not of the type that its place asks for."""


# -- writing


def record(plan: SystemPlan, path: Path) -> Outcome:
    """Run a plan and write its history, whether all held or not."""
    world = SystemWorld(plan)
    outcome = world.run()
    run = Recorded(plan, outcome.code, outcome.what, world.history, world.final)
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in lines_of(run))
    return outcome


def lines_of(run: Recorded) -> Iterator[str]:
    """The lines of a file, without their ends."""
    count = 0
    for line in _lines_of(run):
        yield json.dumps(line, separators=(",", ":"))
        count += 1
    yield json.dumps({"end": count})


def _lines_of(run: Recorded) -> Iterator[dict[str, Any]]:
    verdict = {"code": run.code, "what": run.what, "ended": run.final is not None}
    yield {"format": FORMAT, "version": VERSION, "plan": _plain(run.plan), **verdict}
    for part, content in (("history", run.history), ("final", run.final)):
        for field in fields(content) if content is not None else ():
            for element in _elements(getattr(content, field.name)):
                yield {f"{part}.{field.name}": element}


def _elements(value: Any) -> list[Any]:
    """What of a field goes into a line of its own."""
    plain = _plain(value)
    many = isinstance(value, list | tuple | Mapping | AnySet)
    return plain if many else [plain]


def _plain(value: Any) -> Any:
    """What JSON can say of a value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, _KEPT_WHOLE):
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return [[_plain(key), _plain(one)] for key, one in pairs]
    plain = [_plain(one) for one in cast("Iterable[Any]", value)]
    return sorted(plain, key=json.dumps) if isinstance(value, AnySet) else plain


# -- reading


def read_history(path: Path) -> Recorded:
    """Read a file. Raises ConfigError when it cannot be read, or is no whole history."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
            return parse(lines, str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def parse(lines: Iterable[bytes], name: str) -> Recorded:
    """The run that the lines of a file describe. Raises ConfigError."""
    number, reader = 0, _Reader()
    try:
        for line in lines:
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise _DoesNotFitError(f"more than {MAX_LINE_BYTES} bytes")
            reader.take(json.loads(line))
        return reader.whole()
    except _DoesNotFitError as error:
        raise ConfigError(f"{name}, line {number}: {error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{name}, line {number}: this is no line of JSON") from None


class _Reader:
    """Puts a history together, line by line."""

    def __init__(self) -> None:
        self._count = 0
        self._head: dict[str, Any] | None = None
        self._plan: SystemPlan | None = None
        self._is_whole = False
        self._elements: dict[str, list[Any]] = {}
        self._types = {
            f"{part}.{name}": hint
            for part, kind in (("history", History), ("final", checks.Final))
            for name, hint in get_type_hints(kind).items()
        }

    def take(self, line: Any) -> None:
        """One line more."""
        if self._is_whole:
            raise _DoesNotFitError("there is more behind the end")
        if not isinstance(line, dict):
            raise _DoesNotFitError("this is no object")
        known = cast("dict[str, Any]", line)
        if self._head is None:
            self._begin(known)
        elif "end" in known:
            if known["end"] != self._count:
                raise _DoesNotFitError(f"the end counts {known['end']!r} lines of {self._count}")
            self._is_whole = True
        else:
            self._element(known)
        self._count += 1

    def _begin(self, head: dict[str, Any]) -> None:
        if head.get("format") != FORMAT:
            raise _DoesNotFitError("this is no history of a simulated system")
        if head.get("version") != VERSION:
            raise _DoesNotFitError(f"version {head.get('version')!r}; {VERSION} is known here")
        self._plan = _value(SystemPlan, head.get("plan"), "plan")
        _value(str | None, head.get("code"), "code")
        _value(str, head.get("what"), "what")
        _value(bool, head.get("ended"), "ended")
        self._head = head

    def _element(self, line: dict[str, Any]) -> None:
        for field, value in line.items():
            if field not in self._types:
                raise _DoesNotFitError(f"there is no field {field!r}")
            hint = self._types[field]
            one = _value(_type_of_elements(hint), value, field)
            self._elements.setdefault(field, []).append(one)

    def whole(self) -> Recorded:
        """The run, once all lines were taken."""
        if self._head is None or self._plan is None or not self._is_whole:
            raise _DoesNotFitError("the file is cut off: its last line is missing")
        head, final = self._head, None
        if head["ended"]:
            final = checks.Final(**self._part("final", checks.Final))
        history = History(**self._part("history", History))
        if final is None and head["code"] is None:
            raise _DoesNotFitError("the run held and has no end")
        return Recorded(self._plan, head["code"], head["what"], history, final)

    def _part(self, part: str, kind: type[Any]) -> dict[str, Any]:
        return {
            f.name: _collected(self._types[name], self._elements.get(name, []), name)
            for f in fields(kind)
            for name in (f"{part}.{f.name}",)
            if name in self._elements or not _has_default(f)
        }


def _has_default(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _type_of_elements(hint: Any) -> Any:
    origin, parameters = get_origin(hint), get_args(hint)
    if _is_mapping(origin):
        return tuple[parameters]
    return parameters[0] if origin in (list, set, frozenset) else hint


def _collected(hint: Any, elements: list[Any], field: str) -> Any:
    origin = get_origin(hint)
    if _is_mapping(origin):
        return dict(elements)
    if origin in (list, set, frozenset):
        return cast("Any", origin)(elements)
    if len(elements) != 1:
        raise _DoesNotFitError(f"{field} is there {len(elements)} times")
    return elements[0]


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


# -- values by their types


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value of a type. Raises _DoesNotFitError."""
    origin, parameters = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and type(None) in parameters:
            return None
        return _value(next(one for one in parameters if one is not type(None)), value, where)
    if origin is not None:
        return _many(origin, parameters, value, where)
    if is_dataclass(hint):
        return _fields_of(cast("type[Any]", hint), value, where)
    if issubclass(hint, tuple):  # TopicPartition
        named = cast("Any", hint)
        types = tuple(get_type_hints(named).values())
        return named(*_many(tuple, types, value, where))
    return _one(hint, value, where)


def _one(kind: type[Any], value: Any, where: str) -> Any:
    if issubclass(kind, Enum):
        if value not in {one.value for one in kind} if isinstance(value, str) else True:
            raise _DoesNotFitError(f"{where} may not be {_short(value)}")
        return kind(value)
    wanted = str if kind is bytes else kind
    if type(value) is not wanted:
        raise _DoesNotFitError(f"{where} may not be {_short(value)}")
    if kind is int and not -_MAX_INT <= value < _MAX_INT:
        raise _DoesNotFitError(f"{where} may not be so large")
    if kind is bytes:
        try:
            return value.encode("latin-1")
        except UnicodeEncodeError:
            raise _DoesNotFitError(f"{where} is no text of bytes") from None
    return value


def _many(origin: type[Any], parameters: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _DoesNotFitError(f"{where} may not be {_short(value)}")
    elements = cast("Sequence[Any]", value)
    if _is_mapping(origin):
        return dict(_value(tuple[parameters], pair, where) for pair in elements)
    if origin is tuple and parameters[-1:] != (...,):
        if len(elements) != len(parameters):
            raise _DoesNotFitError(f"{where} may not have {len(elements)} parts")
        return tuple(_value(h, one, where) for h, one in zip(parameters, elements, strict=True))
    return cast("Any", origin)(_value(parameters[0], one, where) for one in elements)


def _fields_of(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise _DoesNotFitError(f"{where} may not be {_short(value)}")
    found, hints = cast("dict[str, Any]", value), get_type_hints(kind)
    needed = {f.name for f in fields(cast("Any", kind)) if not _has_default(f)}
    more, missing = found.keys() - hints.keys(), needed - found.keys()
    if more or missing:
        raise _DoesNotFitError(f"{where} lacks {sorted(missing)}; not known: {sorted(more)}")
    parts = {name: _value(hints[name], one, f"{where}.{name}") for name, one in found.items()}
    return kind(**parts)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- the verdict


def judge(run: Recorded) -> None:
    """Run every check. Raises the first Violation, or ConfigError where parts do not fit together.

    A run that did not come to its end was judged while it ran: its verdict is repeated.
    """
    if run.final is None or run.code == "CRASH":
        assert run.code is not None, "a run without an end has failed"
        raise Violation(run.code, run.what)
    try:
        checks.check(run.history, run.final)
    except (LookupError, AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"the parts of this history do not fit together: {error!r}") from error
