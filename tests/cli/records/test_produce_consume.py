"""`kohort produce` and `kohort consume`, alone, in a group, and piped into each other."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kohort import Consumer
from kohort.client.cluster.waiting import CloseReport
from kohort.records import Record
from tests.cli.conftest import Run


def ids(text: str) -> list[tuple[int, int]]:
    return [(r["partition"], r["offset"]) for r in map(json.loads, text.splitlines())]


def test_lines_in_lines_out(kohort: Run) -> None:
    ran = kohort("produce", "lines", stdin=b"one\n\ntwo")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("3 records stored in lines (the broker made the topic")
    assert kohort("produce", "lines", stdin=b"").err == "0 records stored in lines\n"
    assert kohort("produce", "never-made", stdin=b"").err == "0 records stored in never-made\n"
    ran = kohort("consume", "lines", "--from-beginning", "--until-end", "-f", "value")
    assert (ran.code, ran.out, ran.err) == (0, "one\n\ntwo\n", "")


def test_every_option_of_a_record(kohort: Run, tmp_path: Path) -> None:
    kohort("topic", "create", "opts", "-p", "3")
    file = tmp_path / "in.txt"
    file.write_bytes(b"k1:v1\nk2:-\n")
    ran = kohort(
        "produce",
        "opts",
        str(file),
        "--key-separator",
        ":",
        "--null",
        "-",
        "-p",
        "2",
        "-H",
        "a=1",
        "-H",
        "a=2",
        "-z",
        "zstd",
    )
    assert ran.err == "2 records stored in opts\n"
    ran = kohort("consume", "opts", "--from-beginning", "--until-end")
    first, second = map(json.loads, ran.lines)
    assert (first["partition"], first["key"], first["value"]) == (2, "k1", "v1")
    assert first["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    assert second["value"] is None
    kohort("produce", "opts", "--key", "all", "-p", "0", stdin=b"x\n")
    ran = kohort(
        "consume",
        "opts",
        "--partition",
        "0",
        "--offset",
        "0",
        "--until-end",
        "-f",
        "key-value",
        "--key-separator",
        "=",
    )
    assert ran.out == "all=x\n"


def test_a_topic_is_copied_by_a_pipe(kohort: Run) -> None:
    """What consume prints, produce --jsonl stores: keys, nulls, bytes, headers, partitions."""
    for name in ("from", "to"):
        kohort("topic", "create", name, "-p", "2")
    lines = (
        b'{"key": "a", "value_base64": "/wA=", "partition": 1, "timestamp": 1000}\n'
        b'{"value": null, "headers": [{"name": "h", "value": null}], "partition": 0}\n'
    )
    assert kohort("produce", "from", "--jsonl", stdin=lines).code == 0
    original = kohort("consume", "from", "--from-beginning", "--until-end").out
    assert kohort("produce", "to", "--jsonl", stdin=original.encode()).code == 0
    copied = kohort("consume", "to", "--from-beginning", "--until-end").out
    assert sorted(copied.replace('"to"', '"from"').splitlines()) == sorted(original.splitlines())


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (("--key-separator", ":"), b"a:1\nb2\n", "line 2: no key separator ':' in 'b2'; 1 record"),
        (("--jsonl",), b"{}\n{}\n{\n", "line 3: not JSON"),
        (("--jsonl",), b'{"valeu": 1}\n', "did you mean 'value'?; nothing was stored"),
        (("-p", "9"), b"a\n", "partition"),
        ((), b"ok\n" + b"x" * 1_100_000 + b"\nlast\n", "line 2 is longer than 1,048,576 bytes"),
        (("--key", "k" * 60), b"ok\n" + b"x" * 1_048_560 + b"\n", "line 2: "),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    kohort: Run, args: tuple[str, ...], stdin: bytes, message: str
) -> None:
    """Exit code 1; the records before it are stored, and how many that are is said."""
    kohort("topic", "create", "bad", "--if-not-exists")
    before = len(kohort("consume", "bad", "--from-beginning", "--until-end").lines)
    ran = kohort("produce", "bad", *args, stdin=stdin)
    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err
    after = len(kohort("consume", "bad", "--from-beginning", "--until-end").lines)
    stored = 0 if "nothing was stored" in ran.err else int(ran.err.split("; ")[-1].split()[0])
    assert after - before == stored


@pytest.mark.parametrize(
    "args",
    [
        ("produce", "t", "--jsonl", "--key-separator", ":"),
        ("produce", "t", "--key", "a", "--key-separator", ":"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "-H", "novalue"),
        ("produce", "t", "/no/such/file"),
        ("consume", "t", "--group", "g", "--offset", "1"),
        ("consume", "t", "--group", "g", "--partition", "1"),
        ("consume", "t", "--from-beginning", "--offset", "1"),
        ("consume", "t", "--offset", "soon"),
        ("consume", "t", "--timeout", "soon"),
        ("consume", "t", "-X", "group.id=g"),
        ("consume", "t", "-g", "g", "-X", "enable.auto.commit=false"),
        ("consume",),
    ],
)
def test_options_that_do_not_go_together(bare: Run, args: tuple[str, ...]) -> None:
    """Wrong usage is exit code 2, and told before anything is connected."""
    ran = bare(*args, "-b", "127.0.0.1:1")
    assert (ran.code, ran.out) == (2, "")


def test_where_to_start(kohort: Run) -> None:
    kohort("topic", "create", "where", "-p", "2")
    lines = b"".join(
        b'{"value": "%d", "partition": %d, "timestamp": %d}\n' % (i, i % 2, 1000 + i)
        for i in range(10)
    )
    kohort("produce", "where", "--jsonl", stdin=lines)

    def read(*args: str) -> list[int]:
        out = kohort("consume", "where", "--until-end", "-f", "value", *args).out
        return sorted(map(int, out.split()))

    assert read() == []
    assert read("--offset", "earliest") == list(range(10))
    assert read("--offset", "3") == [6, 7, 8, 9]
    assert read("--offset", "-1") == [8, 9]
    assert read("--offset", "@1970-01-01T00:00:01.004Z") == [4, 5, 6, 7, 8, 9]
    assert read("--offset", "-2", "-p", "1") == [7, 9]
    assert read("--offset", "@-1m") == []
    ran = kohort("consume", "where", "--offset", "6")
    assert ran.code == 1
    assert "holds 0 to 5" in ran.err
    ran = kohort("consume", "where", "-p", "2")
    assert ran.code == 1
    assert "has no partition 2; it has 2: 0 to 1" in ran.err


class Silence:
    """Time that passes only while no record comes that is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, there: int) -> None:
        self.now_s, poll = 0.0, Consumer.poll
        left: dict[Consumer, int] = {}
        self.time_ns = time.time_ns

        def polled(consumer: Consumer, timeout: float, **more: int) -> Sequence[Record]:
            found = poll(consumer, timeout, **more)
            left[consumer] = left.get(consumer, there) - len(found)
            if not found and not left[consumer]:
                self.now_s += timeout
            return found

        monkeypatch.setattr(Consumer, "poll", polled)
        monkeypatch.setattr("kohort.cli.records.consume.time", self)

    def monotonic(self) -> float:
        return self.now_s


