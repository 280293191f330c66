"""Produce and Fetch against a node under a virtual clock."""

from __future__ import annotations

import errno

import pytest

from kohort.errors import ErrorCode
from kohort.records import BatchHeader, Compression
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.produce_request import ProduceRequest, TopicProduceData
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.harness import (
    Harness,
    batch_of,
    fetch_request,
    produce_request,
    records_of,
)


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.create("t", 2)
    return made


@pytest.mark.parametrize("codec", list(Compression))
def test_what_is_produced_is_fetched_byte_for_byte(harness: Harness, codec: Compression) -> None:
    """Batches are stored as they came; only base offset and leader epoch are stamped (L3)."""
    batch = batch_of([b"a" * 50, b"b" * 50], compression=codec)
    first = harness.produce("t", batch)
    second = harness.produce("t", batch)
    assert (first.base_offset, second.base_offset) == (0, 2)
    data = harness.fetch("t", 0)
    stored = bytes(data.records or b"")  # type: ignore[arg-type]
    assert stored[16 : len(batch)] == batch[16:]
    assert BatchHeader(stored, len(batch)).base_offset == 2
    assert records_of(data) == [(0, b"a" * 50), (1, b"b" * 50), (2, b"a" * 50), (3, b"b" * 50)]
    assert data.high_watermark == data.last_stable_offset == 4


def test_a_fetch_from_inside_a_batch_has_the_whole_batch(harness: Harness) -> None:
    harness.produce("t", batch_of([b"a", b"b", b"c"]))
    assert records_of(harness.fetch("t", 2), 2) == [(2, b"c")]


def test_acks_zero_is_not_answered(harness: Harness) -> None:
    assert harness.send(produce_request("t", batch_of([b"a"]), acks=0), 9).silent
    assert harness.read_all("t") == [(0, b"a")]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda b: b[:40] + b"\xff" + b[41:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x01" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x03" + b[17:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b + b[:5], ErrorCode.INVALID_RECORD),
        (lambda b: b"", ErrorCode.INVALID_RECORD),
        (lambda b: b[:10], ErrorCode.INVALID_RECORD),
        (lambda b: b[:11] + b"\x30" + b[12:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:7] + b"\x07" + b[8:], ErrorCode.INVALID_RECORD),
        (lambda b: b"\xff" + b[1:], ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "crc",
        "cut",
        "magic",
        "no magic",
        "two",
        "rest",
        "none",
        "stub",
        "length",
        "base offset",
        "negative offset",
    ],
)
def test_a_bad_batch_is_refused_and_changes_nothing(harness: Harness, spoil, code) -> None:
    answer = harness.produce("t", spoil(batch_of([b"x" * 100])))
    assert ErrorCode(answer.error_code) == code
    assert answer.base_offset == -1
    assert harness.fetch("t", 0).high_watermark == 0


def test_a_batch_over_the_limit_is_refused(harness: Harness) -> None:
    harness.create("small", max_message_bytes="200")
    answer = harness.produce("small", batch_of([b"x" * 300]))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in (answer.error_message or "")


