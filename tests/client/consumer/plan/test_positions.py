"""Positions: transitions, stale results, resets with a cause (spec 4.4, 4.6, 4.7; C3, C7, C8)."""

from __future__ import annotations

import pytest

from kohort.client.common.offset_reset import BY_DURATION, EARLIEST, LATEST, ResetPolicy
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.fetch_planner import Fetched
from kohort.client.consumer.plan.offset_fetcher import OffsetAnswer, OffsetFetcher
from kohort.client.consumer.plan.positions import (
    TRANSITIONS,
    Event,
    Phase,
    Position,
    Positions,
    Stamp,
)
from kohort.errors import (
    ConfigError,
    ConnectionFailedError,
    DataLossError,
    ErrorCode,
    NoOffsetForPartitionError,
    UsageError,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def made(policy: str = "earliest", *tps: TopicPartition) -> tuple[Positions, Position]:
    positions = Positions(ResetPolicy.parse(policy))
    positions.add(tps or [P0], 0)
    return positions, positions.get(tps[0] if tps else P0)


def fetching(
    offset: int = 10, epoch: int = 1, policy: str = "earliest"
) -> tuple[Positions, Position]:
    positions, position = made(policy)
    positions.committed_found(P0, position.stamp, offset, epoch, 1)
    position.leader_epoch = epoch
    return positions, position


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("event", list(Event))
def test_every_pair_is_in_the_table_or_ignored(phase: Phase, event: Event) -> None:
    """Nothing asynchronous moves a partition from a state in which it was not asked for."""
    target = TRANSITIONS.get((phase, event))
    if event in (Event.SEEK, Event.SEEK_RESET, Event.FAIL):
        assert target is not None
    elif phase is Phase.FAILED:
        assert target is None


def test_committed_offset_is_where_reading_begins() -> None:
    positions, position = made()
    assert position.phase is Phase.AWAITING_OFFSET
    assert not position.known
    positions.committed_found(P0, position.stamp, 42, 3, 5)
    assert (position.phase, position.offset, position.offset_epoch) == (Phase.FETCHING, 42, 3)
    assert position.acked == position.committed == 42
    assert position.entered_ms == 5


def test_no_committed_offset_applies_the_policy_with_its_cause() -> None:
    positions, position = made("latest")
    positions.nothing_committed(P0, position.stamp, 5)
    assert (position.phase, position.reset_to) == (Phase.AWAITING_RESET, LATEST)
    event = positions.reset_found(P0, position.stamp, 100, 2, 9)
    assert event is not None
    assert (event.to_offset, event.policy, event.at_ms) == (100, "latest", 9)
    assert "no committed offset" in event.cause
    assert list(positions.resets) == [event]
    assert (position.offset, position.phase) == (100, Phase.FETCHING)


@pytest.mark.parametrize("what", ["commit", "range"])
def test_policy_none_stops_the_partition_until_a_seek(what: str) -> None:
    positions, position = fetching(policy="none") if what == "range" else made("none")
    if what == "range":
        positions.out_of_range(P0, position.stamp, 10, 50, 3)
    else:
        positions.nothing_committed(P0, position.stamp, 3)
    assert position.phase is Phase.FAILED
    assert isinstance(position.error, NoOffsetForPartitionError)
    assert "t-0" in str(position.error)
    positions.seek(P0, 7, -1, 4)
    assert (position.phase, position.offset, position.error) == (Phase.FETCHING, 7, None)


def test_out_of_range_counts_only_for_the_present_offset() -> None:
    """C8: an answer about an offset that is no longer the position changes nothing."""
    positions, position = fetching(10)
    positions.out_of_range(P0, position.stamp, 9, 50, 3)
    assert position.phase is Phase.FETCHING
    positions.out_of_range(P0, position.stamp, 10, 50, 3)
    assert position.phase is Phase.AWAITING_RESET
    event = positions.reset_found(P0, position.stamp, 50, 1, 4)
    assert event is not None
    assert event.from_offset == 10
    assert "out of range" in event.cause


def test_a_result_from_before_a_seek_is_dropped() -> None:
    """C7, B51, B52: late lookups, resets and validations do not move a position that was seeked."""
    positions, position = made()
    old = position.stamp
    positions.seek(P0, 5, -1, 1)
    positions.committed_found(P0, old, 99, 1, 2)
    positions.nothing_committed(P0, old, 2)
    assert position.offset == 5
    positions, position = fetching(10, epoch=1)
    positions.leader_moved(P0, 2, can_validate=True, now_ms=2)
    old = position.stamp
    assert position.phase is Phase.AWAITING_VALIDATION
    positions.seek(P0, 3, -1, 3)
    assert positions.truncated(P0, old, 7, 2, 4) is None
    positions.validated(P0, old, 4)
    assert (position.offset, position.phase) == (3, Phase.FETCHING)


def test_a_result_for_an_earlier_ownership_is_dropped() -> None:
    """B38, C7: revoked and assigned again is another ownership."""
    positions, position = made()
    old = position.stamp
    positions.remove([P0])
    positions.add([P0], 5)
    positions.committed_found(P0, old, 99, 1, 6)
    assert positions.get(P0).phase is Phase.AWAITING_OFFSET


def test_the_answer_for_one_partition_does_not_reset_another() -> None:
    """B54."""
    positions, first = made("earliest", P0)
    positions.add([P0, P1], 3)
    second = positions.get(P1)
    positions.committed_found(P0, first.stamp, 4, 0, 4)
    assert (first.phase, second.phase) == (Phase.FETCHING, Phase.AWAITING_OFFSET)


def test_retained_keeps_everything_and_revoked_keeps_nothing() -> None:
    """C10, R8, B45: pause and position end with the ownership."""
    positions, position = fetching(10)
    positions.pause([P0])
    data = Fetched(b"", 0, position.stamp)
    positions.store_buffer(position, data, 100)
    positions.add([P0, P1], 5)
    assert positions.get(P0) is position
    assert position.paused
    assert position.buffer is data
    assert positions.buffered_bytes == 100
    positions.remove([P0])
    assert positions.buffered_bytes == 0
    positions.add([P0], 6)
    assert not positions.get(P0).paused
    assert positions.get(P0).offset == -1


def test_resume_of_a_partition_that_was_not_paused_moves_nothing() -> None:
    """B51 (librdkafka 2.4.0)."""
    positions, position = fetching(10)
    positions.advance(position, 20, 1)
    assert positions.resume([P0]) == []
    assert position.offset == 20


def test_a_leader_without_epoch_is_not_a_new_leader() -> None:
    """B53."""
    positions, position = fetching(10, epoch=4)
    positions.leader_moved(P0, -1, can_validate=True, now_ms=3)
    positions.leader_moved(P0, 4, can_validate=True, now_ms=3)
    positions.leader_moved(P0, 3, can_validate=True, now_ms=3)
    assert (position.phase, position.leader_epoch) == (Phase.FETCHING, 4)


def test_truncation_goes_back_visibly_or_fails() -> None:
    """Spec 4.7: a truncated log is detected by leader epoch (KIP-320)."""
    positions, position = fetching(10, epoch=1)
    positions.store_buffer(position, Fetched(b"", 0, position.stamp), 10)
    positions.leader_moved(P0, 2, can_validate=True, now_ms=2)
    event = positions.truncated(P0, position.stamp, 7, 1, 3)
    assert event is not None
    assert (event.from_offset, event.to_offset) == (10, 7)
    assert "truncated" in event.cause
    assert list(positions.resets) == [event]
    assert (position.offset, position.phase, position.buffer) == (7, Phase.FETCHING, None)
    positions, position = fetching(10, epoch=1, policy="none")
    positions.leader_moved(P0, 2, can_validate=True, now_ms=2)
    assert positions.truncated(P0, position.stamp, 7, 1, 3) is None
    assert isinstance(position.error, DataLossError)


def test_what_was_committed_under_an_older_leader_is_checked_first() -> None:
    """Spec 4.7 (KIP-320): the log may have been truncated since, while nobody read."""
    for epoch, phase in ((1, Phase.AWAITING_VALIDATION), (2, Phase.FETCHING), (-1, Phase.FETCHING)):
        positions, position = made()
        position.leader_epoch = 2
        positions.committed_found(P0, position.stamp, 42, epoch, 5)
        assert (position.phase, position.offset) == (phase, 42)


def test_a_log_that_reaches_the_position_is_valid() -> None:
    positions, position = fetching(10, epoch=1)
    positions.leader_moved(P0, 2, can_validate=True, now_ms=2)
    assert positions.truncated(P0, position.stamp, 10, 1, 3) is None
    assert (position.offset, position.phase) == (10, Phase.FETCHING)
    assert not positions.resets


def test_seek_to_the_end_is_not_reported_as_a_reset() -> None:
    positions, position = fetching(10)
    positions.seek_reset(P0, LATEST, 2)
    assert not position.known
    assert positions.reset_found(P0, position.stamp, 99, 1, 3) is None
    assert position.offset == 99
    assert not positions.resets


def test_a_bound_drops_what_was_cut_elsewhere_and_no_question() -> None:
    """A bound set while the first offset is still looked for leaves that question open."""
    positions, position = made("earliest")
    positions.nothing_committed(P0, position.stamp, 1)
    stamp = position.stamp
    positions.bound(P0, 7)
    assert (position.stamp, position.reset_to) == (stamp, EARLIEST)
    positions, position = fetching(10)
    positions.store_buffer(position, Fetched(b"", 0, position.stamp), 10)
    stamp = position.stamp
    positions.bound(P0, 17)
    assert position.stamp != stamp
    assert (position.buffer, position.offset) == (None, 10)


def test_bad_use_is_refused() -> None:
    positions, _ = made()
    with pytest.raises(UsageError, match=">= 0"):
        positions.seek(P0, -1, -1, 0)
    with pytest.raises(UsageError, match="t-1 is not assigned"):
        positions.seek(P1, 1, -1, 0)
    with pytest.raises(UsageError):
        positions.pause([P0, P1])
    assert not positions.get(P0).paused, "nothing is changed by a refused call"


def test_acknowledged_is_what_the_caller_came_back_from() -> None:
    """C4: the automatic commit never covers what the caller has not returned from."""
    positions, position = fetching(10)
    positions.advance(position, 15, 2)
    assert position.acked == 10
    positions.acknowledge([position], 0)
    assert (position.acked, position.acked_epoch) == (15, 2)


def test_lag() -> None:
    _positions, position = fetching(10)
    assert position.lag(committed_only=False) is None
    position.high_watermark, position.last_stable = 25, 20
    assert position.lag(committed_only=False) == 15
    assert position.lag(committed_only=True) == 10


def test_stamp_of_a_removed_partition_fits_nothing() -> None:
    positions, position = made()
    positions.remove([P0])
    assert position.stamp == Stamp(-1, -1)
    assert positions.current(P0, position.stamp) is None


@pytest.mark.parametrize(
    ("text", "target", "duration"),
    [
        ("earliest", EARLIEST, 0),
        ("Latest", LATEST, 0),
        ("none", None, 0),
        ("by_duration:P1DT2H", BY_DURATION, 93_600_000),
        ("by_duration:PT0.5S", BY_DURATION, 500),
        ("by_duration:PT1H2M3S", BY_DURATION, 3_723_000),
        ("BY_DURATION:pt30m", BY_DURATION, 1_800_000),
        ("by_duration:1h30m", BY_DURATION, 5_400_000),
    ],
)
def test_policies(text: str, target: int | None, duration: int) -> None:
    policy = ResetPolicy.parse(text)
    assert (policy.target, policy.duration_ms) == (target, duration)
    assert policy.timestamp(EARLIEST, 1) == EARLIEST
    assert policy.timestamp(BY_DURATION, 10**12) == 10**12 - duration
    assert policy.timestamp(BY_DURATION, duration // 2) == 0  # -1 and -2 are no times


@pytest.mark.parametrize("text", ["", "earlest", "by_duration", "by_duration:P", "none:1h"])
def test_bad_policies(text: str) -> None:
    with pytest.raises(ConfigError):
        ResetPolicy.parse(text)
    if text == "earlest":
        with pytest.raises(ConfigError, match="did you mean 'earliest'"):
            ResetPolicy.parse(text)


def test_a_bound_does_not_forget_a_reset_under_way() -> None:
    """A partition that waits for its beginning still does so after `limit`."""
    positions, position = fetching()
    positions.seek_reset(P0, EARLIEST, 1)
    positions.bound(P0, 3)
    assert (position.phase, position.reset_to) == (Phase.AWAITING_RESET, EARLIEST)
    positions.reset_found(P0, position.stamp, 0, 1, 2)
    assert (position.phase, position.offset) == (Phase.FETCHING, 0)


@pytest.mark.parametrize("answer", ["no such epoch", "nobody there"])
def test_a_validation_without_an_answer_resets_nothing(answer: str) -> None:
    """B53, C8: an undefined end, or a leader that cannot be reached, is no loss of data."""
    positions, position = fetching(10, epoch=1)
    positions.leader_moved(P0, 2, can_validate=True, now_ms=2)
    fetcher = OffsetFetcher(positions, 100, has_group=True)
    (question,) = fetcher.plan(lambda tp: 1, 3, 3, coordinator_known=True)
    answers = {P0: OffsetAnswer(0, -1)}
    lost = ConnectionFailedError("its name is not known")
    settled = fetcher.answered(question.token, answers if answer == "no such epoch" else lost, 4)
    assert (settled.resets, position.offset) == ([], 10)
    still = Phase.FETCHING if answer == "no such epoch" else Phase.AWAITING_VALIDATION
    assert position.phase is still


@pytest.mark.parametrize("known", [False, True], ids=["looking up", "asking for a start"])
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {P1: OffsetAnswer(0, -1)},
        {P0: OffsetAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)},
        {P0: OffsetAnswer(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)},
        {P0: OffsetAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)},
        ConnectionFailedError("cut"),
    ],
    ids=["not named", "another's", "loading", "unstable", "moved", "lost"],
)
def test_what_is_no_answer_places_no_partition(answer, known: bool) -> None:
    """Spec 4.7, C8: only a broker's own word that there is no offset lets the policy decide."""
    positions, position = made("earliest")
    fetcher = OffsetFetcher(positions, 100, has_group=True)
    if known:
        positions.nothing_committed(P0, position.stamp, 1)
    before = position.phase
    (question,) = fetcher.plan(lambda tp: 1, 3, 3, coordinator_known=True)
    settled = fetcher.answered(question.token, answer, 4)
    assert settled.resets == []
    assert (position.phase, position.offset) == (before, -1)
    assert fetcher.plan(lambda tp: 1, 5, 5, coordinator_known=True) == []
    (again,) = fetcher.plan(lambda tp: 1, 104, 104, coordinator_known=True)
    fetcher.answered(again.token, {P0: OffsetAnswer(0, 7, 0)}, 105)
    assert (position.phase, position.offset) == (Phase.FETCHING, 7)
