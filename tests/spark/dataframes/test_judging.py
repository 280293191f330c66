"""What becomes of every input of a batch (spec 6.5, 6.8)."""

from __future__ import annotations

import pytest

from kohort.errors import UsageError
from kohort.retry.classify import Disposition
from kohort.retry.copies import Attempt
from kohort.retry.headers import Origin, RetryHeaders
from kohort.retry.ledger import IN_BATCH, Counts, Place, RowState, Status
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.spark.dataframes.books import BatchRange, books_of
from kohort.spark.dataframes.failing import RetrySpec
from kohort.spark.dataframes.judging import Failed, Judgement, Seen, judge, runnable
from kohort.spark.dataframes.offset_set import OffsetSet

TOPICS = RetryTopics("in", "g", RetryPolicy.parse("5m 30m"))
RETRY = "in.g.retry.5m"
SPEC = RetrySpec(
    {"in": TOPICS}, {RETRY: 2, "in.g.retry.30m": 2, TOPICS.dead_letter: 2}, {"in": "id"}
)
AT = ("in", 0)
POLICIES = dict.fromkeys(("in", *TOPICS.delays_ms), TOPICS.policy)


def own(offset: int, partition: int = 0) -> Attempt:
    return SPEC.own("in", partition, offset, 1_000, 0, b"k", None, ())


def again(offset: int, *, number: int = 1, at: int = 0, topic: str = RETRY) -> Attempt:
    """The copy of in/0/OFFSET that stands at `at` of a retry topic."""
    origin = Origin("in", 0, offset, 1_000, 0, "id")
    headers = RetryHeaders(
        number, 0, origin, "g", TOPICS.delays_ms[topic], 5, 5, Disposition.RETRYABLE
    )
    return Attempt(origin, number, (topic, 0, at), b"k", None, (), headers)


def bad(attempt: Attempt, *, permanent: bool = True, reason: str = "bad") -> Failed:
    return Failed(attempt, permanent, reason, "why")


def test_each_input_is_loaded_filtered_scheduled_or_failed() -> None:
    """Spec 6.8: the counts balance, and several rows of an input count once."""
    late = bad(own(3), permanent=False)
    seen = Seen("s", {AT: OffsetSet.of({0, 1})}, [bad(own(2)), late], True)
    found = judge({("in", 0): 5}, [seen], POLICIES, "stage")
    assert found.counts == {("in", 0): Counts(read=5, loaded=2, filtered=1, scheduled=1, failed=1)}
    assert found.loaded == {AT: OffsetSet.of({0, 1})}


def test_offsets_are_a_set_in_any_order() -> None:
    some = OffsetSet.of([5, 2, 5, 9])
    assert ([*some], len(some)) == ([2, 5, 9], 3)
    assert [n in some for n in (1, 2, 5, 9, 10)] == [False, True, True, True, False]
    assert some | OffsetSet.of([1, 9]) == OffsetSet.of([1, 2, 5, 9])
    assert some - OffsetSet.of([5, 7]) == OffsetSet.of([2, 9])
    assert len(OffsetSet.of([])) == 0
    assert 0 not in OffsetSet.of([])


def test_an_input_passes_a_stage_as_a_whole() -> None:
    """A row that fails withholds the other rows of its input, in every step."""
    first = Seen("one", {AT: OffsetSet.of({0, 1})}, [bad(own(0))], True)
    second = Seen("two", {AT: OffsetSet.of({0, 1})}, [], True)
    found = judge({("in", 0): 2}, [first, second], POLICIES, "stage")
    assert found.withheld == {"one": {("in", 0, 0)}, "two": {("in", 0, 0)}}
    assert found.loaded == {AT: OffsetSet.of({1})}
    assert found.counts["in", 0] == Counts(read=2, loaded=1, failed=1)


def test_the_verdict_of_the_earliest_step_counts() -> None:
    first = Seen("one", {}, [bad(own(0), reason="first"), bad(own(0), reason="first")], False)
    second = Seen("two", {}, [bad(own(0), reason="second")], True)
    found = judge({("in", 0): 1}, [first, second], POLICIES, "stage")
    assert found.failed["in", 0, 0].reason == "first"
    assert (found.by_node["one"], found.by_node["two"]) == ({("in", 0, 0)}, set())
    assert found.doubled == {"one"}


