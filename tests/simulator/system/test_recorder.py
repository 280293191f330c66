"""SY18: what clients ask of committed offsets, as their connections show it."""

from __future__ import annotations

import pytest

from kohort.client.common.types import TopicPartition
from kohort.errors import ErrorCode
from kohort.simulator.system.history import Fate, History, Kind
from kohort.simulator.system.plan import SystemPlan
from kohort.simulator.system.recorder import Recorder
from kohort.simulator.system.world import SystemWorld
from kohort.wire import Message, encode_request, encode_response
from kohort.wire.messages import delete_topics_request as dtq
from kohort.wire.messages import delete_topics_response as dtr
from kohort.wire.messages import end_txn_request as etq
from kohort.wire.messages import end_txn_response as etr
from kohort.wire.messages import offset_commit_request as ocq
from kohort.wire.messages import offset_commit_response as ocr
from kohort.wire.messages import offset_fetch_request as ofq
from kohort.wire.messages import offset_fetch_response as ofr
from kohort.wire.messages import sync_group_request as sgq
from kohort.wire.messages import sync_group_response as sgr
from kohort.wire.messages import txn_offset_commit_request as tcq

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
ID = b"i" * 16
NONE, UNKNOWN = int(ErrorCode.NONE), int(ErrorCode.REQUEST_TIMED_OUT)
FENCED = int(ErrorCode.ILLEGAL_GENERATION)


class Wire:
    """One connection and its recorder."""

    def __init__(self) -> None:
        self.history = History()
        names = {ID: "t"}.get
        self.recorder = Recorder(
            self.history, lambda: 7, names, lambda _: 2, notes_generations=True
        )
        self._sent = 0

    def ask(self, message: Message, version: int) -> int:
        """Send a request; its correlation id."""
        self._sent += 1
        frame = b"".join(bytes(b) for b in encode_request(message, version, self._sent, "c"))
        self.recorder.sent(1, "a/1", frame[4:])
        return self._sent

    def answer(self, message: Message, version: int, number: int) -> None:
        """The answer to one of them."""
        frame = b"".join(bytes(b) for b in encode_response(message, version, number))
        self.recorder.received(1, frame[4:])

    def fates(self) -> list[tuple[Kind, Fate, dict[TopicPartition, int | None]]]:
        """What was noted."""
        return [(one.kind, one.fate, one.offsets) for one in self.history.operations]


def commit(*offsets: int) -> ocq.OffsetCommitRequest:
    parts = [
        ocq.OffsetCommitRequestPartition(partition_index=n, committed_offset=offset)
        for n, offset in enumerate(offsets)
    ]
    topic = ocq.OffsetCommitRequestTopic(name="t", topic_id=ID, partitions=parts)
    return ocq.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=3, member_id="m", topics=[topic]
    )


def committed(*codes: int) -> ocr.OffsetCommitResponse:
    parts = [
        ocr.OffsetCommitResponsePartition(partition_index=n, error_code=code)
        for n, code in enumerate(codes)
    ]
    topic = ocr.OffsetCommitResponseTopic(name="t", topic_id=ID, partitions=parts)
    return ocr.OffsetCommitResponse(topics=[topic])


@pytest.mark.parametrize("version", [9, 10])
def test_a_commit_and_its_answer(version: int) -> None:
    """By name and by id of the topic."""
    wire = Wire()
    wire.answer(committed(NONE, NONE), version, wire.ask(commit(5, 6), version))
    (one,) = wire.history.operations
    assert (one.who, one.group, one.kind, one.offsets) == ("a/1", "g", Kind.COMMIT, {P: 5, Q: 6})
    assert (one.asked, one.done, one.fate) == (1, 2, Fate.DONE)
    assert (one.member, one.epoch, one.asked_ms, one.done_ms) == ("m", 3, 7, 7)


def test_what_an_answer_leaves_open() -> None:
    """None, errors that decide nothing, refusals; partitions with other codes come apart."""
    wire = Wire()
    wire.ask(commit(1), 9)
    wire.answer(committed(UNKNOWN), 9, wire.ask(commit(2), 9))
    wire.answer(committed(FENCED), 9, wire.ask(commit(3), 9))
    wire.answer(committed(NONE, UNKNOWN), 9, wire.ask(commit(4, 5), 9))
    assert wire.fates() == [
        (Kind.COMMIT, Fate.UNKNOWN, {P: 1}),
        (Kind.COMMIT, Fate.UNKNOWN, {P: 2}),
        (Kind.COMMIT, Fate.REFUSED, {P: 3}),
        (Kind.COMMIT, Fate.DONE, {P: 4}),
        (Kind.COMMIT, Fate.UNKNOWN, {Q: 5}),
    ]
    assert [one.done is None for one in wire.history.operations] == [True, True, False, False, True]


def stage(offset: int) -> tcq.TxnOffsetCommitRequest:
    part = tcq.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = tcq.TxnOffsetCommitRequestTopic(name="t", partitions=[part])
    return tcq.TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=2, topics=[topic]
    )


