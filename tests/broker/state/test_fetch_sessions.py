"""Incremental fetch sessions on the broker (KIP-227): epochs, altering, forgetting, eviction."""

from __future__ import annotations

import itertools
from typing import Any

from kohort.broker.state.fetch_sessions import Fetching, FetchPart, FetchSessions
from kohort.errors import ErrorCode
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from kohort.wire.messages.fetch_response import FetchResponse, PartitionData
from tests.broker.harness import Harness, batch_of, produce_request

E = ErrorCode
BY_NAME, BY_ID = 12, 18


def request(
    parts: dict[int, int] | None = None,
    session: tuple[int, int] = (0, 0),
    forget: tuple[int, ...] = (),
    topic: str = "t",
    topic_id: bytes = bytes(16),
    **more: Any,
) -> FetchRequest:
    """`parts`: partition -> offset; `session`: id and epoch."""
    asked = [
        FetchPartition(partition=p, fetch_offset=offset, partition_max_bytes=1 << 20)
        for p, offset in (parts or {}).items()
    ]
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=asked)] if asked else [],
        forgotten_topics_data=[
            ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forget))
        ]
        if forget
        else [],
        **more,
    )


def answered(response: FetchResponse) -> dict[int, PartitionData]:
    return {p.partition_index: p for topic in response.responses for p in topic.partitions}


class World:
    """A topic of some partitions, fetched by name."""

    def __init__(self, partitions: int = 3) -> None:
        self.harness = Harness()
        self.harness.create("t", partitions)

    def fetch(self, *args: Any, version: int = BY_NAME, **more: Any) -> FetchResponse:
        return self.harness.ask(request(*args, **more), FetchResponse, version)

    def produce(self, partition: int) -> None:
        self.harness.send(produce_request("t", batch_of([b"v"]), partition=partition), 12)


def test_only_what_changed_is_answered() -> None:
    """KIP-227: an incremental fetch names what is altered, its answer what is new."""
    world = World()
    first = world.fetch({0: 0, 1: 0, 2: 0})
    assert first.session_id > 0
    assert sorted(answered(first)) == [0, 1, 2]
    second = world.fetch(session=(first.session_id, 1))
    assert (second.error_code, second.session_id) == (0, first.session_id)
    assert second.responses == []
    world.produce(1)
    third = answered(world.fetch(session=(first.session_id, 2)))
    assert list(third) == [1]
    assert third[1].high_watermark == 1
    assert list(answered(world.fetch(session=(first.session_id, 3)))) == [1], "it is still unread"
    assert world.fetch({1: 1}, (first.session_id, 4)).responses == []


def test_a_log_that_begins_later_is_told_of_without_records() -> None:
    """To who stands at its end, too: nothing of it is new but where it starts."""
    world = World()
    world.produce(1)
    session = world.fetch({0: 0, 1: 1}).session_id
    assert world.fetch(session=(session, 1)).responses == []
    partition = world.harness.state.topics.partition("t", 1)
    assert partition is not None
    assert partition.log is not None
    partition.log.delete_before(1)
    partitions = answered(world.fetch(session=(session, 2)))
    assert {index: p.log_start_offset for index, p in partitions.items()} == {1: 1}


def test_partitions_come_and_go() -> None:
    world = World()
    session = world.fetch({0: 0}).session_id
    grown = answered(world.fetch({2: 0}, (session, 1)))
    assert list(grown) == [2], "a new partition is told of at once"
    world.produce(0)
    assert answered(world.fetch({}, (session, 2), forget=(0,))) == {}
    assert list(answered(world.fetch({0: 0}, (session, 3)))) == [0]


def test_a_session_that_has_lost_its_last_partition_is_gone() -> None:
    world = World()
    session = world.fetch({0: 0}).session_id
    emptied = world.fetch({}, (session, 1), forget=(0,))
    assert (emptied.error_code, emptied.session_id, emptied.responses) == (0, 0, [])
    again = world.fetch(session=(session, 2))
    assert again.error_code == E.FETCH_SESSION_ID_NOT_FOUND


def test_errors_of_sessions() -> None:
    """Of the id, of the epoch, and of the way in which topics are named (KIP-516)."""
    world = World()
    session = world.fetch({0: 0}).session_id
    assert world.fetch(session=(session + 1, 1)).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    assert world.fetch(session=(session, 2)).error_code == E.INVALID_FETCH_SESSION_EPOCH
    wrong = world.fetch(session=(session, 1), version=BY_ID)
    assert wrong.error_code == E.FETCH_SESSION_TOPIC_ID_ERROR
    assert world.fetch(session=(session, 1)).error_code == 0, "none of them moved the epoch"


