"""Fetch sessions, both ends together: the right partitions are fetched, whatever comes between."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.broker.state.fetch_sessions import Fetching, FetchPart, FetchSessions
from kohort.client.common.types import TopicPartition
from kohort.client.consumer import requests
from kohort.client.consumer.plan.fetch_planner import FetchOrder, FetchResult
from kohort.client.consumer.plan.fetch_planner import FetchPart as Part
from kohort.client.consumer.plan.fetch_session import NO_SESSION, FetchSession
from kohort.client.consumer.plan.positions import Stamp
from kohort.errors import ErrorCode
from kohort.wire import decode_request, decode_response, encode_request, encode_response
from kohort.wire.messages.fetch_request import FetchPartition
from kohort.wire.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from tests.effort import examples

TERMS = requests.FetchTerms(1, 0, "")
TPS = [TopicPartition(topic, n) for topic in ("a", "b") for n in range(3)]
State = tuple[int, int, int]
"""Error, end, start of a partition."""


@dataclass
class Ends:
    """A client's session, a broker's sessions, and what lies between them: the wire codecs."""

    client: FetchSession = field(default_factory=FetchSession)
    truth: dict[TopicPartition, State] = field(
        default_factory=lambda: dict.fromkeys(TPS, (0, 0, 0))
    )
    topic_ids: dict[str, bytes] = field(default_factory=lambda: {"a": b"a" * 16, "b": b"b" * 16})
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    slots: int = 2
    named: int = 0
    answered: int = 0

    def __post_init__(self) -> None:
        self.broker = self.new_broker()

    def new_broker(self) -> FetchSessions:
        return FetchSessions(self.slots, 1_000_000, lambda: next(self.ids))

    def request(self, parts: list[Part], version: int) -> bytes:
        order = FetchOrder(1, 1, 0, tuple(parts), 1 << 20, 0)
        ask = self.client.ask(parts, self.topic_ids.__getitem__, version)
        self.named = len(ask.parts)
        message = requests.fetch(order, ask, TERMS, self.topic_ids.__getitem__)
        return b"".join(encode_request(message, version, 1, "c"))[4:]

    def serve(self, frame: bytes, version: int) -> tuple[bytes, list[tuple[str, FetchPartition]]]:
        """The broker's part; also what it takes the fetch to be."""
        request = decode_request(frame).message
        fetching = self.broker.begin(request, version >= 13, 0)  # type: ignore[arg-type]
        if not isinstance(fetching, Fetching):
            return self.encoded(FetchResponse(error_code=fetching), version), []
        answers = [(part, self.data(part, version)) for part in fetching.parts.values()]
        topics = [
            FetchableTopicResponse(topic=part.topic, topic_id=part.topic_id, partitions=[data])
            for part, data in fetching.select(answers)
        ]
        self.answered = len(topics)
        meant = [(self.name(p, version), p.request) for p in fetching.parts.values()]
        response = FetchResponse(session_id=self.broker.keep(fetching, 0), responses=topics)
        return self.encoded(response, version), meant  # type: ignore[return-value]

    def encoded(self, response: FetchResponse, version: int) -> bytes:
        return b"".join(encode_response(response, version, 1))[4:]

    def name(self, part: FetchPart, version: int) -> str:
        if version < 13:
            return part.topic
        return next((n for n, i in self.topic_ids.items() if i == part.topic_id), "?")

    def data(self, part: FetchPart, version: int) -> PartitionData:
        index = part.request.partition
        error, end, start = self.truth.get(
            TopicPartition(self.name(part, version), index), (ErrorCode.UNKNOWN_TOPIC_ID, 0, 0)
        )
        if error:
            return PartitionData(
                partition_index=index, error_code=error, high_watermark=-1, records=b""
            )
        return PartitionData(
            partition_index=index,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=start,
            records=b"x" if part.request.fetch_offset < end else b"",
        )

    def read(self, frame: bytes, version: int) -> list[FetchResult] | None:
        answer = decode_response(FetchResponse, version, frame)[1]
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        results = requests.fetched(answer, lambda topic_id: names.get(bytes(topic_id)))
        return self.client.answered(answer.error_code, answer.session_id, results)


