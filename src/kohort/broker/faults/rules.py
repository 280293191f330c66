"""What a test asks a broker to do wrong: rules as data, and the book that counts them down.

Rules:
- A fault meets a request when everything that it names is true of it; what it does not name does
  not matter. One request takes one turn of a fault, however many partitions it names.
- Faults are asked in the order in which they were added. Delays add up; of all else the first that
  meets the request is carried out, and the others keep their turns.
- Code 0 (NONE) in a list of errors lets one request pass.
- No clock, no thread: the book is asked on the broker's thread, in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, cast

from kohort.errors import ErrorCode, UsageError
from kohort.lean import dataclass, field, fields
from kohort.setting_keys import nearest
from kohort.wire import API_NAMES, Message

MAX_FAULTS: Final = 1_000
MAX_ERRORS: Final = 10_000
MAX_DELAY_MS: Final = 3_600_000

_KEYS: Final = {name.lower(): key for key, name in API_NAMES.items()}

Answerer = Callable[[Message, int], "Message | None"]
"""Gets the request and its version, on the broker's thread; None lets the request pass."""


class Then(StrEnum):
    """What happens to a request that a fault meets."""

    FAIL = "fail"
    """It is not done, and answered with an error code; with `handled` it is done all the same."""
    DELAY = "delay"
    """It is done, and its answer leaves later."""
    HOLD = "hold"
    """It is done, and its answer waits until the fault is taken away."""
    SILENCE = "silence"
    """It is done; its answer, and all that follow on its connection, never leave."""
    CUT = "cut"
    """Its connection is closed and it is not done; with `handled` it is done all the same."""
    ANSWER = "answer"
    """A function of the test answers it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule. Empty or None matches everything."""

    then: Then
    api: tuple[str, ...] = ()
    """Kafka's names, as `OffsetCommit`."""
    node: int | None = None
    topic: str | None = None
    """With one, the other topics and partitions of the request are served as usual."""
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None
    client_id: str | None = None
    errors: tuple[int, ...] = ()
    """Of FAIL: one code for each request, in this order; after the last the stack is used up."""
    handled: bool = False
    """Of FAIL and CUT: the request is carried out first."""
    delay_ms: int = 0
    times: int | None = None
    """How many requests; None: all, of FAIL the whole stack once."""
    skip: int = 0
    """How many requests that it would meet are let through first."""
    answer: Answerer | None = field(default=None, compare=False)
    """Of ANSWER."""

    def __post_init__(self) -> None:
        if (self.then is Then.FAIL) != bool(self.errors):
            raise UsageError("a fault that fails requests needs error codes, others take none")
        if (self.then is Then.ANSWER) != (self.answer is not None):
            raise UsageError("a fault that answers needs a function, others take none")
        if len(self.errors) > MAX_ERRORS:
            raise UsageError(f"{len(self.errors)} error codes; the maximum is {MAX_ERRORS}")
        if (self.then is Then.DELAY) != (0 < self.delay_ms <= MAX_DELAY_MS):
            raise UsageError(
                f"delay_ms={self.delay_ms}; a delay has 1 to {MAX_DELAY_MS} ms, other faults none"
            )
        if self.skip < 0 or (self.times is not None and self.times < 1):
            raise UsageError("skip is at least 0, times at least 1 (None: no end)")
        if self.partition is not None and self.topic is None:
            raise UsageError("a partition needs its topic, too")
        if self.handled and self.then not in (Then.FAIL, Then.CUT):
            raise UsageError("handled is for faults that fail or cut; the others do the request")

    @property
    def turns(self) -> int | None:
        """How many requests it meets; None: no end."""
        if self.then is Then.FAIL and self.times is None:
            return len(self.errors)
        return self.times

    def of_api(self, api: str) -> bool:
        """Whether it is about an API."""
        return not self.api or api in self.api

    def meets(self, seen: Seen) -> bool:
        """Whether everything that it names is true of a request."""
        return (
            self.of_api(seen.api)
            and self.node in (None, seen.node)
            and self.client_id in (None, seen.client_id)
            and (self.group is None or self.group in seen.groups)
            and self.transactional_id in (None, seen.transactional_id)
            and (self.topic is None or self._names_one_of(seen))
        )

    def _names_one_of(self, seen: Seen) -> bool:
        return seen.all_topics or any(self.wants(topic, index) for topic, index in seen.partitions)

    def wants(self, topic: str, partition: int) -> bool:
        """Whether it is about a partition (-1: of the topic as a whole)."""
        return self.topic in (None, topic) and self.partition in (None, partition)

    def as_json(self) -> dict[str, Any]:
        """What it says, without what it leaves open."""
        shown: dict[str, Any] = {}
        for entry in fields(self):
            value: Any = getattr(self, entry.name)
            if value != entry.default and entry.name not in ("errors", "answer"):
                shown[entry.name] = list(self.api) if entry.name == "api" else value
        if self.errors:
            shown["errors"] = [ErrorCode(code).name for code in self.errors]
        return shown | {"then": self.then.value}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the book, and the log of requests, know of a request."""

    node: int
    client_id: str
    api: str
    version: int
    groups: tuple[str, ...] = ()
    transactional_id: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    """What it names; -1: a topic as a whole."""
    all_topics: bool = False
    """The request names all topics."""


class Armed:
    """A fault in the book: how often it was met, and what it has left."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.number = number
        self.fault = fault
        self.hits = 0
        """Requests that it was carried out on."""
        self._skip = fault.skip
        self.left = fault.turns
        """Requests to come; None: no end."""
        self.removed = False
        self.held: list[Callable[[], None]] = []
        """Answers that wait for the end of a HOLD."""

    @property
    def spent(self) -> bool:
        """Whether it meets nothing any more."""
        return self.left == 0

    def take(self) -> int | None:
        """Take one turn: the error code, 0 of a fault without; None: this one is let through."""
        if self._skip:
            self._skip -= 1
            return None
        errors = self.fault.errors
        code = errors[self.hits % len(errors)] if errors else 0
        self.hits += 1
        if self.left is not None:
            self.left -= 1
        return None if errors and code == 0 else code

    def as_json(self) -> dict[str, Any]:
        """The fault, its number, its hits and what is left."""
        return {"id": self.number, **self.fault.as_json(), "hits": self.hits, "left": self.left}


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about one request."""

    delay_ms: int = 0
    armed: Armed | None = None
    """The fault that is carried out beside the delays."""
    code: int = 0


NOTHING: Final = Decision()


class Faults:
    """The book of faults of one broker."""

    def __init__(self) -> None:
        self._armed: dict[int, Armed] = {}
        self._numbers = 0
        self.changed: Callable[[], object] = lambda: None
        """Called when there are more, or fewer."""

    def __len__(self) -> int:
        return len(self._armed)

    def list(self) -> Sequence[Armed]:
        """All that were added and not removed, used up or not, in the order of asking."""
        return list(self._armed.values())

    def about_fetched(self) -> bool:
        """Whether one may still be asked that meets a Fetch by what it reads."""
        return any(
            not armed.spent and armed.fault.topic is not None and armed.fault.of_api("Fetch")
            for armed in self._armed.values()
        )

    def add(self, fault: Fault) -> Armed:
        """Ask it from now on. Raises UsageError beyond 1,000."""
        for number in [n for n, armed in self._armed.items() if armed.spent]:
            if len(self._armed) < MAX_FAULTS:
                break
            del self._armed[number]
        if len(self._armed) >= MAX_FAULTS:
            raise UsageError(f"{MAX_FAULTS} faults are set; clear some first")
        self._numbers += 1
        armed = self._armed[self._numbers] = Armed(self._numbers, fault)
        self.changed()
        return armed

    def remove(self, number: int) -> bool:
        """Remove a rule and release the requests it holds; False: there is none of that number."""
        armed = self._armed.pop(number, None)
        if armed is None:
            return False
        self.changed()
        armed.left, armed.removed = 0, True
        held, armed.held = armed.held, []
        for release in held:
            release()
        return True

    def clear(self) -> int:
        """Ask none any longer; returns how many there were."""
        numbers = list(self._armed)
        for number in numbers:
            self.remove(number)
        return len(numbers)

    def decide(self, seen: Seen) -> Decision:
        """What is done about a request; takes the turns."""
        delay_ms = 0
        chosen: Armed | None = None
        chosen_code = 0
        for armed in self._armed.values():
            is_delay = armed.fault.then is Then.DELAY
            if armed.spent or (chosen and not is_delay) or not armed.fault.meets(seen):
                continue
            code = armed.take()
            if code is None:
                continue
            if is_delay:
                delay_ms += armed.fault.delay_ms
            else:
                chosen, chosen_code = armed, code
        if chosen is None and not delay_ms:
            return NOTHING
        return Decision(delay_ms, chosen, chosen_code)


def api_name(api: str | int) -> str:
    """Kafka's name of an API, given by name in any case, or by key. Raises UsageError."""
    key = api if isinstance(api, int) else _KEYS.get(api.lower())
    name = None if key is None else API_NAMES.get(key)
    if name is None:
        near = nearest(str(api).lower(), _KEYS)
        hint = f"; did you mean {API_NAMES[_KEYS[near]]!r}?" if near else ""
        raise UsageError(f"there is no API {api!r}{hint}")
    return name


