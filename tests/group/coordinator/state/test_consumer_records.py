"""Records 3 to 8 and 16, byte by byte (KIP-848); any legal log of them replays (G9, B24)."""

from __future__ import annotations

import random

import pytest

from kohort.errors import ProtocolError
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import (
    ClassicMetadata,
    Current,
    Field,
    MemberMetadata,
    Resolved,
    current_record,
    decode_consumer_record,
    epoch_record,
    member_record,
    regex_record,
    target_epoch_record,
    target_record,
    tombstone,
)
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.wire import record_type
from tests.group.consumer_harness import ConsumerBench, record_summaries
from tests.group.harness import replay
from tests.known import known

T, U = b"t" * 16, b"u" * 16
MEMBER = MemberMetadata("i", None, "c", "/h", ("a", "b"), "", 300, "uniform")
CURRENT = Current(5, 4, MemberState.UNREVOKED, {T: {0: 3, 2: 5}}, {U: {1: 2}})

VECTORS = {
    "epoch": (
        epoch_record("g", 5, -2),
        "0003 0001 67",
        "0000 00000005 01 00 08 fffffffffffffffe",
    ),
    "epoch, no topics": (epoch_record("g", 5, 0), "0003 0001 67", "0000 00000005 00"),
    "member": (
        member_record("g", "m", MEMBER),
        "0005 0001 67 0001 6d",
        # instance, no rack, client, host, two topics, no regex, timeout, assignor; tag 0 is null
        "0000 02 69 00 02 63 03 2f68 03 0261 0262 01 0000012c 08 756e69666f726d 01 00 01 00",
    ),
    "classic member": (
        member_record(
            "g", "m", MEMBER._replace(classic=ClassicMetadata(10_000, (("range", b"\1\2"),)))
        ),
        "0005 0001 67 0001 6d",
        "0000 02 69 00 02 63 03 2f68 03 0261 0262 01 0000012c 08 756e69666f726d"
        " 01 00 11 01 00002710 02 06 72616e6765 03 0102 00 00",
    ),
    "target epoch": (target_epoch_record("g", 7), "0006 0001 67", "0000 00000007 00"),
    "target": (
        target_record("g", "m", {U: (1,), T: (0, 2)}),
        "0007 0001 67 0001 6d",
        f"0000 03 {T.hex()} 03 00000000 00000002 00 {U.hex()} 02 00000001 00 00",
    ),
    "no target": (target_record("g", "m", {}), "0007 0001 67 0001 6d", "0000 01 00"),
    "current": (
        current_record("g", "m", CURRENT),
        "0008 0001 67 0001 6d",
        "0000 00000005 00000004 01"
        f" 02 {T.hex()} 03 00000000 00000002 01 00 09 03 00000003 00000005"
        f" 02 {U.hex()} 02 00000001 01 00 05 02 00000002 00",
    ),
    "regex": (
        regex_record("g", "a.*", Resolved(("a1", "a2"), 9)),
        "0010 0001 67 0003 612e2a",
        "0000 03 03 6131 03 6132 0000000000000000 0000000000000009 00",
    ),
    "tombstone": (tombstone(Field.PARTITION_METADATA, "g"), "0004 0001 67", None),
}


@pytest.mark.parametrize("name", VECTORS)
def test_records_are_kafkas_bytes(name: str) -> None:
    record, key, value = VECTORS[name]
    assert record.key.hex() == key.replace(" ", "")
    assert (record.value and record.value.hex()) == (value and value.replace(" ", ""))


def test_what_was_written_is_read() -> None:
    values = {
        "member": MEMBER,
        "target": {T: (0, 2), U: (1,)},
        "current": CURRENT,
        "regex": Resolved(("a1", "a2"), 9),
        "epoch": (5, -2),
        "target epoch": 7,
        "tombstone": None,
    }
    for name, value in values.items():
        record = VECTORS[name][0]
        assert decode_consumer_record(record_type(record.key), record).value == value


