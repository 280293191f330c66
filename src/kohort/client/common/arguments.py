"""Argument validation for the public API: checked before any state changes.

Rules:
- Every argument is converted here, or UsageError names the value, the call and the right form.
  Nothing wrong reaches the network thread, where no caller would see the error.
- Numbers of any library count as such (`__index__`, `__float__`); True and False do not.
- Times of calls are seconds: 0 or less is "do not wait", `float("inf")` for ever.
"""

# What callers give is of any type, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, Final

from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.errors import UsageError

FOR_EVER_S: Final = 1e9
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 60


def seconds(argument: Any, call: str, name: str = "timeout") -> float:
    """A time in seconds."""
    if type(argument) is float or type(argument) is int:
        value = argument
    else:
        number = hasattr(type(argument), "__float__") or hasattr(type(argument), "__index__")
        if not number or isinstance(argument, bool):
            raise UsageError(f"{call}: {name} is a number of seconds, not {shown(argument)}")
        value = float(argument)
    if value != value:
        raise UsageError(f"{call}: {name} is a number of seconds, not NaN")
    return max(0.0, min(value, FOR_EVER_S))


def whole_number(argument: Any, what: str, least: int = 0, most: int = _INT64_MAX) -> int:
    """A number without a fraction within these bounds."""
    if not isinstance(argument, bool) and hasattr(type(argument), "__index__"):
        number = index(argument)
        if least <= number <= most:
            return number
    bounds = f", {least} or more" if most == _INT64_MAX else f" from {least} to {most}"
    raise UsageError(f"{what} is a whole number{bounds}, not {shown(argument)}")


def name(argument: Any, what: str) -> str:
    """A text that is not empty."""
    if not isinstance(argument, str) or not argument:
        raise UsageError(f"{what} is a text, not {shown(argument)}")
    return argument


def names(argument: Any, call: str) -> list[str]:
    """Several of them; one text is none, because its letters would be names."""
    if isinstance(argument, str):
        raise UsageError(f"{call}() takes a list; write {call}([{argument!r}])")
    return [name(each, f"{call}() takes names; one of them") for each in _several(argument, call)]


def several(argument: Any, call: str) -> list[Any]:
    """Several things; one text is none."""
    if isinstance(argument, str):
        raise UsageError(f"{call}() takes a list; write {call}([{argument!r}])")
    return list(_several(argument, call))


def mapping(argument: Any, call: str, example: str) -> None:
    """A mapping."""
    if not isinstance(argument, Mapping):
        raise UsageError(f"{call}() takes a mapping, not {shown(argument)}; write {example}")


def texts(argument: Any, what: str) -> None:
    """Texts by name; None for a missing one."""
    if not isinstance(argument, Mapping):
        raise UsageError(f"{what} are a mapping, not {shown(argument)}")
    for key, value in argument.items():
        if not isinstance(key, str) or not (value is None or isinstance(value, str)):
            raise UsageError(f"{what} are texts by name, not {shown(key)}: {shown(value)}")


def numbers(argument: Any, what: str) -> None:
    """Numbers by name; None for a missing one."""
    if not isinstance(argument, Mapping):
        raise UsageError(f"{what} are a mapping, not {shown(argument)}")
    for key, value in argument.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(key, str) or not (value is None or number):
            raise UsageError(f"{what} are numbers by name, not {shown(key)}: {shown(value)}")


def choice(argument: Any, choices: tuple[str, ...], what: str) -> None:
    """One of these words."""
    if not isinstance(argument, str) or argument not in choices:
        raise UsageError(f"{what} is one of {', '.join(choices)}, not {shown(argument)}")


def one_of(argument: Any, kind: type, call: str) -> None:
    """An object of ours."""
    if not isinstance(argument, kind):
        raise UsageError(f"{call} takes {kind.__name__}s, not {shown(argument)}")


def _several(argument: Any, call: str) -> Iterable[Any]:
    if isinstance(argument, bytes) or not isinstance(argument, Iterable):
        raise UsageError(f"{call}() takes a list, not {shown(argument)}")
    return argument


def partition(argument: Any, call: str) -> TopicPartition:
    """One partition, as a `TopicPartition` or a pair."""
    pair = isinstance(argument, tuple | list) and len(argument) == 2
    if pair and isinstance(argument[0], str) and argument[0]:
        number = argument[1]
        if type(number) is not int:
            number = whole_number(
                number, f"{call}(): the partition of {argument[0]!r}", 0, _INT32_MAX
            )
        if 0 <= number <= _INT32_MAX:
            return TopicPartition(argument[0], number)
    raise UsageError(f'{call}() takes a partition, not {shown(argument)}; write ("TOPIC", 0)')


def partitions(argument: Any, call: str) -> list[TopicPartition]:
    """Several partitions, in the order given."""
    wrong = None
    if isinstance(argument, str | bytes) or not isinstance(argument, Iterable):
        wrong = argument
    else:
        tps: list[TopicPartition] = []
        for each in argument:
            if not isinstance(each, tuple | list) or len(each) != 2:
                wrong = each
                break
            tps.append(partition(each, call))
        else:
            return tps
    raise UsageError(f'{call}() takes partitions, not {shown(wrong)}; write [("TOPIC", 0)]')


