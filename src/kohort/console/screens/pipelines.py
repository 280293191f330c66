"""Screen 6: the pipelines of the stores that the console was given with --store."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from kohort.client.common.types import TopicPartition
from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Screen, now_ms
from kohort.console.views.figures import count, whole
from kohort.console.views.pipelines import PipelineLine, PipelinesView, pipeline_view
from kohort.errors import KohortError
from kohort.retry.ledger_view import (
    FailedFilter,
    books,
    failed_kinds,
    retry_topic_states,
    without_password,
)
from kohort.retry.ledger_view import pipelines as pipelines_of
from kohort.retry.stores import open_store
from kohort.sampling.log_offsets import offsets, topics_there

KINDS: Final = 20


def pipelines(desk: Desk, _: PageRequest) -> Screen:
    """Every pipeline of every store; a store that does not answer is a line of its own."""
    lines: list[PipelineLine] = []
    troubles: list[str] = []
    for number, url in enumerate(desk.stores):
        try:
            with contextlib.closing(open_store(url)) as store:
                lines += [
                    PipelineLine(name, without_password(url), number, count(rows))
                    for name, rows in pipelines_of(store).items()
                ]
        except KohortError as error:
            troubles.append(f"{without_password(url)}: {error}")
    view = PipelinesView(lines, len(desk.stores), troubles)
    return Screen("pipelines.html", "Pipelines", "pipelines", view)


def pipeline(desk: Desk, request: PageRequest) -> Screen:
    """One pipeline: books, fence, commits, what waits, what failed."""
    name, number = request.needed("name"), whole(request.query.get("store", ""), 0)
    if number >= len(desk.stores):
        raise NotThereError("the console was not given this store; see /pipelines")
    url = desk.stores[number]
    with contextlib.closing(open_store(url)) as store:
        rows = books(store, name)
        waiting = retry_topic_states(store, name, (), now_ms())
        kinds = failed_kinds(store, name, FailedFilter(), KINDS)
        if not rows and name not in pipelines_of(store):
            raise NotThereError(f"no pipeline {name!r} has a ledger in {without_password(url)}")
    committed, ends = _on_the_cluster(desk, name, {row.topic for row in rows})
    view = pipeline_view(
        name, without_password(url), rows, waiting, kinds, committed, ends, now_ms()
    )
    command = desk.command("retry", "status", "--store", without_password(url), "--name", name)
    return Screen("pipeline.html", name, "pipelines", view, command)


def _on_the_cluster(
    desk: Desk, group: str, topics: set[str]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """The group's commits and the logs' ends; nothing where the cluster does not answer."""
    try:
        held = desk.admin.list_group_offsets(group)
        ends = offsets(desk.admin, topics_there(desk.admin, topics).values(), "latest")
    except KohortError:  # the store's own figures are shown all the same
        return {}, {}
    return {tp: at.offset for tp, at in held.items()}, ends