def test_unknown_topic_partition_and_acks(harness: Harness) -> None:
    batch = batch_of([b"a"])
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert harness.produce("nope", batch).error_code == unknown
    assert harness.produce("t", batch, 9).error_code == unknown
    assert harness.produce("t", batch, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_produce_and_fetch_by_topic_id(harness: Harness) -> None:
    """KIP-516: Produce v13 and Fetch v13 name topics by id alone."""
    topic = harness.node.topics.get("t")
    assert topic is not None
    request = produce_request("t", batch_of([b"a"]))
    request.topic_data[0].topic_id = topic.topic_id
    answer = harness.ask(request, ProduceResponse, 13)
    assert answer.responses[0].topic_id == topic.topic_id
    assert answer.responses[0].partition_responses[0].error_code == 0
    fetch = fetch_request("t", 0)
    fetch.topics[0].topic_id = topic.topic_id
    got = harness.ask(fetch, FetchResponse, 18)
    assert records_of(got.responses[0].partitions[0]) == [(0, b"a")]
    fetch.topics[0].topic_id = bytes(15) + b"\x99"
    got = harness.ask(fetch, FetchResponse, 18)
    assert got.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_zstd_needs_a_client_that_can_read_it(harness: Harness) -> None:
    """KIP-110."""
    request = produce_request("t", batch_of([b"a"], compression=Compression.ZSTD))
    answer = harness.ask(request, ProduceResponse, 6)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_log_append_time(harness: Harness) -> None:
    """message.timestamp.type=LogAppendTime: the batch has the broker's time, and says so."""
    harness.create("appended", message_timestamp_type="LogAppendTime")
    answer = harness.produce("appended", batch_of([b"a"], timestamp=5))
    assert answer.log_append_time_ms == harness.env.wall_ms()
    header = BatchHeader(bytes(harness.fetch("appended", 0).records or b""))  # type: ignore[arg-type]
    assert header.max_timestamp == harness.env.wall_ms()
    assert header.timestamp_type == 1
    assert records_of(harness.fetch("appended", 0)) == [(0, b"a")]


def test_a_timestamp_too_far_ahead_is_refused(harness: Harness) -> None:
    """message.timestamp.after.max.ms, an hour by default (KIP-937)."""
    ahead = harness.env.wall_ms() + 3_600_001
    answer = harness.produce("t", batch_of([b"a"], timestamp=ahead))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


def test_a_compacted_topic_needs_keys(harness: Harness) -> None:
    harness.create("compacted", cleanup_policy="compact")
    assert harness.produce("compacted", batch_of([b"a"])).error_code == ErrorCode.INVALID_RECORD
    keyed = batch_of([b"a"], keys=[b"k"])
    assert harness.produce("compacted", keyed).error_code == 0


def test_every_record_without_a_key_is_named(harness: Harness) -> None:
    """KIP-467: a client fails these records alone and sends the others again."""
    harness.create("compacted", cleanup_policy="compact")
    batch = batch_of([b"a", b"b", b"c", b"d"], keys=[b"k", None, b"k", None])
    refused = harness.produce("compacted", batch)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [e.batch_index for e in refused.record_errors] == [1, 3]
    assert all(e.batch_index_error_message for e in refused.record_errors)


# -- idempotence (KIP-98)


def idempotent(values: list[bytes], sequence: int, epoch: int = 0, pid: int = 5) -> bytes:
    return batch_of(values, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_sent_again_is_stored_once(harness: Harness) -> None:
    """L4: one of the last five batches of a producer is answered with its first offset."""
    for sequence in range(6):
        harness.produce("t", idempotent([b"v"], sequence))
    again = harness.produce("t", idempotent([b"v"], 2))
    assert (again.error_code, again.base_offset) == (0, 2)
    assert harness.fetch("t", 0).high_watermark == 6
    too_old = harness.produce("t", idempotent([b"v"], 0))
    assert too_old.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_in_sequences_and_an_old_epoch_are_refused(harness: Harness) -> None:
    harness.produce("t", idempotent([b"a", b"b"], 0))
    gap = harness.produce("t", idempotent([b"c"], 3))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert harness.produce("t", idempotent([b"c"], 2)).base_offset == 2
    assert harness.produce("t", idempotent([b"d"], 0, epoch=1)).base_offset == 3
    old = harness.produce("t", idempotent([b"c"], 3, epoch=0))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap(harness: Harness) -> None:
    """KAFKA-7692."""
    last = (1 << 31) - 1
    harness.produce("t", idempotent([b"a"], last - 1))
    assert harness.produce("t", idempotent([b"b", b"c"], last)).error_code == 0
    assert harness.produce("t", idempotent([b"d"], 1)).error_code == 0


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_are_known_after_a_restart(harness: Harness, clean: bool) -> None:
    """L4, also after recovery."""
    for sequence in range(4):
        harness.produce("t", idempotent([b"v"], sequence))
    later = harness.restarted(clean=clean)
    again = later.produce("t", idempotent([b"v"], 1))
    assert (again.error_code, again.base_offset) == (0, 1)
    assert later.produce("t", idempotent([b"v"], 4)).base_offset == 4


# -- long poll


def test_a_fetch_waits_for_data(harness: Harness) -> None:
    """max_wait_ms, min_bytes: answered at once when a produce brings enough."""
    waiting = harness.send(fetch_request("t", 0, max_wait_ms=500), 12)
    assert not waiting.done
    harness.produce("t", batch_of([b"a"]))
    data = harness.read(waiting, FetchResponse, 12).responses[0].partitions[0]
    assert records_of(data) == [(0, b"a")]
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert not partition.waiters


def test_a_fetch_ends_empty_after_its_time(harness: Harness) -> None:
    """Never before: it may have come at the end of the millisecond that the clock shows."""
    waiting = harness.send(fetch_request("t", 0, max_wait_ms=500), 12)
    harness.env.advance(500)
    assert not waiting.done
    harness.env.advance(1)
    data = harness.read(waiting, FetchResponse, 12).responses[0].partitions[0]
    assert records_of(data) == []
    assert data.error_code == 0


def test_min_bytes_are_waited_for(harness: Harness) -> None:
    size = len(batch_of([b"a"]))
    waiting = harness.send(fetch_request("t", 0, max_wait_ms=500, min_bytes=2 * size), 12)
    harness.produce("t", batch_of([b"a"]))
    assert not waiting.done
    harness.produce("t", batch_of([b"b"]))
    data = harness.read(waiting, FetchResponse, 12).responses[0].partitions[0]
    assert [v for _, v in records_of(data)] == [b"a", b"b"]


def is_answered_at_once(harness: Harness, offset: int, **more: int) -> bool:
    return harness.send(fetch_request("s", offset, max_wait_ms=500, **more), 12).done


def test_a_fetch_of_an_older_segment_does_not_wait() -> None:
    """It is read alone, and what comes is appended to the newest: no more can come of it."""
    harness = Harness()
    harness.create("s", segment_bytes="300")
    for _ in range(3):
        harness.produce("s", batch_of([b"x" * 100]))
    assert [is_answered_at_once(harness, offset, min_bytes=500) for offset in range(4)] == [
        True,
        True,
        False,
        False,
    ]


def test_committed_reads_of_an_older_segment_do_not_wait() -> None:
    """The last stable offset is in the same segment: what is decided next may come of it."""
    harness = Harness()
    harness.create("s", segment_bytes="300")
    harness.produce("s", batch_of([b"x" * 20]))
    undecided = batch_of(
        [b"x" * 20], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
    )
    partition = harness.node.topics.partition("s", 0)
    assert partition is not None
    partition.append(memoryview(undecided), BatchHeader(undecided), lambda _: None)
    for _ in range(3):
        harness.produce("s", batch_of([b"x" * 100]))
    assert (partition.stable_offset, partition.end_offset) == (1, 5)
    request = fetch_request("s", 0, max_wait_ms=500, min_bytes=500)
    assert harness.send(request, 12).done
    request.isolation_level = 1
    assert not harness.send(request, 12).done


def test_more_than_the_limits_allow_is_not_waited_for() -> None:
    """fetch.min.bytes above fetch.max.bytes or max.partition.fetch.bytes: as Apache Kafka counts,
    up to the limits, however few whole batches that are."""
    harness = Harness()
    harness.create("s", 2)
    for partition in (0, 1):
        for _ in range(3):
            harness.produce("s", batch_of([b"x" * 5_000]), partition)
    assert is_answered_at_once(harness, 0, min_bytes=12_000, max_bytes=12_000)
    assert not is_answered_at_once(harness, 0, min_bytes=16_000)
    parts = [FetchPartition(partition=p, fetch_offset=0) for p in (0, 1)]

    def at_once(min_bytes: int, max_bytes: int, partition_max_bytes: int) -> bool:
        for part in parts:
            part.partition_max_bytes = partition_max_bytes
        topics = [FetchTopic(topic="s", partitions=parts)]
        request = FetchRequest(
            max_wait_ms=500, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics
        )
        return harness.send(request, 12).done

    assert at_once(20_000, 9_000, 9_000), "what is wanted is more than may come"
    assert at_once(9_000, 9_000, 5_500), "the second batch does not fit"
    assert at_once(16_000, 30_000, 8_000), "8000 of each, though not in whole batches"
    assert not at_once(17_000, 30_000, 8_000)


def test_a_client_that_went_leaves_nothing_behind(harness: Harness) -> None:
    waiting = harness.send(fetch_request("t", 0, max_wait_ms=500), 12)
    assert waiting.call is not None
    assert waiting.call.given_up is not None
    waiting.call.given_up()
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert not partition.waiters


def test_a_waiting_fetch_hears_that_its_topic_is_gone(harness: Harness) -> None:
    waiting = harness.send(fetch_request("t", 0, max_wait_ms=500), 12)
    state = DeleteTopicState(name="t")
    harness.ask(DeleteTopicsRequest(topics=[state]), DeleteTopicsResponse)
    data = harness.read(waiting, FetchResponse, 12).responses[0].partitions[0]
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def by_names(*names: str) -> FetchRequest:
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    topics = [FetchTopic(topic=name, partitions=parts) for name in names]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=topics)


def codes(answer: FetchResponse) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partitions]


