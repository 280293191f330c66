"""What cannot be a handler is refused where it is registered, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kohort import App
from kohort.errors import ConfigError, UsageError
from kohort.processing.engine import items as pure
from kohort.processing.engine import items_choice as items_implementation
from kohort.processing.workers.handlers import HandlerSpec, Invoker, Kind, Received, done
from kohort.processing.workers.task_pool import run_async
from kohort.records import Record
from kohort.retry.classify import stated
from kohort.retry.handling import HandlerSpec as RowSpec
from kohort.spark import Pipeline
from tests.known import fake


def nothing(record: object) -> None: ...


def two(first: object, second: object) -> None: ...


def rows(record: object) -> Any:
    yield {"a": 1}


async def later(record: object) -> None: ...


async def stream(record: object) -> Any:
    yield record


class Waiting:
    async def __call__(self, record: object) -> None: ...


class Plain:
    def __call__(self, record: object) -> None: ...


def app(**options: Any) -> App:
    return App("g", **options)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (5, {}, "is 5, which cannot be called"),
        (lambda: None, {}, r"is called with \(record\), which it does not take: too many"),
        (two, {}, r"handler of 't', two\(\), is called with \(record\).*missing.*'second'"),
        (rows, {}, "has a `yield`.*no record would be handled"),
        (rows, {"batch": True}, "has a `yield`"),
        (stream, {}, "has a `yield`"),
        (later, {"batch": True}, "takes one record"),
    ],
)
def test_an_app_refuses_what_can_never_work(what: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app().handler("t", **options)(what)


@pytest.mark.parametrize(
    "what", [nothing, later, Waiting(), Plain(), print, functools.partial(two, 1)]
)
def test_an_app_takes_what_can_be_called_with_a_record(what: Callable[..., Any]) -> None:
    assert app().handler("t")(what) is what


def test_rows_may_be_yielded_where_there_is_a_store(tmp_path) -> None:
    app(exactly_once=f"sqlite:///{tmp_path}/s.db").handler("t", table="rows")(rows)


@pytest.mark.parametrize("way", ["handler", "batch_handler"])
def test_a_decorator_without_its_topic_says_how_it_is_written(tmp_path, way: str) -> None:
    """`@app.handler` above a function would register nothing, and nobody would know."""
    pipeline = Pipeline("p", store=f"sqlite:///{tmp_path}/s.db")
    with pytest.raises(ConfigError, match=rf"pipeline.{way} is above nothing\(\) without"):
        getattr(pipeline, way)(nothing)
    with pytest.raises(ConfigError, match=r'@app.handler\("TOPIC"\)'):
        app().handler(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a topic is a name"):
        app().handler("")


@pytest.mark.parametrize(
    ("way", "what", "message"),
    [
        ("handler", nothing, r"is called with \(record, store\), which it does not take"),
        ("handler", later, "is a coroutine function, which is not awaited here"),
        ("batch_handler", lambda batch: None, r"is called with \(batch, store\)"),
        ("batch_handler", rows, "has a `yield`"),
        ("handler", None, "is None, which cannot be called"),
    ],
)
def test_a_pipeline_refuses_what_can_never_work(
    tmp_path, way: str, what: Any, message: str
) -> None:
    pipeline = Pipeline("p", store=f"sqlite:///{tmp_path}/s.db")
    with pytest.raises(ConfigError, match=message):
        getattr(pipeline, way)("t")(what)
    getattr(pipeline, way)("t")(lambda record, store: None)


@pytest.mark.parametrize("kind", [pure, items_implementation])
def test_a_coroutine_that_nobody_awaits_is_no_success(kind: Any) -> None:
    """A plain decorator around a coroutine function hides what it is until it is called."""
    wrapped = functools.wraps(nothing)(lambda record: later(record))
    route = SimpleNamespace(topic="t")
    items = [kind.Item(Record("t", 0, 0, value=b"v"), SimpleNamespace(route=route), None)]
    with pytest.raises(UsageError, match=r"returned later\(\) to be awaited"):
        kind.run_plain(items, 0, wrapped, Received, None)
    with pytest.raises(UsageError, match="nothing of it has run"):
        done(HandlerSpec("t", wrapped), Received(items[0].record), wrapped(items[0].record))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "8"}, "threads='8': a number of workers"),
        ({"tasks": 0}, "tasks=0: a number of workers, at least one"),
        ({"processes": True}, "processes=True: a number"),
    ],
)
def test_a_number_of_workers_that_is_none_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"circuit": 5}, r"circuit=5; write CircuitConfig\(tokens=5\)"),
        ({"circuit": "off"}, "circuit='off'; a CircuitConfig is wanted"),
        ({"max_batch": "9"}, "max_batch='9'; a number"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app().handler("t", **options)(nothing)


def test_a_reason_that_is_no_text_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match=r"not ValueError\('x'\); give str\(error\)"):
        stated(cast(Any, ValueError("x")), permanent=True)


@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_that_says_it_returns_something_is_refused(batch: bool) -> None:
    """Issue 14, item 14: without a store nothing takes it, and its record would count as done."""
    program = App("g")

    def enrich(record: object) -> dict[str, int]:
        return {"amount": 1}

    with pytest.raises(ConfigError, match=r"'orders', enrich\(\), returns dict.*record\.send"):
        program.handler("orders", batch=batch)(enrich)

    async def eventually(record: object) -> bytes:
        return b""

    if not batch:
        with pytest.raises(ConfigError, match="returns bytes"):
            program.handler("orders")(eventually)
    program.handler("orders", batch=batch)(nothing)
    store = App("g", exactly_once="sqlite:///x.db")
    store.handler("orders", table="orders")(enrich)


@pytest.mark.parametrize("kind", [pure, items_implementation])
def test_what_nobody_takes_is_no_success(kind: Any) -> None:
    """Issue 14, item 14: one record, a batch, and a task; with a store only of a batch handler."""
    route = SimpleNamespace(topic="t", handler="t", stops_lane=False)
    record = Record("t", 0, 0, value=b"v")
    items = [kind.Item(record, SimpleNamespace(route=route), None)]
    lost = "'t' returned 7, which would be lost"
    with pytest.raises(UsageError, match=lost):
        kind.run_plain(items, 0, lambda record: 7, Received, None)
    with pytest.raises(UsageError, match=lost):
        done(HandlerSpec("t", nothing), Received(record), 7)
    with pytest.raises(UsageError, match=lost):
        Invoker({"t": HandlerSpec("t", lambda batch: 7, Kind.BATCH)}).run(items)

    async def seven(record: object) -> Any:
        return 7

    with pytest.raises(UsageError, match=lost):
        asyncio.run(run_async(Invoker({"t": HandlerSpec("t", seven, Kind.ASYNC)}), items))
    into = RowSpec("t", fake(nothing), True, "table", ())
    with pytest.raises(UsageError, match=r"Call batch\.load\(i, row\)"):
        Invoker({"t": HandlerSpec("t", lambda batch: 7, Kind.BATCH, rows=into)}).run(items)
