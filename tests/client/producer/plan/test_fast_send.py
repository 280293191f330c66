"""The producer's hot path: the compiled one and its specification do the same."""

from __future__ import annotations

import random
from array import array

import pytest

from kohort.client.producer.plan import fast_send as front
from kohort.client.producer.plan import fast_send_choice as front_implementation
from kohort.client.producer.plan import partitioner
from kohort.client.producer.plan.delivery import Delivery
from kohort.errors import KafkaTimeoutError, UsageError
from kohort.records import BatchBuilder, BinaryColumn

IMPLEMENTATIONS = [
    pytest.param((front, partitioner), id="python"),
    pytest.param((front_implementation, front_implementation), id=front_implementation.FRONT),
]


@pytest.fixture(params=IMPLEMENTATIONS)
def impl(request):
    return request.param


class Slow:
    """Stands in for the slow path and remembers what came to it."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, *args):
        self.calls.append(args)
        return "slow"


@pytest.fixture
def made(impl):
    """A front over one topic with four partitions, of which partition 3 has no open batch."""
    module = impl[0]
    slots = []
    for number in range(4):
        slot = module.Slot()
        if number < 3:
            slot.builder = BatchBuilder(max_bytes=200)
            slot.delivery = Delivery("t", number)
        slots.append(slot)
    topic = module.TopicSlots()
    topic.slots, topic.sticky = slots, 1
    guard, slow = module.Guard(), Slow()
    return module.Front(guard, {"t": topic}, False, slow), slots, slow, guard


def test_records_go_to_the_sticky_the_given_or_the_keys_partition(impl, made):
    send, slots, slow, _ = made[0].send, *made[1:]
    send("t", b"a")
    send("t", b"b", partition=2)
    key = next(k for k in (b"%d" % n for n in range(100)) if impl[1].for_key(k, 4) == 0)
    send("t", b"c", key)
    assert [len(slot.builder) for slot in slots[:3]] == [1, 1, 1]
    assert slow.calls == []


@pytest.mark.parametrize("when_ms", [1 << 63, 1 << 70, -1, -(1 << 70)])
def test_a_time_that_no_record_can_have_is_the_slow_paths_matter(made, when_ms):
    """Which says what is wrong, whether the topic is known already or not."""
    send, slots, slow, _ = made[0].send, *made[1:]
    assert send("t", b"a", b"k", 1, when_ms) == "slow"
    assert slow.calls == [("t", b"a", b"k", 1, when_ms, ())]
    assert [len(slot.builder) for slot in slots[:3]] == [0, 0, 0]


def test_a_future_knows_its_record(made):
    send, slots, _, _ = made[0].send, *made[1:]
    send("t", b"a")
    future = send("t", b"b", None, None, 77)
    assert not future.done
    with pytest.raises(KafkaTimeoutError):
        future.result(0)
    with pytest.raises(KafkaTimeoutError):
        future.error(0)
    seen = []
    future.add_done_callback(seen.append)
    slots[1].delivery.complete(None, 10)
    assert future.result() == ("t", 1, 11, 77)
    assert future.error() is None
    assert seen == [future]


def test_what_is_unusual_goes_the_slow_way(made):
    send, slots, slow, _ = made[0].send, *made[1:]
    assert send("unknown", b"v") == "slow"
    assert send("t", b"v", partition=3) == "slow"
    assert send("t", b"v", partition=4) == "slow"
    assert send("t", b"v", partition=-1) == "slow"
    while send("t", b"x" * 50, None, 0) != "slow":
        pass
    assert [args[3] for args in slow.calls] == [None, 3, 4, -1, 0]
    assert len(slots[0].builder) == 2


def test_a_partitioner_of_ones_own_goes_the_slow_way_unless_the_partition_is_given(impl, made):
    module = impl[0]
    topic = module.TopicSlots()
    topic.slots, topic.sticky = made[1], 0
    slow = Slow()
    send = module.Front(module.Guard(), {"t": topic}, True, slow).send
    assert send("t", b"v", b"k") == "slow"
    assert send("t", b"v", b"k", 2) != "slow"


def test_headers_and_other_bytes_are_kept(made):
    send, slots = made[0].send, made[1]
    for args in ((bytearray(b"v"), memoryview(b"k"), 1), (b"v", b"k", 1, 5, [("h", b"x")])):
        result = send("t", *args)
        assert result == "slow" or len(slots[1].builder) > 0


def test_murmur2_is_the_same_for_every_length(impl):
    rng = random.Random(1)
    for size in range(40):
        data = rng.randbytes(size)
        assert impl[1].murmur2(data) == partitioner.murmur2(data)
        assert impl[1].for_key(data, 7) == partitioner.for_key(data, 7)
        assert impl[1].for_key(memoryview(bytearray(data)), 7) == partitioner.for_key(data, 7)


def test_the_guard_excludes(made):
    guard = made[3]
    with guard:
        pass
    with pytest.raises(ZeroDivisionError), guard:
        _ = 1 // 0
    with guard:
        pass


def test_rows_by_key_are_each_keys_partition_in_order():
    rng = random.Random(5)
    keys = [None if rng.random() < 0.2 else rng.randbytes(rng.randrange(12)) for _ in range(500)]
    offsets, data, bits = array("i", [0, 0, 0]), b"", bytearray(b"\xff" * 64)
    for row, key in enumerate(keys):
        data += key or b""
        offsets.append(len(data))
        if key is None:
            bits[(row + 2) >> 3] &= ~(1 << ((row + 2) & 7)) & 0xFF
    column = BinaryColumn(bytes(bits), offsets.tobytes(), data, 1, 2)
    for partitions in (1, 3, 50):
        found = partitioner.rows_by_key(column, 500, partitions)
        assert [
            list(rows) for rows in front_implementation.rows_by_key(column, 500, partitions)
        ] == [list(rows) for rows in found]
        for number, rows in enumerate(found):
            asked = None if number == partitions else number
            chosen = [k if k is None else partitioner.for_key(k, partitions) for k in keys]
            assert list(rows) == [row for row, at in enumerate(chosen) if at == asked]


@pytest.mark.parametrize("rows_by_key", [front_implementation.rows_by_key, partitioner.rows_by_key])
def test_a_column_of_keys_that_is_none_is_refused(rows_by_key):
    assert [list(rows) for rows in rows_by_key(BinaryColumn(None, b"", b""), 0, 2)] == [[], [], []]
    words = array("i", [0, 2, 1]).tobytes()
    for column, what in (
        (BinaryColumn(None, words, b"ab"), "outside"),
        (BinaryColumn(None, words[:8], b"ab"), "too short"),
        (BinaryColumn(b"", words, b"ab"), "too short"),
        (BinaryColumn(None, array("i", [0, 1, 3]).tobytes(), b"ab"), "outside"),
        (BinaryColumn(None, array("i", [-1, 1, 2]).tobytes(), b"ab"), "outside"),
    ):
        with pytest.raises(UsageError, match=what):
            rows_by_key(column, 2, 4)