def test_a_full_fetch_ends_the_session_it_names() -> None:
    world = World()
    session = world.fetch({0: 0}).session_id
    new = world.fetch({0: 0}, (session, 0)).session_id
    assert new not in (0, session)
    assert world.fetch(session=(session, 1)).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    last = world.fetch({0: 0}, (new, -1))
    assert (last.session_id, list(answered(last))) == (0, [0])
    assert len(world.harness.node.fetch_sessions) == 0


def test_an_error_is_told_until_it_is_mended_and_then_the_rest() -> None:
    """A topic that is made while a session waits for it by name; one that is deleted, by id."""
    world = World()
    first = world.fetch({0: 0}, topic="later")
    assert answered(first)[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    again = answered(world.fetch(session=(first.session_id, 1)))
    assert again[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    world.harness.create("later", 1)
    mended = answered(world.fetch(session=(first.session_id, 2)))
    assert (mended[0].error_code, mended[0].high_watermark) == (0, 0)
    assert answered(world.fetch(session=(first.session_id, 3))) == {}

    made = world.harness.ask(
        CreateTopicsRequest(
            topics=[CreatableTopic(name="x", num_partitions=1, replication_factor=1)]
        ),
        CreateTopicsResponse,
    )
    topic_id = made.topics[0].topic_id
    by_id = world.fetch({0: 0}, topic="", topic_id=topic_id, version=BY_ID)
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="x")])
    world.harness.ask(gone, DeleteTopicsResponse)
    partitions = answered(world.fetch(session=(by_id.session_id, 1), version=BY_ID))
    assert partitions[0].error_code == E.UNKNOWN_TOPIC_ID


def test_what_had_records_is_served_last() -> None:
    """So that a full answer of one partition does not starve the others."""
    world = World(2)
    for partition in (0, 0, 1):
        world.produce(partition)
    session = world.fetch({0: 0, 1: 0}, max_bytes=1).session_id
    seen = [
        next(
            p
            for p, d in answered(world.fetch(session=(session, n), max_bytes=1)).items()
            if d.records
        )
        for n in (1, 2, 3)
    ]
    assert seen == [0, 1, 0]


def test_what_stands_behind_a_full_answer_has_its_turn_later() -> None:
    """KIP-227: with records or with an error; a full answer does not look for either."""
    world = World()
    for partition in (0, 1):
        world.produce(partition)
    first = world.fetch({0: 0, 1: 0, 2: 5}, max_bytes=1)
    assert [p for p, data in answered(first).items() if data.records] == [0]
    assert {p: data.error_code for p, data in answered(first).items()} == {0: 0, 1: 0, 2: 0}
    session = (first.session_id, 1)
    second = answered(world.fetch({0: 1}, session, max_bytes=1))
    assert [p for p, data in second.items() if data.records] == [1]
    third = answered(world.fetch({1: 1}, (first.session_id, 2), max_bytes=1))
    assert {p: data.error_code for p, data in third.items()} == {2: E.OFFSET_OUT_OF_RANGE}


def test_a_session_follows_its_topic_through_deletion() -> None:
    """KIP-227: what was found for a partition holds while the topics are as they were."""
    world = World()
    world.produce(0)
    session = world.fetch({0: 0, 1: 0}).session_id
    world.harness.create("other")
    assert answered(world.fetch({0: 1}, (session, 1))) == {}
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    world.harness.ask(delete, DeleteTopicsResponse)
    gone = answered(world.fetch(session=(session, 2)))
    assert {p: d.error_code for p, d in gone.items()} == dict.fromkeys(
        (0, 1), E.UNKNOWN_TOPIC_OR_PARTITION
    )
    world.harness.create("t", 1)
    again = answered(world.fetch({0: 0}, (session, 3)))
    assert {p: (d.error_code, d.high_watermark) for p, d in again.items()} == {
        0: (0, 0),
        1: (E.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }


def test_a_waiting_fetch_of_a_session_is_woken() -> None:
    world = World(2)
    session = world.fetch({0: 0, 1: 0}).session_id
    waiting = world.harness.send(
        request(session=(session, 1), max_wait_ms=500, min_bytes=1), BY_NAME
    )
    assert not waiting.done
    world.produce(1)
    assert list(answered(world.harness.read(waiting, FetchResponse, BY_NAME))) == [1]
    empty = world.harness.send(request({1: 1}, (session, 2), max_wait_ms=500, min_bytes=1), BY_NAME)
    world.harness.env.advance(501)
    assert world.harness.read(empty, FetchResponse, BY_NAME).responses == []


def test_a_fetch_of_nothing_does_not_wait() -> None:
    """The one that ends a session as its consumer closes; one that forgets all it had."""
    world = World(2)
    waiting = {"max_wait_ms": 500, "min_bytes": 1}
    session = world.fetch({0: 0, 1: 0}).session_id
    emptied = world.fetch({}, (session, 1), forget=(0, 1), **waiting)
    assert (emptied.session_id, emptied.responses) == (0, [])
    session = world.fetch({0: 0, 1: 0}).session_id
    ended = world.fetch({}, (session, -1), **waiting)
    assert (ended.error_code, ended.session_id, ended.responses) == (0, 0, [])
    assert len(world.harness.node.fetch_sessions) == 0


def test_a_session_waits_beside_a_deleted_topic() -> None:
    """At each fetch it hears of it; the others are waited for."""
    world = World(1)
    world.harness.create("u", 1)
    asked = request({0: 0})
    asked.topics += request({0: 0}, topic="u").topics
    session = world.harness.ask(asked, FetchResponse, BY_NAME).session_id
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="u")])
    world.harness.ask(delete, DeleteTopicsResponse)
    for epoch in (1, 2):
        later = request(session=(session, epoch), max_wait_ms=500, min_bytes=1)
        waiting = world.harness.send(later, BY_NAME)
        assert not waiting.done
        world.harness.env.advance(501)
        found = world.harness.read(waiting, FetchResponse, BY_NAME).responses
        assert [(t.topic, t.partitions[0].error_code) for t in found] == [
            ("u", E.UNKNOWN_TOPIC_OR_PARTITION)
        ]


