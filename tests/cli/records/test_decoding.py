"""`kohort consume` and `produce` with a schema registry and with patterns (spec 8.1)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kohort import Producer
from kohort.cli.common.progress import Progress
from kohort.serdes import Schema, SchemaRegistry
from kohort.serdes.framed import framed
from tests.cli.conftest import Run
from tests.clusters import Cluster
from tests.serdes.fake_registry import running
from tests.serdes.test_registry import USER

ADA, BOB = b'{"name": "ada", "age": 36}', b'{"name": "bob", "age": 7}'


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with running() as server:
        SchemaRegistry(server.url).register("people-value", Schema(json.dumps(USER)))
        yield server.url


def test_avro_goes_in_and_comes_out_as_json(kohort: Run, registry: str) -> None:
    lines = ADA + b"\n" + BOB + b"\n"
    assert kohort("produce", "people", "--registry", registry, stdin=lines).code == 0
    kohort("produce", "people", stdin=b"no frame\n")
    read = ("consume", "people", "--from-beginning", "--until-end", "--registry", registry)
    first, second, third = map(json.loads, kohort(*read).lines)
    assert (first["value"], second["value"]) == (json.loads(ADA), json.loads(BOB))
    assert third["value"] == "no frame"
    assert "do not begin as a schema registry's format does" in third["value_error"]
    assert kohort(*read, "-f", "value", "--match-value", '"age": 7').lines == [BOB.decode()]
    raw = kohort("consume", "people", "--from-beginning", "--until-end").lines[0]
    assert b"\0" not in raw.encode(), "without a registry the bytes are shown as they are"


def test_a_group_gets_past_half_a_surrogate_pair(
    kohort: Run, cluster: Cluster, registry: str
) -> None:
    schema = SchemaRegistry(registry).register("halves-value", Schema("{}", "JSON"))
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for payload in (b'"\\ud83d"', b'"whole"'):
            producer.send("halves", framed(schema, payload))
    read = ("consume", "halves", "-g", "past", "--from-beginning", "--until-end")
    ran = kohort(*read, "--registry", registry)
    assert ran.code == 0
    assert sorted(json.loads(line)["value"] for line in ran.lines) == ["whole", "\ud83d"]


def test_a_value_that_does_not_fit_ends_produce_with_its_line(kohort: Run, registry: str) -> None:
    for line, message in (
        (b'{"name": "eve"}', "line 2: the value does not fit its Avro schema"),
        (b"eve", "line 2: the value is not JSON"),
    ):
        ran = kohort("produce", "people", "--registry", registry, stdin=ADA + b"\n" + line + b"\n")
        assert ran.code == 1
        assert message in ran.err
        assert "1 record before it was stored" in ran.err


def test_a_registry_that_does_not_answer_ends_the_command(kohort: Run) -> None:
    kohort("produce", "framed", "--jsonl", stdin=b'{"value_base64": "AAAAAAEC"}\n')
    ran = kohort(
        "consume", "framed", "--from-beginning", "--until-end", "--registry", "http://127.0.0.1:1"
    )
    assert (ran.code, ran.out) == (1, "")
    assert "no schema registry answers" in ran.err


def test_records_are_chosen_by_key_value_and_headers(kohort: Run) -> None:
    lines = (
        b'{"key": "ada", "value": "1", "headers": [{"name": "source", "value": "web"}]}\n'
        b'{"key": "bob", "value": "2", "headers": [{"name": "source", "value": "shop"}]}\n'
        b'{"key": "adam", "value": null}\n'
    )
    kohort("produce", "chosen", "--jsonl", stdin=lines)
    read = (
        "consume",
        "chosen",
        "--from-beginning",
        "--until-end",
        "-f",
        "key-value",
        "--key-separator",
        "=",
    )
    for options, found in (
        (("--match-key", "^ada$"), ["ada=1"]),
        (("--match-key", "ada"), ["ada=1", "adam=null"]),
        (("--match-value", "[12]"), ["ada=1", "bob=2"]),
        (("--match-header", "source=^shop$"), ["bob=2"]),
        (("--match-header", "source", "--match-key", "a"), ["ada=1"]),
        (("--match-header", "source", "--max", "1"), ["ada=1"]),
    ):
        assert kohort(*read, *options).lines == found
    ran = kohort(*read, "--match-key", "(")
    assert ran.code == 2
    assert "--match-key '(' is not a regular expression" in ran.err


class Terminal:
    """What was written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""


def test_progress_is_one_line_with_the_rate_of_the_last_moment() -> None:
    now, out = 0.0, Terminal()
    line = Progress(out, lambda: now)  # type: ignore[arg-type]
    line.add(1_000)
    assert out.text == "", "not before half a second"
    now = 0.5
    line.add(1_000)
    now = 1.5
    line.add(500)
    line.end()
    assert out.text.split("\r\x1b[K") == ["", "2,000 records, 4,000/s", "2,500 records, 500/s", ""]
    silent = Progress(None, lambda: now)
    silent.add(1)
    silent.end()
