"""Which handler a topic's records go to: names before patterns, Kohort's own topics left out."""

from __future__ import annotations

import re

import pytest

from kohort import App
from kohort.errors import ConfigError
from kohort.processing.engine.app_routes import AppRoutes
from kohort.testing import AppHarness
from tests.processing.world import route


def routes(*patterns: str, named: tuple[str, ...] = (), kept: tuple[str, ...] = ()) -> AppRoutes:
    made = AppRoutes(kept)
    for topic in named:
        made.add(route(topic))
    for text in patterns:
        made.add(route(f"pattern {text}"), re.compile(text))
    return made


def matched(made: AppRoutes, *topics: str) -> dict[str, str]:
    return {each.topic: each.handler for each in made.new(topics)}


def test_a_name_comes_before_patterns_and_the_first_pattern_before_others() -> None:
    made = routes("orders-.*", "orders-e.*", named=("orders-us",))
    assert matched(made, "orders-eu", "orders-us", "my-orders-eu", "bills") == {
        "orders-eu": "pattern orders-.*"
    }
    (of_topic,) = made.new(["orders-eu"])
    assert of_topic.topics.dead_letter == "orders-eu.billing.dlt"
    made.join([of_topic])
    assert made.new(["orders-eu"]) == []
    assert list(made.by_topic) == ["orders-us", "orders-eu"]
    made.rematch(["orders-x"])
    assert list(made.by_topic) == ["orders-us", "orders-x"]


def test_the_topics_that_kohort_keeps_are_left_out() -> None:
    """Or an app of `.*` would read its own retry topics, and each of those would get more."""
    own = ["orders.billing.retry.0s", "orders.billing.retry.5m", "orders.billing.dlt"]
    others = ["orders.shipping.retry.0s", "orders.shipping.dlt"]
    kept = ["__consumer_offsets", "kohort.p.1.intermediate", "ops.status", "ops.commands"]
    topics = ["orders", "a.dlt", *own, *others, *kept]
    made = routes(".*", kept=("ops.status", "ops.commands"))
    assert sorted(matched(made, *topics)) == ["a.dlt", "orders"], "a.dlt is of no group"
    made = routes(".*", named=("orders.billing.dlt",))
    assert "orders.billing.dlt" in made.by_topic, "a handler that names it gets it"


def test_a_second_handler_of_one_pattern_is_refused() -> None:
    app = App("billing")
    app.handler(re.compile("orders-.*"))(lambda record: None)
    with pytest.raises(ConfigError, match=r"'pattern orders-\.\*' has a handler already"):
        app.handler(re.compile("orders-.*"))(lambda record: None)
    with pytest.raises(ConfigError, match="as text, not as bytes"):
        app.handler(re.compile(b"orders-.*"))(lambda record: None)  # type: ignore[arg-type]
    assert app.topics == {}


def test_a_harness_takes_topics_that_match() -> None:
    """With retries, decoding and dead letters of their own; also after a crash."""
    app, seen = App("billing", retries="5m"), list[tuple[str, object]]()

    @app.handler(re.compile("orders-.*"), "bills", decode="json")
    def bill(record) -> None:
        seen.append((record.topic, record.data))
        if record.data == 3 and record.attempt == 0:
            raise TimeoutError("down")

    with AppHarness(app) as harness:
        harness.send("bills", b"1")
        harness.send("orders-eu", b"2")
        harness.send("orders-us", b"3")
        harness.send("other", b"4")
        harness.send("orders-us", b"{")
        harness.run()
        assert sorted(seen) == [("bills", 1), ("orders-eu", 2), ("orders-us", 3)]
        (letter,) = harness.dead_letters()
        assert letter.record.topic == "orders-us.billing.dlt"
        harness.crash()
        harness.advance("5m")
        assert seen[3:] == [("orders-us.billing.retry.5m", 3)] or seen[3:] == [("orders-us", 3)]
        assert harness.retries() == []
