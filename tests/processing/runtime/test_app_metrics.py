"""What an app measures of itself (A2)."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from kohort.config import format_duration
from kohort.metrics import Family
from kohort.metrics.prometheus import export
from kohort.processing.runtime.metrics import FAMILIES
from kohort.retry import Permanent, Temporary, due_schedule
from tests.processing.conftest import PATIENCE_S, Until
from tests.processing.test_exact import wait_for
from tests.reading import read_committed

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def values(program, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The numbers of a family, by the tags beside the group's."""
    return {
        tuple((tag, text) for tag, text in metric.tags if tag not in ("group", "topic")): number
        for metric, number in program.metrics().items()
        if metric.name == name
    }


def test_the_oldest_failure_is_told_by_one_member(cluster, topic, produce, app, start) -> None:
    """By the append time of the first record of each partition; with the skew of the clocks."""
    produce(10)
    programs, seen = [app(), app()], threading.Event()

    def fail(record) -> None:
        assert seen.wait(PATIENCE_S)
        raise Permanent("bad")

    name = "dead_letter_oldest_age_seconds"
    for program in programs:
        program.handler(topic)(fail)
    start(programs[0])
    wait_for(lambda: values(programs[0], name) == {(): 0}, "none has failed")
    seen.set()
    wait_for(lambda: len(read_committed(cluster.bootstrap, failed(programs[0]))) == 10, "failures")
    start(programs[1])
    wait_for(lambda: values(programs[1], "records_in_flight"), "the second one")

    def ages() -> list[float]:
        return [age for program in programs for age in values(program, name).values()]

    wait_for(lambda: [0 < age < 6 * PATIENCE_S for age in ages()] == [True], "one tells of it")
    assert abs(values(programs[0], "clock_skew_ms")[()]) < 60_000


def failed(program) -> str:
    return next(iter(program.topics.values())).dead_letter


def test_retries_and_failures_are_counted_by_what_they_were(topic, produce, app, start) -> None:
    produce(100)
    ended = Until(100)
    program = app()
    assert program.metrics() == {}, "nothing is known of an app that does not run"

    @program.handler(topic)
    def handle(record):
        number = int(record.value)
        if number == 7 and record.attempt < 1:
            raise Temporary("down")
        try:
            if number == 9:
                raise Permanent("bad")
        finally:
            ended.count()

    registry = CollectorRegistry()
    export(program, registry=registry)
    start(program)
    ended.wait()
    # The owner hears of each in one of its next turns, and of the copies when they are stored.
    wait_for(lambda: values(program, "retry_success_total"), "no retry has succeeded")
    wait_for(lambda: sum(values(program, "retry_published_total").values()) == 2, "two copies")
    wait_for(lambda: values(program, "dead_lettered_total") == {(): 1}, "one has failed")
    counted = values(program, "retry_published_total")
    assert counted[("retry_topic", "dlt"), ("disposition", "fatal")] == 1
    assert {tags[0][1] for tags in counted} == {"dlt", format_duration(program.policy.delays_ms[0])}
    assert values(program, "retry_success_total") == {(("retry_number", "1"),): 1}
    assert values(program, "early_read_total") == {(): 0}
    assert values(program, "records_failures_total") == {(): 2}
    assert set(values(program, "circuit_state").values()) == {0}
    text = generate_latest(registry).decode()
    assert "# TYPE kohort_dead_lettered_total counter" in text
    assert "# TYPE kohort_records_in_flight gauge" in text
    assert f'kohort_dead_lettered_total{{group="{program.group}",topic="{topic}"}} 1.0' in text


def test_what_waits_in_a_retry_topic_is_seen_before_it_is_due(
    topic, produce, app, start, monkeypatch
) -> None:
    """A record that waits in a retry topic of an hour: depth 1, nothing due, nothing late."""
    monkeypatch.setattr(due_schedule, "MAX_CHECK_MS", 10 * 60_000)  # normally 30 s
    produce(3)
    tried = Until(3)
    program = app(retries="1h")

    @program.handler(topic)
    def handle(record):
        tried.count()
        if int(record.value) == 1:
            raise Temporary("down")

    start(program)
    tried.wait()
    retry_topic = (("retry_topic", "1h"),)
    # Whoever looks is told what is so now, not what the gate heard when it asked by itself.
    wait_for(lambda: values(program, "retry_topic_depth").get(retry_topic) == 1, "depth")
    assert values(program, "retry_topic_due").get(retry_topic) == 0
    assert values(program, "retry_topic_due_lag_seconds").get(retry_topic, 0) == 0


def test_every_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = {name for name in FAMILIES if f"`{name}`" not in page}
    assert not missing
    assert all(isinstance(family, Family) for family in FAMILIES.values())