def test_an_answer_that_was_overtaken_is_refused() -> None:
    """The session went on over another connection while this fetch was waiting."""
    world = World(2)
    session = world.fetch({0: 0, 1: 0}).session_id
    waiting = world.harness.send(
        request(session=(session, 1), max_wait_ms=500, min_bytes=1), BY_NAME
    )
    assert world.fetch(session=(session, 2)).error_code == 0
    world.harness.env.advance(501)
    late = world.harness.read(waiting, FetchResponse, BY_NAME)
    assert late.error_code == E.INVALID_FETCH_SESSION_EPOCH


class Cache:
    """`FetchSessions` alone, with sessions of any size."""

    def __init__(self, slots: int, partitions_max: int = 1_000) -> None:
        ids = itertools.count(1)
        self.sessions = FetchSessions(slots, 1_000, lambda: next(ids), partitions_max)

    def open(self, size: int, now_ms: int) -> int:
        fetching = self.sessions.begin(request(dict.fromkeys(range(size), 0)), False, now_ms)
        assert isinstance(fetching, Fetching)
        return self.sessions.keep(fetching, now_ms)

    def use(self, session: tuple[int, int], now_ms: int, **more: Any) -> Fetching | ErrorCode:
        return self.sessions.begin(request(session=session, **more), False, now_ms)  # type: ignore[arg-type]


def test_slots_are_bounded_and_given_to_whom_they_serve_most() -> None:
    """A session unused for long gives way to any; one made long ago to a larger one."""
    cache = Cache(2)
    first, second = cache.open(2, 0), cache.open(3, 10)
    assert cache.open(5, 20) == 0, "both are young"
    assert isinstance(cache.use((first, 1), 900), Fetching)
    assert isinstance(cache.use((second, 1), 900), Fetching)
    assert cache.open(2, 1_200) == 0, "both are old, neither is smaller"
    third = cache.open(3, 1_200)
    assert third
    assert cache.use((first, 2), 1_200) == E.FETCH_SESSION_ID_NOT_FOUND
    assert cache.open(1, 1_901) > 0, "the second was unused for longer than a second"
    assert cache.use((second, 2), 1_901) == E.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache.sessions) == 2


def test_partitions_of_all_sessions_are_bounded() -> None:
    cache = Cache(10, partitions_max=5)
    first = cache.open(3, 0)
    assert first
    assert cache.open(3, 0) == 0
    grown = cache.use((first, 1), 0, parts=dict.fromkeys(range(9), 0))
    assert grown == E.FETCH_SESSION_ID_NOT_FOUND
    assert cache.sessions.partitions == 0
    assert cache.open(5, 0) > 0


def test_epochs_begin_again_after_the_last() -> None:
    cache = Cache(1)
    session_id = cache.open(1, 0)
    first = cache.use((session_id, 1), 0)
    assert isinstance(first, Fetching)
    assert first.session is not None
    first.session.epoch = (1 << 31) - 1
    assert isinstance(cache.use((session_id, (1 << 31) - 1), 0), Fetching)
    assert first.session.epoch == 1


def test_telling_is_of_what_changed() -> None:
    part = FetchPart("t", bytes(16), FetchPartition())
    data = PartitionData(high_watermark=5, last_stable_offset=5, log_start_offset=0, records=b"")
    assert part.report(data)
    assert not part.report(data)
    assert part.report(PartitionData(high_watermark=-1, error_code=3, records=b""))
    assert part.report(data), "after an error everything is reported again"
    error_beside = PartitionData(
        error_code=1, high_watermark=5, last_stable_offset=5, log_start_offset=0, records=b""
    )
    assert part.report(error_beside)
    assert part.report(data), "also when the error came with the same end"
    data.log_start_offset = 2
    assert part.report(data)
    assert not part.report(data)
