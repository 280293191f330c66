"""What remote processes say: bounded in size, checked field by field, obeyed once and in time."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from kohort.remote.messages import (
    COMMAND_TTL_MS,
    PARTITIONS_MAX,
    STATUS_BYTES_MAX,
    Action,
    Command,
    MessageFault,
    ProcessStatus,
    Result,
    decode_command,
    decode_status,
    encode_command,
    encode_status,
)
from kohort.remote.obeying import SEEN_MAX, Obedience
from kohort.remote.processes import GRACE_MS, MISSED, processes

STATUS = ProcessStatus(
    process="billing@a/1",
    kind="app",
    group="billing",
    host="a",
    pid=1,
    version="1",
    started_ms=1,
    at_ms=2,
    interval_ms=5_000,
    state="running",
    actions=(Action.PAUSE,),
    figures={"lag": 3},
    partitions=[{"topic": "orders", "partition": 0, "why": None}],
    troubles=["slow"],
    results=(Result("c1", True, "done"),),
)
COMMAND = Command("c1", "billing", Action.PAUSE, by="ann", at_ms=5)


def test_a_status_and_a_command_are_read_as_they_were_written() -> None:
    assert decode_status(encode_status(STATUS)) == STATUS
    assert decode_command(encode_command(COMMAND)) == COMMAND


def test_a_status_is_never_larger_than_its_limit_and_keeps_the_worst_partitions() -> None:
    rows = [{"topic": "t" * 300, "partition": n, "why": "w" * 900} for n in range(2_000)]
    data = encode_status(replace(STATUS, partitions=rows, troubles=["x" * 10_000] * 99))
    assert len(data) <= STATUS_BYTES_MAX
    found = decode_status(data)
    assert 0 < len(found.partitions) <= PARTITIONS_MAX
    assert [one["partition"] for one in found.partitions] == list(range(len(found.partitions)))
    huge = encode_status(replace(STATUS, figures={f"f{n}": "x" * 400 for n in range(500)}))
    assert len(huge) <= STATUS_BYTES_MAX
    assert decode_status(huge).process == STATUS.process


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"schema": 2}',
        b'{"schema": 1}',
        b"[" * 10_000,
        b'{"schema": 1, "process": 5}',
        b"\xff",
        b"{" + b" " * STATUS_BYTES_MAX,
        encode_status(STATUS).replace(b'"pid":1', b'"pid":-1'),
        encode_status(STATUS).replace(b'"pid":1', b'"pid":true'),
        encode_status(STATUS).replace(b'"troubles":["slow"]', b'"troubles":7'),
    ],
)
def test_hostile_records_are_faults(data: bytes) -> None:
    for decode in (decode_status, decode_command):
        with pytest.raises(MessageFault):
            decode(data)


def test_deep_things_of_others_are_flat_text_here() -> None:
    fields = json.loads(encode_status(STATUS)) | {
        "figures": {"deep": {"a": [1]}, "nan": float("nan")},
        "partitions": [{"why": ["<script>"]}, 7],
        "actions": ["fly", "pause"],
    }
    found = decode_status(json.dumps(fields).encode())
    assert found.figures == {"deep": "{'a': [1]}", "nan": None}
    assert found.partitions == [{"why": "['<script>']"}]
    assert found.actions == (Action.PAUSE,)


def test_a_command_is_taken_once_by_those_it_is_for() -> None:
    mine = Obedience("billing", "p1")
    assert mine.takes(COMMAND)
    assert not mine.takes(COMMAND), "a repeated record is no second command"
    assert not mine.takes(replace(COMMAND, id="c2", group="other"))
    assert not mine.takes(replace(COMMAND, id="c3", process="p2"))
    assert mine.takes(replace(COMMAND, id="c4", process="p1"))
    for number in range(2 * SEEN_MAX):
        mine.takes(replace(COMMAND, id=f"n{number}"))
        mine.done(COMMAND, ok=True, text=str(number))
    assert len(mine.results) == 8


def test_an_old_command_is_not_obeyed_and_says_why() -> None:
    mine = Obedience("billing", "p1")
    assert not mine.too_late(1_000, 1_000 + COMMAND_TTL_MS)
    assert "90 s old by this machine's clock" in mine.too_late(0, 90_000)


@dataclass
class Stored:
    key: bytes | None
    value: bytes | None
    timestamp: int


def test_the_last_word_of_each_process_counts() -> None:
    """A tombstone removes one, silence makes it gone, a stranger's record is passed over."""
    other = replace(STATUS, process="audit@b/2", group="audit")
    records = [
        Stored(b"a", encode_status(STATUS), 1_000),
        Stored(b"b", encode_status(other), 2_000),
        Stored(b"c", b"nonsense", 3_000),
        Stored(b"d", encode_status(STATUS), 3_000),
        Stored(b"d", None, 3_500),
        Stored(b"a", encode_status(replace(STATUS, state="paused")), 30_000),
    ]
    first, second = processes(records, now_ms=30_000)
    assert (first.status.group, first.state, first.silent_ms) == ("audit", "gone", 28_000)
    assert (second.state, second.gone) == ("paused", False)
    limit_ms = 30_000 + MISSED * 5_000 + GRACE_MS
    assert not processes(records, limit_ms)[1].gone
    assert processes(records, limit_ms + 1)[1].gone


def test_a_command_for_one_record_carries_its_place() -> None:
    one = Command("c2", "billing", Action.RETRY_RECORD, at="orders.billing.retry.5m/3/17")
    assert decode_command(encode_command(one)) == one
    assert one.place == ("orders.billing.retry.5m", 3, 17)
    for at in ("", "t", "t/1", "t/1/x", "/1/2", "t/-1/2"):
        with pytest.raises(MessageFault, match="no TOPIC/PARTITION/OFFSET"):
            _ = Command("c3", "billing", Action.RETRY_RECORD, at=at).place
