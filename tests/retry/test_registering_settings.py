"""Settings of a handler that can never work are refused where it is registered (spec 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kohort import App
from kohort.errors import ConfigError
from kohort.serdes import JsonSerde
from kohort.spark import Pipeline


def nothing(record: object) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode": "jsn"}, "decode='jsn'; it is 'json', 'text'"),
        ({"permanent": ValueError}, "a list of exception classes"),
        ({"temporary": ["ValueError"]}, "a list of exception classes"),
        ({"max_batch": 0, "batch": True}, "max_batch=0; a number, at least 1"),
        ({"retries": ["5m"]}, "write the delays as a text"),
        ({"blocking": 5}, "write the delays as a text"),
    ],
)
def test_an_app_refuses_them(settings: Mapping[str, Any], message: str) -> None:
    """A misspelt decode sent every record to the dead-letter topic, one by one."""
    with pytest.raises(ConfigError, match=message):
        App("g").handler("orders", **settings)(nothing)


def test_a_pipeline_refuses_them() -> None:
    pipeline = Pipeline("p", store="sqlite:///p.db")
    refused: list[dict[str, Any]] = [{"decode": "jsn"}, {"decode": 5}, {"permanent": [1]}]
    for settings in refused:
        with pytest.raises(ConfigError, match="the handler of 'orders'"):
            pipeline.handler("orders", **settings)(lambda record, store: None)


def test_what_decodes_is_taken() -> None:
    for number, decode in enumerate(("json", "text", None, int, JsonSerde())):
        App("g").handler(f"t{number}", decode=decode, permanent=[ValueError])(nothing)
        pipeline = Pipeline("p", store="sqlite:///p.db")
        pipeline.handler(f"t{number}", decode=decode)(lambda record, store: None)


def test_exactly_once_is_a_word() -> None:
    with pytest.raises(ConfigError, match="exactly_once=True"):
        App("g", exactly_once=True)  # pyright: ignore[reportArgumentType]
