"""The pipeline, store or topics whose failures `retry` and `dlq` show.

Rules (spec 6.3):
- The ledger is the truth. It is found by a pipeline's file, or by a store and the pipeline's name.
- Without either, the topics of (topic, group) are looked at; orphans and duplicates are among the
  copies then, so everything counted that way is marked `topic`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kohort.cli.common.paths import FILE
from kohort.config import parse_duration_ms
from kohort.errors import ConfigError
from kohort.lean import dataclass
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from pathlib import Path

    from kohort.retry.policy import RetryTopics
    from kohort.retry.store import Store

F = TypeVar("F", bound=Callable[..., Any])
BY_LEDGER, BY_TOPIC = "ledger", "topic"
_RETRY_TOPIC_LABEL = re.compile(r"\.retry\.([0-9a-z.]+)$")


@dataclass(frozen=True)
class LedgerSource:
    """A ledger: the store, the name it is kept under, and the retry topics if they are known."""

    store: Store
    name: str
    retry_topics: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicSource:
    """The retry topics of one (topic, group), without a ledger."""

    topic: str
    group: str


Source = LedgerSource | TopicSource


def source_options(function: F) -> F:
    """`--pipeline FILE`, or `--store URL --name NAME`, or `--topic T --group G`: one `source`."""
    options = (
        click.option(
            "--pipeline",
            "file",
            type=FILE,
            help="A pipeline's Python file: use its ledger.",
        ),
        click.option(
            "--store", metavar="URL", help="sqlite:///FILE or postgresql://…: use the ledger."
        ),
        click.option("--name", help="The pipeline's name in --store, if it has several."),
        click.option("--topic", help="With --group: use the retry topics only."),
        click.option("--group", help="The group that retries."),
    )

    @functools.wraps(function)
    def with_source(
        *args: Any,
        file: Path | None,
        store: str | None,
        name: str | None,
        topic: str | None,
        group: str | None,
        **rest: Any,
    ) -> Any:
        source = _chosen(file, store, name, topic, group)
        try:
            return function(*args, source=source, **rest)
        finally:
            if isinstance(source, LedgerSource):
                source.store.close()

    wrapped: Any = with_source
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _chosen(
    file: Path | None, store: str | None, name: str | None, topic: str | None, group: str | None
) -> Source:
    ways = [bool(file), bool(store), bool(topic or group)]
    if sum(ways) != 1 or (name and not store):
        raise click.UsageError(
            "say whose records: --pipeline FILE, or --store URL [--name NAME], "
            "or --topic TOPIC --group GROUP"
        )
    if file is not None:
        return of_pipeline(file)
    if store is not None:
        return of_store(store, name)
    if not (topic and group):
        raise click.UsageError("--topic and --group go together: retry topics belong to both")
    return TopicSource(topic, group)


def of_pipeline(file: Path) -> LedgerSource:
    """The ledger of a pipeline's file."""
    from kohort.cli.common.user_files import load_file

    pipeline = load_file(file)
    retry_topics = (
        names.retry_topic(delay_ms)
        for names in pipeline.topics.values()
        for delay_ms in names.policy.distinct_delays_ms
    )
    return LedgerSource(pipeline.open_store(), pipeline.name, tuple(retry_topics))


def of_store(url: str, name: str | None) -> LedgerSource:
    """The ledger of one pipeline in a store. Raises ConfigError when it is not there."""
    from kohort.retry.stores import open_store

    store = open_store(url)
    try:
        return _ledger_of(store, url, name)
    except BaseException:  # any error: the store has no other owner yet
        store.close()
        raise


def _ledger_of(store: Store, url: str, name: str | None) -> LedgerSource:
    from kohort.retry.ledger_view import pipelines, topics_read, without_password

    names = pipelines(store)
    there = ", ".join(names) or "none"
    if name is None and len(names) == 1:
        name = next(iter(names))
    if name is None:
        raise ConfigError(
            f"the store {without_password(url)} keeps the ledgers of several pipelines or of none; "
            f"choose one with --name: {there}"
        )
    if name not in names:
        near = nearest(name, names)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"the store {without_password(url)} has no ledger of a pipeline {name!r}{hint} "
            f"(there: {there})"
        )
    delays = {topic: retry_topic_delay_ms(topic) for topic in topics_read(store, name)}
    retry_topics = sorted((delay, topic) for topic, delay in delays.items() if delay)
    return LedgerSource(store, name, tuple(topic for _, topic in retry_topics))


def retry_topic_delay_ms(topic: str) -> int | None:
    """The delay in a retry topic's name; None for any other topic and for the entry topic."""
    match = _RETRY_TOPIC_LABEL.search(topic)
    if match is None:
        return None
    try:
        return parse_duration_ms(match[1]) or None
    except ConfigError:
        return None


def retry_topics_of(source: TopicSource, topics: Iterable[str]) -> dict[str, int]:
    """Delay by retry topic, of those that exist, the shortest first."""
    from kohort.retry.policy import topic_name

    delays_ms: dict[str, int] = {}
    for name in topics:
        match, delay_ms = _RETRY_TOPIC_LABEL.search(name), retry_topic_delay_ms(name)
        if match is None or delay_ms is None:
            continue
        if topic_name(source.topic, source.group, f"retry.{match[1]}") == name:
            delays_ms[name] = delay_ms
    return dict(sorted(delays_ms.items(), key=lambda item: item[1]))


def names_of(source: TopicSource) -> RetryTopics:
    """The names of a source's retry topics; the policy is not known and not needed."""
    from kohort.retry.policy import RetryPolicy, RetryTopics

    return RetryTopics(source.topic, source.group, RetryPolicy(()))
