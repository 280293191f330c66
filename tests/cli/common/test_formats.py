"""Records as lines: nothing is lost on the way out and in again; what is wrong is said."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kohort.cli.common.formats import (
    Header,
    Outgoing,
    Parsed,
    as_full,
    as_json,
    form_of,
    iso_time,
    parse_header,
    read_json,
    read_line,
    separator_of,
)
from kohort.errors import ConfigError


@dataclass
class Rec:
    topic: str = "orders"
    partition: int = 2
    offset: int = 7
    timestamp: int = 1_767_225_600_123
    key: bytes | Parsed | None = b"k"
    value: bytes | Parsed | None = b"v"
    headers: list[Header] = field(default_factory=list)


optional_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
headers = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=4)


@example(None, None, [], -1)
@given(optional_bytes, optional_bytes, headers, st.integers(-1, 1 << 40))
def test_what_consume_prints_produce_reads(
    key: bytes | None, value: bytes | None, headers: list[Header], timestamp: int
) -> None:
    """jsonl is lossless for text, bytes that are not UTF-8, nulls and headers in order."""
    line = as_json(Rec(key=key, value=value, headers=headers, timestamp=timestamp))
    assert "\n" not in line
    known = None if timestamp == -1 else timestamp
    assert read_json(line.encode()) == Outgoing(value, key, tuple(headers), 2, known)


def test_json_is_one_object_with_known_fields() -> None:
    record = Rec(value=b"\xff", headers=[("a", b"1"), ("a", None)])
    assert as_json(record) == (
        '{"topic": "orders", "partition": 2, "offset": 7, "timestamp": 1767225600123, "key": "k", '
        '"value_base64": "/w==", "headers": [{"name": "a", "value": "1"}, '
        '{"name": "a", "value": null}]}'
    )


def test_a_value_in_json_that_is_no_text_is_stored_as_json() -> None:
    assert (
        read_json(b'{"value": {"id": 1, "name": "\xc3\xa9"}}').value
        == '{"id": 1, "name": "é"}'.encode()
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"value": ' + b"[" * 100_000, "not JSON: maximum recursion"),
        (b"[1]", "a JSON object is needed"),
        (b'{"valeu": 1}', "did you mean 'value'"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both given"),
        (b'{"value_base64": "?"}', "not base64"),
        (b'{"value_base64": 1}', "not base64"),
        (b'{"headers": {"a": "b"}}', "must be a list"),
        (b'{"headers": ["a"]}', "a header must be"),
        (b'{"headers": [{"value": "a"}]}', "a header must be"),
        (b'{"partition": -1}', "partition must be a whole number"),
        (b'{"partition": true}', "partition must be a whole number"),
        (b'{"timestamp": "now"}', "timestamp must be a whole number"),
        (b'{"timestamp": -2}', "timestamp must be a whole number"),
        (b'{"value": "\\ud800"}', "UTF-8"),
        (b'{"headers": [{"name": "\\ud800"}]}', "a header's name is not text that UTF-8"),
    ],
)
def test_a_bad_line_is_refused_with_the_reason(line: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_json(line)


def test_lines_of_text() -> None:
    assert read_line(b"a:b:c", b":", None) == Outgoing(b"b:c", b"a")
    assert read_line(b"NULL:x", b":", b"NULL") == Outgoing(b"x", None)
    assert read_line(b"a:NULL", b":", b"NULL") == Outgoing(None, b"a")
    assert read_line(b"plain:text", None, None) == Outgoing(b"plain:text")
    assert read_line(b"", None, b"") == Outgoing(None)
    with pytest.raises(ConfigError, match="no key separator ':' in 'abc'"):
        read_line(b"abc", b":", None)


def test_a_separator_as_a_shell_types_it() -> None:
    """`--key-separator '\\t'` is how kcat and everybody's fingers write a tab."""
    assert separator_of("\\t") == b"\t"
    assert separator_of("\\n--\\0") == b"\n--\0"
    assert separator_of(":") == b":"


def test_headers_of_the_command_line() -> None:
    assert parse_header("a=b=c") == ("a", b"b=c")
    for wrong in ("a", "=b"):
        with pytest.raises(ConfigError, match="NAME=VALUE"):
            parse_header(wrong)


def test_a_record_for_people_cannot_drive_the_terminal() -> None:
    shown = as_full(Rec(key=None, value=b"\x1b[2Jred\xff\n", headers=[("h\x1b", b"\x07")]))
    assert shown.isprintable()
    assert shown == (r"orders-2 7  2026-01-01T00:00:00.123Z  null  \x1b[2Jred\xff\n  h\x1b=\x07")


def test_every_decoded_value_is_a_line_of_json() -> None:
    """JSON may hold half of a pair (a lone surrogate); UTF-8 and JSON have no NaN."""
    odd = Parsed({"half": "\ud83d", "rate": float("nan"), "all": [float("-inf"), 1.5]})
    shown = b'{"half": "\\ud83d", "rate": "NaN", "all": ["-Infinity", 1.5]}'
    read = {"half": "\ud83d", "rate": "NaN", "all": ["-Infinity", 1.5]}
    assert form_of("value", b"\t")(Rec(value=odd)) == shown + b"\n"
    assert form_of("key-value", b"|")(Rec(key=odd)) == shown + b"|v\n"
    line = form_of("jsonl", b"\t")(Rec(key=odd, value=odd))
    assert b"NaN," not in line
    assert json.loads(line)["key"] == json.loads(line)["value"] == read
    assert form_of("full", b"\t")(Rec(value=odd)).decode().rstrip().endswith(shown.decode())


def test_raw_forms_keep_bytes_as_they_are() -> None:
    assert form_of("value", b"\t")(Rec(value=b"\xff\x00")) == b"\xff\x00\n"
    assert form_of("key-value", b"|")(Rec(value=None)) == b"k|null\n"


def test_times_are_utc_and_may_be_missing() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(-1) is None
    assert iso_time(None) is None
    assert iso_time(1 << 62) == f"{1 << 62}ms"