def test_bounds(kohort: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kohort("produce", "bounds", stdin=b"1\n2\n3\n")
    Silence(monkeypatch, there=3)
    ran = kohort("consume", "bounds", "--from-beginning", "--max", "2")
    assert ids(ran.out) == [(0, 0), (0, 1)]
    ran = kohort("consume", "bounds", "--from-beginning", "--max", "5", "--timeout", "2s")
    assert ran.code == 4
    assert len(ran.lines) == 3
    assert ran.err == "read 3 records; 5 were asked for, no more came for 2 s\n"
    ran = kohort("consume", "bounds", "--from-beginning", "--timeout", "2s")
    assert (ran.code, len(ran.lines), ran.err) == (0, 3, "")


def test_a_group_goes_on_where_it_stopped(kohort: Run) -> None:
    """--from-beginning holds only where nothing is committed; each record comes once."""
    kohort("topic", "create", "gone-on", "-p", "3")
    kohort(
        "produce",
        "gone-on",
        "--key-separator",
        ":",
        stdin=b"".join(b"%d:x\n" % i for i in range(30)),
    )
    group = ("consume", "gone-on", "--group", "g1", "--from-beginning")
    first = kohort(*group, "--max", "7")
    assert (first.code, len(first.lines)) == (0, 7)
    rest = kohort(*group, "--until-end")
    assert len(rest.lines) == 23
    assert not set(ids(first.out)) & set(ids(rest.out))
    assert kohort(*group, "--until-end").out == ""
    lags = kohort("group", "lag", "g1", "-o", "json").json["rows"]
    assert [row["lag"] for row in lags] == [0, 0, 0]


def test_a_commit_that_was_not_confirmed_is_told(
    kohort: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4: the records were read, and will be read again."""
    real = Consumer.close

    def close(self: Consumer, timeout: float = 30.0) -> CloseReport:
        return real(self, timeout)._replace(committed=False)

    monkeypatch.setattr(Consumer, "close", close)
    kohort("produce", "unconfirmed", stdin=b"1\n")
    args = ("consume", "unconfirmed", "-g", "g2", "--from-beginning", "--until-end")
    ran = kohort(*args)
    assert (ran.code, len(ran.lines)) == (4, 1)
    assert ran.err == (
        "read 1 record, not committed to group g2: the last of them will be read again\n"
    )
