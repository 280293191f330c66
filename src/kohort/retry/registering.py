"""Whether a function can be a handler: checked where it is registered, not at each record.

Rules:
- Only what can never work is refused. What cannot be looked at (a builtin) is taken as it is.
- A generator function's body runs when its result is iterated: where it is not iterated, every
  record would count as done though nothing was done with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import CoroutineType
from typing import Any, Final, Never, NoReturn, cast

from kohort.errors import ConfigError, UsageError
from kohort.retry.classify import Classifier

SEND_IT: Final = (
    'Send it with record.send(TOPIC, value), or give the app a store (exactly_once="sqlite:///...")'
)
_NOTHING_OR_UNKNOWN: Final = (
    inspect.Signature.empty,
    None,
    type(None),
    NoReturn,
    Never,
    Any,
    object,
    "None",
    "NoReturn",
    "Never",
    "Any",
    "typing.Any",
    "object",
)


def checked_topic(topic: object, way: str) -> str:
    """The topic of a decorator such as `@app.handler`; `way` is how that is written.

    Raises ConfigError where the decorator was written without one.
    """
    if isinstance(topic, str) and topic:
        return topic
    if callable(topic):
        raise ConfigError(f'@{way} is above {_name(topic)} without a topic; @{way}("TOPIC")')
    raise ConfigError(f'{way}({topic!r}): a topic is a name; write @{way}("TOPIC")')


def check_handler(
    topic: str, function: object, arguments: Sequence[str], *, may_yield: bool, may_wait: bool
) -> None:
    """Raise ConfigError for what cannot be the handler of a topic.

    Args:
        arguments: its parameters, for messages.
        may_yield, may_wait: whether a generator function, or a coroutine function, is allowed.
    """
    if not callable(function):
        raise ConfigError(
            f"the handler of {topic!r} is {function!r}, which cannot be called; put the decorator "
            "above a function"
        )
    who, call = f"the handler of {topic!r}, {_name(function)},", f"({', '.join(arguments)})"
    if waits(function) and not may_wait:
        raise ConfigError(f"{who} is a coroutine function, which is not awaited here; use `def`")
    if _is(inspect.isasyncgenfunction, function) or (
        _is(inspect.isgeneratorfunction, function) and not may_yield
    ):
        raise ConfigError(
            f"{who} has a `yield`: calling it runs nothing of it, so no record would be handled; "
            "return instead"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin does not say
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{who} is called with {call}, which it does not take: {error}") from None


def checked_decode(topic: str, decode: Any) -> Any:
    """`decode` of a handler. Raises ConfigError for what decodes nothing."""
    named = decode is None or decode in ("json", "text")
    if named or (not isinstance(decode, str) and callable(decode)):
        return decode
    if hasattr(decode, "deserialize"):
        return decode
    raise ConfigError(
        f"the handler of {topic!r}: decode={decode!r}; it is 'json', 'text', a function of the "
        "bytes, a format of kohort.serdes, or None"
    )


def classifier_of(topic: str, permanent: Any, temporary: Any) -> Classifier:
    """What errors mean, by a handler's lists. Raises ConfigError for what is no exception class."""
    return Classifier(
        _classes(topic, "permanent", permanent), _classes(topic, "temporary", temporary)
    )


def _classes(topic: str, name: str, classes: Any) -> tuple[type[BaseException], ...]:
    several = isinstance(classes, Iterable) and not isinstance(classes, type)
    candidates = tuple(cast("Iterable[Any]", classes)) if several else (None,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in candidates):
        raise ConfigError(
            f"the handler of {topic!r}: {name}={classes!r}; write a list of exception classes"
        )
    return cast("tuple[type[BaseException], ...]", candidates)


def waits(function: object) -> bool:
    """Whether calling it gives something to await: a coroutine function, or an object like one."""
    return _is(inspect.iscoroutinefunction, function)


def refuse_returned(topic: str, returned: object, *, instead: str = "") -> NoReturn:
    """A handler has returned a value that is not used: its record must not count as done.

    Args:
        instead: what to call for it to be kept; sending it by default.

    Raises:
        UsageError: always; the program ends, since every record would meet the same.
    """
    if isinstance(returned, CoroutineType):
        _refuse_unawaited(topic, returned)
    shown = repr(returned)
    raise UsageError(
        f"the handler of {topic!r} returned {shown[:100]}, which would be lost: nothing takes what "
        f"it returns. {instead or SEND_IT}, or return None"
    )


def check_returns(topic: str, function: object) -> None:
    """Raise ConfigError for a handler that declares a return value, where none is used."""
    try:
        returns = inspect.signature(cast("Any", function)).return_annotation
    except (TypeError, ValueError):
        return  # a builtin does not say
    if returns in _NOTHING_OR_UNKNOWN:
        return
    text = returns if isinstance(returns, str) else inspect.formatannotation(returns)
    raise ConfigError(
        f"the handler of {topic!r}, {_name(function)}, returns {text}, which would be lost: an app "
        f"without a store takes nothing that a handler returns. {SEND_IT}, or annotate it "
        "with `-> None`"
    )


def _refuse_unawaited(topic: str, returned: Any) -> NoReturn:
    """A plain function has returned a coroutine, of which nothing has run. Raises UsageError."""
    returned.close()  # or Python warns beside the error
    raise UsageError(
        f"the handler of {topic!r} is no coroutine function, but returned "
        f"{returned.__qualname__}() to be awaited: nothing of it has run. Register the coroutine "
        "function itself (a decorator around it must be `async def`, too)"
    )


def _is(kind: Any, function: object) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004


def _name(function: object) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"