def test_a_missing_topic_does_not_end_the_wait_for_the_others(harness: Harness) -> None:
    """A consumer with a deleted topic in its assignment would fetch without a pause."""
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert harness.send(by_names("gone"), 12).done, "there is nothing to wait for"
    waiting = harness.send(by_names("gone", "t", "other"), 12)
    assert not waiting.done
    harness.env.advance(501)
    assert codes(harness.read(waiting, FetchResponse, 12)) == [gone, 0, gone]
    waiting = harness.send(by_names("gone", "t"), 12)
    harness.produce("t", batch_of([b"a"]))
    answer = harness.read(waiting, FetchResponse, 12)
    assert codes(answer) == [gone, 0]
    assert records_of(answer.responses[1].partitions[0]) == [(0, b"a")]


def test_a_missing_topic_id_does_not_end_the_wait_for_the_others(harness: Harness) -> None:
    topic = harness.node.topics.get("t")
    assert topic is not None
    request = by_names("gone", "t")
    request.topics[0].topic_id, request.topics[1].topic_id = bytes(15) + b"\x99", topic.topic_id
    waiting = harness.send(request, 18)
    assert not waiting.done
    harness.env.advance(501)
    assert codes(harness.read(waiting, FetchResponse, 18)) == [ErrorCode.UNKNOWN_TOPIC_ID, 0]