def test_of_several_verdicts_of_one_step_the_order_of_rows_chooses_none() -> None:
    """The copy is chosen by the same rule, where rows come in another order."""
    verdicts = [
        bad(own(0), permanent=False, reason="a"),
        bad(own(0), reason="c"),
        bad(own(0), reason="b"),
    ]
    for failed in (verdicts, verdicts[::-1]):
        found = judge({("in", 0): 1}, [Seen("s", {}, failed, True)], POLICIES, "stage")
        assert found.failed["in", 0, 0].reason == "b"
        assert found.doubled == {"s"}


def test_a_step_that_only_others_read_loads_nothing() -> None:
    found = judge(
        {("in", 0): 1}, [Seen("s", {AT: OffsetSet.of({0})}, [], False)], POLICIES, "stage"
    )
    assert found.counts["in", 0] == Counts(read=1, filtered=1)
    assert not found.filled


def test_an_output_whose_rows_are_all_withheld_is_not_filled() -> None:
    """Its topic stays out of the transaction, which would leave markers there."""
    other = Seen("other", {}, [bad(own(0))], False)
    step = Seen("s", {AT: OffsetSet.of({0})}, [], True)
    assert judge({("in", 0): 1}, [other, step], POLICIES, "stage").filled == set()
    step = Seen("s", {AT: OffsetSet.of({0, 1})}, [], True)
    assert judge({("in", 0): 2}, [other, step], POLICIES, "stage").filled == {"s"}


def test_rows_from_nowhere_are_refused() -> None:
    with pytest.raises(UsageError, match="more inputs than the batch has"):
        judge({}, [Seen("s", {AT: OffsetSet.of({0})}, [], True)], POLICIES, "stage")


def test_the_last_retry_ends_in_the_dead_letter_topic() -> None:
    last = bad(again(7, number=2, topic="in.g.retry.30m"), permanent=False)
    found = judge({("in.g.retry.30m", 0): 1}, [Seen("s", {}, [last], True)], POLICIES, "s")
    assert found.counts["in.g.retry.30m", 0] == Counts(read=1, failed=1)


def test_only_a_copy_that_the_ledger_owes_runs_and_once() -> None:
    """Spec 6.3: a copy of a micro-batch is named by its partition; a duplicate of it is inert."""
    owed = RowState(0, 1, Status.SCHEDULED, Place(RETRY, 0, IN_BATCH))
    copies = [again(7, at=4), again(7, at=9), again(8, at=5)]
    run, inert = runnable(copies, {"in/0/7": [owed]})
    assert [a.position for a in run] == [(RETRY, 0, 4)]
    assert inert == {(RETRY, 0, 9), (RETRY, 0, 5)}
    elsewhere = RowState(0, 1, Status.SCHEDULED, Place(RETRY, 1, IN_BATCH))
    assert runnable(copies, {"in/0/7": [elsewhere]})[0] == []


def test_the_books_name_what_is_owed_and_close_what_was() -> None:
    """One change a partition: position, ledger rows and counts (spec 6.3, 6.8)."""
    judgement = Judgement(
        failed={("in", 0, 3): bad(own(3), permanent=False), ("in", 1, 2): bad(own(2, 1))},
        counts={("in", 0): Counts(read=4, loaded=3, scheduled=1)},
    )
    span = BatchRange(
        {("in", 0): 0, ("in", 1): 2, (RETRY, 0): 5, (RETRY, 1): 0},
        {("in", 0): 4, ("in", 1): 3, (RETRY, 0): 6, (RETRY, 1): 0},
    )
    books = books_of("p", span, 77, SPEC, judgement, [again(9, at=5)])
    assert books.copy_topics == {RETRY, TOPICS.dead_letter}, "no other gets a marker"
    found = books.changes
    assert [
        (c.fence.topic, c.fence.partition, c.fence.expected, c.fence.next_offset) for c in found
    ] == [("in", 0, 0, 4), ("in", 1, 2, 3), (RETRY, 0, 5, 6)]
    scheduled, failed = found[0].rows[0], found[1].rows[0]
    assert (scheduled.status, scheduled.number) == (Status.SCHEDULED, 1)
    assert scheduled.place == Place(RETRY, 0, IN_BATCH)
    assert scheduled.due_ms == 77 + 300_000
    assert (failed.status, failed.place) == (Status.FAILED, Place(TOPICS.dead_letter, 1, IN_BATCH))
    assert [(c.retry_id, c.number) for c in found[2].claims] == [("in/0/9", 1)]
    assert found[0].counts.loaded == 3