def error_code(error: str | int) -> int:
    """Kafka's code of an error, given by name in any case, or by code. Raises UsageError."""
    if isinstance(error, int):
        if error in ErrorCode.__members__.values():
            return int(error)
    elif error.upper() in ErrorCode.__members__:
        return int(ErrorCode[error.upper()])
    near = nearest(str(error).upper(), ErrorCode.__members__)
    hint = f"; did you mean {near!r}?" if near else ""
    raise UsageError(f"there is no error {error!r}{hint}")


def _listed(value: object) -> list[Any]:
    if value is None:
        return []
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]


def fault_from(description: Mapping[str, Any]) -> Fault:
    """A fault as `Fault.as_json` writes it. Raises UsageError for what it does not know."""
    known = {entry.name: entry for entry in fields(Fault) if entry.name != "answer"}
    for key in description:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(known)}"
            raise UsageError(f"a fault has no {key!r}{hint}")
    values = dict(description)
    for key in ("node", "partition", "times", "skip", "delay_ms"):
        value = values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise UsageError(f"{key}={value!r} is not a whole number")
    for key in ("topic", "group", "transactional_id", "client_id"):
        if not isinstance(values.get(key), str | None):
            raise UsageError(f"{key}={values[key]!r} is not a text")
    try:
        values["then"] = Then(values.get("then", ""))
    except ValueError as error:
        choices = ", ".join(then.value for then in Then if then is not Then.ANSWER)
        raise UsageError(f"then={values.get('then')!r}; it is one of {choices}") from error
    values["api"] = tuple(api_name(name) for name in _listed(values.get("api")))
    values["errors"] = tuple(error_code(name) for name in _listed(values.get("errors")))
    values["handled"] = bool(values.get("handled", False))
    return Fault(**values)
