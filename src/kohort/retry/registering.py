"""Whether something can be a handler: told where it is registered, not by each of its records.

Rules:
- Only what can never work is refused. What cannot be looked at (a builtin) is taken as it is.
- A generator function's body runs when its result is iterated: where nobody does that, every record
  would count as done though nothing was done with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NoReturn

from kohort.errors import ConfigError, UsageError


def checked_topic(topic: object, way: str) -> str:
    """The topic of a decorator such as `@app.handler`; `way` is how that is written.

    Raises ConfigError where the decorator was written without one.
    """
    if isinstance(topic, str) and topic:
        return topic
    if callable(topic):
        raise ConfigError(f'@{way} stands above {_name(topic)} without a topic; @{way}("TOPIC")')
    raise ConfigError(f'{way}({topic!r}): a topic is a name; write @{way}("TOPIC")')


def check_handler(
    topic: str, function: object, given: Sequence[str], *, may_yield: bool, may_wait: bool
) -> None:
    """Raise ConfigError for what cannot be the handler of a topic.

    Args:
        given: what it is called with, for people.
        may_yield, may_wait: whether a generator function, or a coroutine function, does here.
    """
    if not callable(function):
        raise ConfigError(
            f"the handler of {topic!r} is {function!r}, which cannot be called; put the decorator "
            "above a function"
        )
    who, call = f"the handler of {topic!r}, {_name(function)},", f"({', '.join(given)})"
    if waits(function) and not may_wait:
        raise ConfigError(f"{who} is a coroutine function, and nobody awaits it here; use `def`")
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
        signature.bind(*given)
    except TypeError as error:
        raise ConfigError(f"{who} is called with {call}, which it does not take: {error}") from None


def waits(function: object) -> bool:
    """Whether calling it gives something to await: a coroutine function, or an object like one."""
    return _is(inspect.iscoroutinefunction, function)


def refuse_unawaited(topic: str, returned: Any) -> NoReturn:
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
