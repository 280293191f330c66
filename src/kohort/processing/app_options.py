"""Options of `App` and `@app.handler`, checked: invalid ones are refused with the reason."""

from __future__ import annotations

from typing import Any

from kohort.errors import ConfigError
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.workers.handlers import Kind
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