def end(*, commits: bool = True) -> etq.EndTxnRequest:
    return etq.EndTxnRequest(
        transactional_id="x", producer_id=1, producer_epoch=2, committed=commits
    )


def ended(code: int) -> etr.EndTxnResponse:
    return etr.EndTxnResponse(error_code=code)


def test_a_transaction_commits_with_its_end() -> None:
    """From the first EndTxn to the first good answer; what is aborted is nothing."""
    wire = Wire()
    wire.ask(stage(4), 3)
    wire.ask(stage(5), 3)
    wire.ask(end(), 3)
    again = wire.ask(end(), 3)
    wire.answer(ended(NONE), 3, again)
    wire.ask(stage(6), 3)
    wire.ask(end(commits=False), 3)
    wire.ask(end(), 3)
    (one,) = wire.history.operations
    assert (one.group, one.kind, one.offsets, one.fate) == (
        "g",
        Kind.TRANSACTION,
        {P: 5},
        Fate.DONE,
    )
    assert (one.offsets, one.asked, one.done) == ({P: 5}, 3, 5)


def test_a_fenced_producer_commits_nothing_unless_it_has() -> None:
    fenced = int(ErrorCode.INVALID_PRODUCER_EPOCH)
    wire = Wire()
    wire.ask(stage(5), 3)
    wire.answer(ended(fenced), 3, wire.ask(end(), 3))
    wire.ask(stage(6), 3)
    wire.ask(end(), 3)
    wire.answer(ended(fenced), 3, wire.ask(end(), 3))
    assert [fate for _, fate, _ in wire.fates()] == [Fate.REFUSED, Fate.UNKNOWN]


@pytest.mark.parametrize("version", [7, 9, 10])
def test_a_fetch_shows_what_it_answers(version: int) -> None:
    """Also that nothing is committed; partitions with errors show nothing."""
    wire = Wire()
    asked: ofq.OffsetFetchRequest
    if version < 8:
        asked = ofq.OffsetFetchRequest(
            group_id="g",
            topics=[ofq.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 2])],
        )
        parts = [
            ofr.OffsetFetchResponsePartition(
                partition_index=n, committed_offset=offset, error_code=code
            )
            for n, (offset, code) in enumerate(((5, NONE), (-1, NONE), (-1, UNKNOWN)))
        ]
        shown = ofr.OffsetFetchResponse(
            topics=[ofr.OffsetFetchResponseTopic(name="t", partitions=parts)]
        )
    else:
        topic = ofq.OffsetFetchRequestTopics(name="t", topic_id=ID, partition_indexes=[0, 1, 2])
        asked = ofq.OffsetFetchRequest(
            groups=[ofq.OffsetFetchRequestGroup(group_id="g", topics=[topic])]
        )
        many = [
            ofr.OffsetFetchResponsePartitions(
                partition_index=n, committed_offset=offset, error_code=code
            )
            for n, (offset, code) in enumerate(((5, NONE), (-1, NONE), (-1, UNKNOWN)))
        ]
        answered = ofr.OffsetFetchResponseTopics(name="t", topic_id=ID, partitions=many)
        shown = ofr.OffsetFetchResponse(
            groups=[ofr.OffsetFetchResponseGroup(group_id="g", topics=[answered])]
        )
    wire.answer(shown, version, wire.ask(asked, version))
    (one,) = wire.history.operations
    assert (one.group, one.kind, one.fate) == ("g", Kind.FETCH, Fate.DONE)
    assert (one.offsets, one.asked, one.done) == ({P: 5, Q: None}, 1, 2)


def test_a_deleted_topic_and_a_stable_generation() -> None:
    wire = Wire()
    topics = [dtq.DeleteTopicState(name=None, topic_id=ID)]
    gone = [dtr.DeletableTopicResult(name="t", topic_id=ID)]
    number = wire.ask(dtq.DeleteTopicsRequest(topics=topics), 6)
    wire.answer(dtr.DeleteTopicsResponse(responses=gone), 6, number)
    assert wire.fates() == [(Kind.DELETE, Fate.DONE, {P: None, Q: None})]
    number = wire.ask(sgq.SyncGroupRequest(group_id="g", generation_id=4), 5)
    wire.answer(sgr.SyncGroupResponse(), 5, number)
    assert wire.history.stable == [("g", 4, 4)]


def test_a_world_notes_every_kind_of_request() -> None:
    """Commits, transactions, fetches and deletions, and what is committed at the end."""
    programs = tuple(
        (name, 1) for name in ("load", "move", "read", "watch", "remake", "look", "refill")
    )
    world = SystemWorld(
        SystemPlan(3, programs, ("client_kill",), 3, 3_000, 2, 2, "classic", "fsync")
    )
    outcome = world.run()
    assert not outcome.failed, outcome.what
    done = {one.kind for one in world.history.operations if one.fate is Fate.DONE}
    assert done == set(Kind)
    assert {group for group, _, _ in world.history.stable} == {"movers", "readers"}
    assert world.final is not None
    assert {"movers", "readers", "lookers"} <= world.final.groups.keys()
    assert world.final.kinds == dict(programs).keys()
    assert any(offset for offset in world.final.groups["readers"].values())