def test_a_topic_that_goes_during_the_wait_ends_it_beside_a_missing_one(harness: Harness) -> None:
    harness.create("u")
    waiting = harness.send(by_names("gone", "t", "u"), 12)
    assert not waiting.done
    state = DeleteTopicState(name="t")
    harness.ask(DeleteTopicsRequest(topics=[state]), DeleteTopicsResponse)
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(harness.read(waiting, FetchResponse, 12)) == [gone, gone, 0]


def test_other_errors_are_answered_at_once_beside_a_missing_topic(harness: Harness) -> None:
    request = by_names("gone", "t")
    request.topics[1].partitions = [FetchPartition(partition=0, fetch_offset=7)]
    answer = harness.ask(request, FetchResponse, 12)
    assert codes(answer) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_offset_out_of_range(harness: Harness, offset: int) -> None:
    harness.produce("t", batch_of([b"a", b"b"]))
    data = harness.fetch("t", offset)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert data.high_watermark == 2


def test_sizes_are_bounded_but_one_batch_always_comes(harness: Harness) -> None:
    """KIP-74: the first batch comes however large; later partitions keep within what is left."""
    for _ in range(4):
        harness.produce("t", batch_of([b"x" * 1000]))
        harness.produce("t", batch_of([b"y" * 1000]), 1)
    assert len(records_of(harness.fetch("t", 0, max_bytes=10))) == 1
    parts = [
        FetchPartition(partition=p, fetch_offset=0, partition_max_bytes=10_000) for p in (0, 1)
    ]
    request = FetchRequest(
        min_bytes=1, max_bytes=3_000, topics=[FetchTopic(topic="t", partitions=parts)]
    )
    got = harness.ask(request, FetchResponse, 12).responses[0].partitions
    total = sum(len(p.records or b"") for p in got)
    assert 2_000 < total <= 3_000


def test_leader_epochs_are_checked(harness: Harness) -> None:
    """KIP-320."""
    harness.produce("t", batch_of([b"a"]))
    later = harness.restarted(clean=False)
    partition = later.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.leader_epoch == 1  # a crash begins a new epoch

    def code(epoch: int) -> int:
        got = later.ask(fetch_request("t", 0, epoch=epoch), FetchResponse, 12)
        return got.responses[0].partitions[0].error_code

    assert code(0) == ErrorCode.FENCED_LEADER_EPOCH
    assert code(2) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert code(1) == 0


# -- durability


def durable() -> Harness:
    made = Harness(durability="fsync")
    made.create("t")
    return made


def test_nothing_is_answered_or_shown_before_it_is_flushed() -> None:
    """L1, L3: with `fsync` the high watermark is what is on the disk."""
    harness = durable()
    harness.env.hold_flushes = True
    first = harness.send(produce_request("t", batch_of([b"a"])), 9)
    second = harness.send(produce_request("t", batch_of([b"b"])), 9)
    assert not first.done
    assert harness.fetch("t", 0).high_watermark == 0
    harness.env.run_flushes()
    assert first.done
    assert second.done
    assert harness.read_all("t") == [(0, b"a"), (1, b"b")]


def test_a_failed_flush_takes_the_partition_offline() -> None:
    """L9: no later acknowledgement from it, also when the next flush succeeds."""
    harness = durable()
    harness.env.flush_error = OSError(errno.EIO, "Input/output error")
    assert harness.produce("t", batch_of([b"a"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    harness.env.flush_error = None
    assert harness.produce("t", batch_of([b"b"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.fetch("t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_deleted_while_a_produce_waits_for_the_disk() -> None:
    harness = durable()
    harness.env.hold_flushes = True
    waiting = harness.send(produce_request("t", batch_of([b"a"])), 9)
    state = DeleteTopicState(name="t")
    harness.ask(DeleteTopicsRequest(topics=[state]), DeleteTopicsResponse)
    harness.env.run_flushes()
    answer = harness.read(waiting, ProduceResponse, 9)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_made_again_is_empty() -> None:
    harness = durable()
    harness.produce("t", batch_of([b"a"]))
    state = DeleteTopicState(name="t")
    harness.ask(DeleteTopicsRequest(topics=[state]), DeleteTopicsResponse)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    harness.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    assert harness.read_all("t") == []
    assert harness.restarted(clean=False).read_all("t") == []


def test_an_empty_produce_request_is_answered(harness: Harness) -> None:
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[])])
    assert harness.ask(request, ProduceResponse, 9).responses[0].partition_responses == []
