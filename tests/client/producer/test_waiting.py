"""Issue C, "sync and async": how a task waits for the producer's outcomes."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.client.common.future import Future
from kohort.client.producer import producer, transactions_api


def flush(future: Future[None], timeout_s: float) -> Coroutine[Any, Any, Any]:
    return producer._in_time(future, timeout_s)


def commit(future: Future[None], timeout_s: float) -> Coroutine[Any, Any, Any]:
    tx: Any = SimpleNamespace(too_late=TimeoutError)
    return transactions_api._await(tx, future, timeout_s, "commit_transaction")


BOTH = pytest.mark.parametrize("wait", [flush, commit])
Wait = Callable[[Future[None], float], Coroutine[Any, Any, Any]]


@BOTH
def test_a_program_that_is_closed_leaves_nothing_to_await(wait: Wait) -> None:
    """Its loop has ended, so that what it does on its way out cannot wait: no warning of ours."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        program = wait(Future(), 1.0)
        with pytest.raises(RuntimeError):
            program.send(None)
        del program
        gc.collect()
    assert [str(each.message) for each in warned] == []


@BOTH
def test_what_is_there_is_not_too_late(wait: Wait) -> None:
    """Even where there is no time to wait."""
    done: Future[None] = Future()
    done.set_result(None)
    assert asyncio.run(wait(done, 0.0)) is not False


@BOTH
def test_what_does_not_come_is_too_late(wait: Wait) -> None:
    async def late() -> bool:
        try:
            return await wait(Future(), 0.0)
        except TimeoutError:
            return False

    assert asyncio.run(late()) is False
