"""Options of `App` and `@app.handler`, checked: invalid ones are refused with the reason."""

from __future__ import annotations

import re
from typing import Any

from kohort.errors import ConfigError
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.workers.handlers import Kind, serde_of
from kohort.retry.policy import RetryPolicy


def policy_of(policy: str | RetryPolicy) -> RetryPolicy:
    """The delays of retries. Raises ConfigError for what are none."""
    return policy if isinstance(policy, RetryPolicy) else RetryPolicy.parse(policy)


def pool_of(topic: str, kind: Kind, workers: str | None, timeout_ms: int) -> str:
    """The workers that a handler runs on. Raises ConfigError for a kind that cannot run it."""
    pool = workers or ("tasks" if kind is Kind.ASYNC else "threads")
    if pool not in ("threads", "tasks", "processes"):
        raise ConfigError(f"workers={pool!r} for {topic!r}; use threads, tasks or processes")
    if (pool == "tasks") != (kind is Kind.ASYNC):
        raise ConfigError(
            f"the handler of {topic!r}: tasks are for coroutine functions, threads and processes "
            "for plain ones"
        )
    if timeout_ms and pool == "threads":
        raise ConfigError(
            f"the handler of {topic!r} has a timeout, but a thread cannot be stopped; make it a "
            'coroutine function, or use workers="processes"'
        )
    return pool


def batches_of(topic: str, kind: Kind, max_batch: int, linger_ms: int) -> tuple[int, int]:
    """The size of a handler's batches and its linger; 0 and 0 of a handler of single records.

    Raises ConfigError for a size below one, a negative linger, and a linger without batches.
    """
    if type(max_batch) is not int or max_batch < 1:
        raise ConfigError(
            f"the handler of {topic!r}: max_batch={max_batch!r}; a number, at least 1"
        )
    if linger_ms < 0:
        raise ConfigError(f"the handler of {topic!r}: linger={linger_ms} ms; at least 0")
    if kind in (Kind.BATCH, Kind.ARROW):
        return max_batch, linger_ms
    if linger_ms:
        raise ConfigError(
            f"the handler of {topic!r} takes one record at a time, so it cannot linger for a "
            "fuller batch; write batch=True or arrow=True"
        )
    return 0, 0


def check_format(topic: str, pool: str, decode: Any) -> None:
    """Raise ConfigError for a format that workers in processes cannot use."""
    if pool == "processes" and serde_of(decode) is not None:
        raise ConfigError(
            f"the handler of {topic!r}: a format of kohort.serdes has connections, which "
            "processes cannot share; decode in the handler, or use threads"
        )


def name_of(pattern: re.Pattern[str]) -> str:
    """What a handler of a pattern is called; no topic has such a name. Raises ConfigError."""
    if not isinstance(pattern.pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"app.handler({pattern!r}): write the pattern as text, not as bytes")
    return f"pattern {pattern.pattern}"


def choice_of(kind: Any, name: str, value: str) -> Any:
    """The member of an enumeration with this value. Raises ConfigError."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise ConfigError(f"{name}={value!r} is not one of {known}") from None


def circuit_of(topic: str, circuit: Any) -> CircuitConfig:
    """The settings of a circuit breaker. Raises ConfigError for what are none."""
    if circuit is None or isinstance(circuit, CircuitConfig):
        return circuit or CircuitConfig()
    raise ConfigError(
        f"the handler of {topic!r}: circuit={circuit!r}; write CircuitConfig(tokens={circuit!r})"
        if type(circuit) is int
        else f"the handler of {topic!r}: circuit={circuit!r}; a CircuitConfig is wanted"
    )