Turn = tuple[str, set[int], dict[int, State], int]
turns = st.lists(
    st.tuples(
        st.sampled_from(
            ["ok"] * 6
            + ["request lost", "answer lost", "restarted", "evicted", "made again", "taken again"]
        ),
        st.sets(st.integers(0, len(TPS) - 1), min_size=1),
        st.dictionaries(
            st.integers(0, len(TPS) - 1),
            st.tuples(st.sampled_from([0, 0, 0, 6]), st.integers(0, 3), st.integers(0, 2)),
        ),
        st.sampled_from([18, 18, 18, 12, 6]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(300), deadline=None)
@given(turns=turns, slots=st.sampled_from([0, 1, 2]))
def test_both_ends_agree_on_what_is_fetched(turns: list[Turn], slots: int) -> None:
    """F1: after any additions, removals, errors and losses, the broker fetches exactly what was
    ordered, and the client knows of every partition what the broker knows.
    """
    ends = Ends(slots=slots)
    known: dict[TopicPartition, State] = {}
    stamps = dict.fromkeys(TPS, Stamp(0, 0))
    for number, (event, chosen, changes, version) in enumerate(turns):
        ends.truth.update({TPS[n]: state for n, state in changes.items()})
        if event == "restarted":
            ends.broker = ends.new_broker()
        elif event == "evicted":
            ends.broker._sessions.clear()
        elif event == "made again":
            ends.topic_ids["a"] = number.to_bytes(16)
        elif event == "taken again":
            for n in chosen:
                stamps[TPS[n]] = Stamp(number + 1, 0)
                known.pop(TPS[n], None)
        order = [Part(TPS[n], stamps[TPS[n]], number % 3, 0, 1 << 20) for n in sorted(chosen)]
        meant: list[tuple[str, FetchPartition]] = []
        results: list[FetchResult] | None = None
        for _ in range(2):
            frame = ends.request(order, version)
            if event == "request lost":
                ends.client.lost()
                results = []
                break
            answer, meant = ends.serve(frame, version)
            if event == "answer lost":
                ends.client.lost()
                results = []
                break
            results = ends.read(answer, version)
            if results is not None:
                break
        assert results is not None, "a session that was refused is begun anew at once"
        if event in ("request lost", "answer lost"):
            continue
        assert {(name, r.partition, r.fetch_offset) for name, r in meant} == {
            (p.tp.topic, p.tp.partition, p.offset) for p in order
        }
        for result in results:
            known[result.tp] = (result.error, result.high_watermark, result.log_start)
        for part in order:
            error, end, start = ends.truth[part.tp]
            report = known.pop(part.tp) if error else known[part.tp]
            assert report[0] == error
            assert error or report == (0, end, start)


def test_an_idle_session_says_nothing() -> None:
    """A thousand idle partitions cost two empty messages a poll."""
    ends = Ends()
    order = [Part(TopicPartition("a", n), Stamp(0, 0), 0, 0, 1 << 20) for n in range(1_000)]
    ends.truth = {part.tp: (0, 0, 0) for part in order}
    ends.read(ends.serve(ends.request(order, 18), 18)[0], 18)
    assert (ends.named, ends.answered) == (1_000, 1_000)
    frame = ends.request(order, 18)
    answer, meant = ends.serve(frame, 18)
    assert (ends.named, ends.answered, len(meant)) == (0, 0, 1_000)
    assert len(frame) + len(answer) < 150
    assert ends.read(answer, 18) == []


def test_an_answer_for_what_nobody_asked_begins_anew() -> None:
    session = FetchSession()
    part = Part(TPS[0], Stamp(0, 0), 0, 0, 1 << 20)
    session.ask([part], lambda _: bytes(16), 18)
    assert session.answered(0, 7, [FetchResult(TPS[0], 0, 0, 0, 0, b"")]) is not None
    assert session.ask([part], lambda _: bytes(16), 18).epoch == 1
    session.answered(0, 7, [FetchResult(TPS[1], 0, 0, 0, 0, b"")])
    again = session.ask([part], lambda _: bytes(16), 18)
    assert (again.session_id, again.epoch, list(again.parts)) == (7, 0, [part])


def test_the_end_of_a_session_names_it_once() -> None:
    session = FetchSession()
    assert session.end() == NO_SESSION, "nothing was ever opened"
    part = Part(TPS[0], Stamp(0, 0), 0, 0, 1 << 20)
    session.ask([part], lambda _: bytes(16), 18)
    session.answered(0, 7, [])
    assert session.end() == 7
    assert session.end() == NO_SESSION


def test_another_way_of_naming_topics_begins_anew() -> None:
    """KIP-516: a session speaks by name or by id; metadata may lose an id meanwhile."""
    session = FetchSession()
    part = Part(TPS[0], Stamp(0, 0), 0, 0, 1 << 20)
    session.ask([part], lambda _: b"a" * 16, 18)
    session.answered(0, 7, [FetchResult(TPS[0], 0, 0, 0, 0, b"")])
    assert list(session.ask([part], lambda _: b"a" * 16, 18).parts) == []
    session.answered(0, 7, [])
    by_name = session.ask([part], lambda _: bytes(16), 12)
    assert (by_name.session_id, by_name.epoch, list(by_name.parts)) == (7, 0, [part])
