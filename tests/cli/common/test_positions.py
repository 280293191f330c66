"""Where to start: an offset is never taken for a time, nor the other way round."""

from __future__ import annotations

import pytest

from kohort.cli.common.positions import Start, parse_start, parse_time
from kohort.errors import ConfigError, UsageError

NOW = 1_767_225_600_000  # 2026-01-01T00:00Z


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("42", Start("offset", 42)),
        ("-5", Start("last", 5)),
        ("@2026-01-01T00:00Z", Start("time", time_ms=NOW)),
        ("@2026-01-01", Start("time", time_ms=NOW)),
        ("@2026-01-01T01:00:00.5+01:00", Start("time", time_ms=NOW + 500)),
        ("@-2h", Start("time", time_ms=NOW - 7_200_000)),
    ],
)
def test_forms(text: str, start: Start) -> None:
    assert parse_start(text, NOW) == start


@pytest.mark.parametrize("text", ["", "first", "--5", "1.5", "2026-01-01", "@", "@later", "@-5"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_start(text, NOW)


def test_offsets_in_a_partition_that_holds_10_to_19() -> None:
    def at(text: str, by_time: int | None = None) -> int:
        return parse_start(text, NOW).offset_in("t-0", 10, 20, by_time)

    assert (at("earliest"), at("latest"), at("15"), at("20")) == (10, 20, 15, 20)
    assert (at("-3"), at("-300")) == (17, 10)
    assert (at("@-2h", 12), at("@-2h")) == (12, 20)
    for gone in ("9", "21"):
        with pytest.raises(UsageError, match="holds 10 to 20"):
            at(gone)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_time("2026-01-01T00:00", 0) == NOW