def by_partition(argument: Any, call: str, what: str) -> list[tuple[TopicPartition, Any]]:
    """`what` of each partition."""
    if not isinstance(argument, Mapping):
        raise UsageError(
            f'{call}() takes {what} by partition, not {shown(argument)}; write {{("TOPIC", 0): 42}}'
        )
    return [(partition(tp, call), value) for tp, value in argument.items()]


def offset(argument: Any, tp: TopicPartition, call: str) -> OffsetAndMetadata:
    """A place in a partition: that of the next record to read."""
    place = argument if isinstance(argument, OffsetAndMetadata) else OffsetAndMetadata(argument)
    if type(place.offset) is int and place.offset < 0:
        raise UsageError(f"cannot {call} offset {place.offset} for {tp}: offsets are >= 0")
    number = whole_number(place.offset, f"{call}(): the offset of {tp}")
    epoch = whole_number(place.leader_epoch, f"{call}(): the epoch of {tp}", -1, _INT32_MAX)
    if not isinstance(place.metadata, str):
        raise UsageError(f"{call}(): the metadata of {tp} is a text, not {shown(place.metadata)}")
    return OffsetAndMetadata(number, place.metadata, epoch)


def offsets(argument: Any, call: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Places by partition."""
    return {tp: offset(place, tp, call) for tp, place in by_partition(argument, call, "offsets")}


def callback(argument: Any, call: str, what: str = "the callback") -> None:
    """A function, or None."""
    if argument is not None and not callable(argument):
        raise UsageError(f"{call}(): {what} is a function, not {shown(argument)}")


def shown(argument: object) -> str:
    """What was given, in short."""
    text = repr(argument)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


_LISTENS: Final = ("on_partitions_assigned", "on_partitions_lost", "on_partitions_revoked")
_CO_COROUTINE: Final = 0x80


def listener(argument: Any, *, awaits: bool) -> None:
    """A `RebalanceListener`, or what has its methods. `awaits`: they may be coroutine functions."""
    for each in () if argument is None else _LISTENS:
        method = getattr(argument, each, None)
        if not callable(method):
            raise UsageError(f"subscribe(): the listener {shown(argument)} has no method {each}")
        not_awaited(method, f"the listener's {each}", awaits=awaits)


def not_awaited(fn: Callable[..., Any], what: str, *, awaits: bool) -> None:
    """Outside of a task a coroutine function would not be awaited: it would never run."""
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is not None and code.co_flags & _CO_COROUTINE and not awaits:
        raise UsageError(
            f"{what} is a coroutine function, which a Consumer cannot await; use an AsyncConsumer, "
            "or a plain function"
        )


def record(
    topic: Any, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
) -> None:
    """What `send` was given."""
    if type(topic) is not str or not topic:
        name(topic, "send(): the topic")
    for what, data in (("value", value), ("key", key)):
        if data is not None and type(data) is not bytes:
            binary(data, what)
    if partition is not None and (type(partition) is not int or partition > _INT32_MAX):
        whole_number(partition, "send(): the partition", 0, _INT32_MAX)
    timestamp(timestamp_ms, "send()")
    if headers != ():
        _headers(headers)


def binary(data: Any, what: str) -> None:
    """Bytes, or what shows itself as such."""
    if isinstance(data, str):
        raise TypeError(f"the {what} is a str, Kafka keeps bytes; send {what}.encode()")
    try:
        memoryview(data)
    except TypeError:
        raise TypeError(
            f"the {what} is of type {type(data).__name__}, Kafka keeps bytes; see kohort.serdes"
        ) from None


def timestamp(argument: Any, call: str) -> None:
    """Milliseconds since 1970, or None."""
    if argument is not None and (type(argument) is not int or not 0 <= argument <= _INT64_MAX):
        whole_number(argument, f"{call}: timestamp_ms, in milliseconds since 1970,")


def several_times(headers: Any) -> Any:
    """As a list what is none and may be read once only: they may be needed for several tries."""
    once = isinstance(headers, Iterable) and not isinstance(headers, Sequence | Mapping)
    return list(headers) if once else headers


def _headers(argument: Any) -> None:
    if isinstance(argument, Mapping):
        raise UsageError(
            "send(): headers are pairs, of which a name may have several; write "
            "headers=[*YOURS.items()]"
        )
    wrong = argument
    if isinstance(argument, list | tuple):
        for wrong in argument:
            if not isinstance(wrong, tuple | list) or len(wrong) != 2:
                break
            if not isinstance(wrong[0], str) or isinstance(wrong[1], str):
                break
            if wrong[1] is not None:
                binary(wrong[1], f"header {wrong[0]!r}")
        else:
            return
    raise UsageError(
        f'send(): headers are pairs of text and bytes, not {shown(wrong)}; write [("NAME", b"...")]'
    )


def column(argument: Any, call: str, what: str) -> None:
    """Values of many records: a sequence."""
    if (
        isinstance(argument, str | bytes)
        or not (hasattr(type(argument), "__getitem__") and hasattr(type(argument), "__len__"))
        or isinstance(argument, Mapping)
    ):
        raise UsageError(f"{call}() takes a list of {what}, not {shown(argument)}")


def groups_member(argument: Any) -> None:
    """What `group_metadata()` gives."""
    if not isinstance(argument, GroupMetadata):
        raise UsageError(
            "send_offsets_to_transaction() takes the consumer's group_metadata(), not "
            f"{shown(argument)}"
        )