def test_older_and_newer_records_are_read() -> None:
    """Before KIP-1251 there were no assignment epochs; before migration nothing of classic ones."""
    old = bytes.fromhex(f"0000 00000005 00000004 00 02 {T.hex()} 02 00000003 00 01 00")
    entry = decode_consumer_record(8, GroupRecord(VECTORS["current"][0].key, old))
    assert entry.value == Current(5, 4, MemberState.STABLE, {T: {3: 5}}, {})
    strange = bytes.fromhex("0000 00000005 00000004 09 01 01 00")
    entry = decode_consumer_record(8, GroupRecord(VECTORS["current"][0].key, strange))
    assert isinstance(entry.value, Current)
    assert entry.value.state is MemberState.UNKNOWN
    plain = VECTORS["member"][0].value
    assert plain is not None
    without_tag = plain[:-4] + b"\0"
    entry = decode_consumer_record(5, GroupRecord(VECTORS["member"][0].key, without_tag))
    assert entry.value == MEMBER
    metadata = GroupRecord(tombstone(Field.PARTITION_METADATA, "g").key, b"\0\0\1\0")
    assert decode_consumer_record(4, metadata).value is not None


@pytest.mark.parametrize("kind", [3, 5, 6, 7, 8, 16])
def test_damaged_bytes_are_an_error_of_their_own(kind: int) -> None:
    record = next(r for r, _, _ in VECTORS.values() if record_type(r.key) == kind)
    assert record.value is not None
    for key, value in (
        (record.key[:-1], record.value),
        (record.key, record.value[:-1]),
        (record.key, b""),
        (record.key, record.value + b"x"),
    ):
        with pytest.raises(ProtocolError):
            decode_consumer_record(kind, GroupRecord(key, value))


def test_what_an_older_broker_kept_of_topics_goes_with_the_next_epoch() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    metadata = GroupRecord(tombstone(Field.PARTITION_METADATA, "g").key, b"\0\0\1\0")
    bench.shard.replay(metadata, 99)
    bench.check = False
    bench.keep("m1", topics=["u"])
    assert [r[:2] for r in bench.wrote()[:3]] == [(5, "m1"), (4, ""), (3, "")]
    assert not bench.consumers.has_partition_metadata


def test_a_deleted_group_leaves_nothing_behind() -> None:
    """B24, KAFKA-19862: tombstones first, in any order, of what was never there."""
    bench = ConsumerBench()
    bench.enter("m1", regex="u")
    bench.enter("m2")
    bench.settle_all()
    chance = random.Random(7)
    records = [e.record for e in bench.log if e.record is not None]
    keys = list(dict.fromkeys(r.key for r in records))
    for _ in range(20):
        shard = bench.new_shard()
        chance.shuffle(keys)
        for offset, key in enumerate(keys):
            shard.replay(GroupRecord(key, None), offset)
        assert shard.consumer_groups == {}
        last = {r.key: r for r in records}
        order = [last[key] for key in keys]
        for offset, record in enumerate(order):
            shard.replay(record, offset)
        shard.durable.settle()
        assert shard.durable == bench.shard.durable
        assert shard.consumer_groups["g"].owners == bench.consumers.owners
        assert shard.consumer_groups["g"].static_members == bench.consumers.static_members
        for offset, key in enumerate(reversed(keys)):
            shard.replay(GroupRecord(key, None), offset)
        assert shard.consumer_groups == {}


def test_a_log_that_is_cleaned_while_it_is_read() -> None:
    """B24: an unassigning record is gone already, the assigning one before it is still there."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.settle_all()
    for leaves in (False, True):
        if leaves:
            bench.beat("m2", -1)
        else:
            bench.enter("m3", topics=["u"])  # a new epoch: m2 notes it, and only then m1
            bench.keep("m2")
        bench.settle_all()
        _cleaned_in_the_middle(bench)


def _cleaned_in_the_middle(bench: ConsumerBench) -> None:
    """Wherever the cleaner has come to while the log is read, the state is the same."""
    last = {e.record.key: e.offset for e in bench.log if e.record is not None}
    for cut in range(len(bench.log)):
        kept = [e for e in bench.log if e.offset < cut or last[known(e.record).key] == e.offset]
        shard = bench.new_shard()
        replay(shard, kept)
        shard.durable.settle()
        assert shard.durable == bench.shard.durable
        assert shard.consumer_groups["g"].owners == bench.consumers.owners


def test_groups_are_equal_by_what_was_kept() -> None:
    group, other = ConsumerGroup("g"), ConsumerGroup("g")
    assert group == other
    assert group.is_gone()
    record = epoch_record("g", 1, 0)
    group.apply(decode_consumer_record(3, record))
    assert group != other
    assert group != "g"
    assert "epoch=1" in repr(group)
    assert record_summaries([record]) == [(3, "", 1)]
