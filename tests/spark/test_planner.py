"""Spec 6.7, D4: what the driver plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kohort.errors import BrokerError, ConfigError, DataLossError, ErrorCode, KafkaTimeoutError
from kohort.retry.offset_queries import Stamped, TopicView
from kohort.spark.offsets import Position, Range, TopicPartition
from kohort.spark.options import parse_source
from kohort.spark.planner import Planner

T0, T1 = ("t", 0), ("t", 1)


@dataclass
class FakePort:
    """A cluster in a dictionary: the timestamps of each partition's records."""

    logs: dict[TopicPartition, list[int]] = field(default_factory=lambda: {T0: [], T1: []})
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    group: dict[TopicPartition, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    named: list[tuple[str, ...]] = field(default_factory=list)
    refuse: bool = False
    sizes: dict[str, float] = field(default_factory=dict)
    markers: set[tuple[TopicPartition, int]] = field(default_factory=set)

    def topics(self, names: Collection[str] = ()) -> Mapping[str, TopicView]:
        self.asked.append("topics")
        self.named.append(tuple(names))
        names = sorted({t for t, _ in self.logs if not names or t in names})
        return {
            n: TopicView(self.ids.get(n, f"id-{n}"), sum(t == n for t, _ in self.logs))
            for n in names
        }

    def earliest(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: self.starts.get(at, 0) for at in wanted}

    def latest(
        self,
        wanted: Sequence[TopicPartition],
        timeout_s: float | None = None,
        *,
        partial: bool = False,
    ) -> dict[TopicPartition, int]:
        self.asked.append("latest")
        if not all(at in self.logs for at in wanted):
            raise KafkaTimeoutError("no offsets; the last answer was UNKNOWN_TOPIC_OR_PARTITION")
        return {at: len(self.logs[at]) for at in wanted}

    def by_time(
        self, wanted: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, Stamped]:
        self.asked.append("by_time")
        return {
            at: next(
                (Stamped(o, t) for o, t in enumerate(self.logs[at]) if t >= ms), Stamped(-1, -1)
            )
            for at, ms in wanted.items()
        }

    def max_timestamp(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, Stamped]:
        return {
            at: max(
                (Stamped(o, t) for o, t in enumerate(self.logs[at])),
                key=lambda s: s.timestamp_ms,
                default=Stamped(-1, -1),
            )
            for at in wanted
        }

    def scan(self, at: TopicPartition, start: int, end: int, target_ms: int) -> Stamped:
        for offset in range(start, end):
            if self.logs[at][offset] >= target_ms:
                return Stamped(offset, self.logs[at][offset])
        return Stamped(end, -1)

    def record_bytes(self, at: TopicPartition, start: int, end: int) -> float | None:
        self.asked.append(f"bytes {at[0]}")
        return self.sizes.get(at[0])

    def has_records(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        self.asked.append("records")
        return any((at, o) not in self.markers for at, r in ranges.items() for o in range(*r))

    def committed(self, group: str, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: self.group[at] for at in wanted if at in self.group}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        if self.refuse:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        for at, offset in offsets.items():
            assert offset >= self.group.get(at, 0), "progress never goes back"
        self.group.update(offsets)


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def planner(port: Any, clock: Clock | None = None, **options: Any) -> Planner:
    source_options = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "startingOffsets": "earliest",
    }
    names = {k.replace("_", "."): v for k, v in options.items()}
    if {"assign", "subscribePattern"} & names.keys():
        del source_options["subscribe"]
    parsed = parse_source({**source_options, **names}, streaming=True)
    return Planner(parsed, port, clock or Clock(), tasks=2)


def test_a_batch_read_leaves_the_group_alone() -> None:
    """Its first start was kept for ever, and retention behind it was reported as lost data."""
    port: Any = FakePort({T0: [1] * 5, T1: []})
    source_options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "group.id": "g"}
    options = parse_source(source_options, streaming=False)
    assert Planner(options, port, Clock(), tasks=2).initial().next[T0] == 0
    assert not port.group
    port.starts = {T0: 3}
    again = Planner(options, port, Clock(), tasks=2)
    assert again.initial().next[T0] == 3
    assert again.latest(again.initial()).next[T0] == 5
    assert not port.group
    port.group = {T0: 4}
    from_group = parse_source({**source_options, "startingOffsets": "group"}, streaming=False)
    assert Planner(from_group, port, Clock(), tasks=2).initial().next[T0] == 4


def test_publish_progress_false_commits_no_start_either() -> None:
    port: Any = FakePort({T0: [1] * 5, T1: []}, refuse=True)
    made = planner(port, group_id="g", startingOffsets="latest", publishProgress="false")
    assert made.initial().next[T0] == 5
    made.latest(made.initial())
    assert not port.group


def test_a_batch_of_markers_alone_ends_where_the_log_does() -> None:
    """Asked for up to there, it was refused as past the end."""
    port: Any = FakePort({T0: [1] * 11, T1: []}, markers={(T0, 10)})
    source_options = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "startingOffsets": '{"t": {"0": 10, "1": -2}}',
        "endingOffsets": '{"t": {"0": 11, "1": -1}}',
    }
    made = Planner(parse_source(source_options, streaming=False), port, Clock(), tasks=2)
    assert made.latest(made.initial()).next[T0] == 11


def test_latest_is_kept_in_the_group_at_once() -> None:
    """Asked again after a restart, the start is still the same."""
    port = FakePort({T0: [1] * 5, T1: [1] * 7})
    first = planner(port, group_id="g", startingOffsets="latest").initial()
    port.logs[T0] += [2] * 100
    again = planner(port, group_id="g", startingOffsets="latest").initial()
    assert first.next == again.next == {T0: 5, T1: 7}


def test_group_start_and_its_fallback() -> None:
    port = FakePort({T0: [1] * 5, T1: [1] * 7}, group={T0: 3}, starts={T1: 2})
    found = planner(port, group_id="g", startingOffsets="group").initial()
    assert found.next == {T0: 3, T1: 2}
    assert port.group == {T0: 3, T1: 2}


def test_named_offsets_must_be_all_and_only_what_is_read() -> None:
    port = FakePort()
    with pytest.raises(ConfigError, match=r"missing t/1, extra t/7"):
        planner(port, startingOffsets='{"t": {"0": 0, "7": 1}}').initial()
    found = planner(port, startingOffsets='{"t": {"0": -2, "1": 4}}').initial()
    assert found.next == {T0: 0, T1: 4}


def test_batches_are_limited_and_replayed_alike() -> None:
    """X2: the stored end alone says what is read, whatever the log holds by then."""
    port = FakePort({T0: [1] * 100, T1: [1] * 50})
    plan = planner(port)
    start = plan.initial()
    end = plan.latest(start, 30)
    assert end.next == {T0: 20, T1: 10}
    stored = Position.from_json(end.to_json())
    other = planner(FakePort({T0: [], T1: []}))
    assert other.tasks(start, stored) == plan.tasks(start, end)


def test_progress_is_what_the_checkpoint_has_committed() -> None:
    """X4: from `start`, never back, never ahead of the checkpoint."""
    port = FakePort({T0: [1] * 100, T1: []})
    plan = planner(port, group_id="g")
    one = plan.latest(plan.initial(), 10)
    plan.latest(one, 10)
    assert port.group == {T0: 10, T1: 0}
    planner(port, group_id="g").latest(plan.initial(), 10)
    assert port.group == {T0: 10, T1: 0}


def test_a_group_with_members_is_refused() -> None:
    with pytest.raises(ConfigError, match="group of its own"):
        planner(FakePort(refuse=True), group_id="g", startingOffsets="group").initial()


def test_new_partitions_are_read_from_their_beginning() -> None:
    clock = Clock()
    port = FakePort({T0: [1] * 3})
    plan = planner(port, clock)
    start = plan.initial()
    port.logs[T1] = [1] * 4
    clock.now += 60_000
    end = plan.latest(start)
    assert end.next == {T0: 3, T1: 4}
    assert [(r.partition, r.start, r.end, r.first) for t in plan.tasks(start, end) for r in t] == [
        (0, 0, 3, True),
        (1, 0, 4, True),
    ]


def test_loss_is_a_log_start_past_what_is_wanted_and_nothing_else() -> None:
    port = FakePort({T0: [1] * 10, T1: []}, starts={T0: 4})
    with pytest.raises(DataLossError, match="0 to 3 are gone"):
        planner(port).latest(Position({T0: 0, T1: 0}))
    lenient = planner(port, failOnDataLoss="false")
    assert lenient.latest(Position({T0: 0, T1: 0})).next[T0] == 10
    assert planner(port).latest(Position({T0: 4, T1: 0})).next[T0] == 10


def test_a_loss_in_a_pipeline_names_what_a_pipeline_can_do() -> None:
    """It has no failOnDataLoss."""
    remedy = "`kohort pipeline diff` says how to continue"
    port, clock = FakePort({T0: [1] * 10}, starts={T0: 4}), Clock()
    plan = planner(port, clock, lossRemedy=remedy)
    with pytest.raises(DataLossError, match=f"4: retention, .*\\. {remedy}$"):
        plan.latest(Position({T0: 0}))
    with pytest.raises(DataLossError, match=f"created again .* read\\. {remedy}$"):
        plan.latest(Position({T0: 4}, ids={"t": "old"}))
    with pytest.raises(DataLossError, match=f"past the log's end at 10\\. {remedy}$"):
        plan.latest(Position({T0: 12}, initial=True))
    port.logs, clock.now = {("u", 0): []}, clock.now + 60_000
    with pytest.raises(DataLossError, match=f"deleted while this query read it\\. {remedy}$"):
        plan.latest(Position({T0: 4}))


def test_a_start_past_the_end_is_refused_once() -> None:
    """What is written next would be left out. A later end that is behind is no reason to fail."""
    port = FakePort({T0: [1] * 5, T1: [1] * 5})
    start = '{"t": {"0": 7, "1": 0}}'
    query = planner(port, startingOffsets=start)
    with pytest.raises(DataLossError, match="t/0: the query begins at 7, past the log's end at 5"):
        query.latest(query.initial())
    lenient = planner(port, startingOffsets=start, failOnDataLoss="false")
    assert lenient.latest(lenient.initial()).next == {T0: 7, T1: 5}
    later = Position(next={T0: 7, T1: 5}, ids={"t": "id-t"})
    assert query.latest(later).next == {T0: 7, T1: 5}


@pytest.mark.parametrize("records", [4, 1])
def test_a_topic_recreated_between_two_looks_is_noticed(records: int) -> None:
    """Before anything of it is planned from the old position, whichever end is further."""
    port, clock = FakePort({T0: [1] * 3}), Clock()
    plan = planner(port, clock=clock)
    start = plan.latest(plan.initial())
    port.ids["t"], port.logs[T0] = "other", [5] * records
    with pytest.raises(DataLossError, match="created again"):
        plan.latest(start)
    port = FakePort({T0: [1] * 3})
    lenient = planner(port, failOnDataLoss="false")
    start = lenient.latest(lenient.initial())
    port.ids["t"], port.logs[T0] = "other", [5] * records
    end = lenient.latest(start)
    assert [s[:4] for task in lenient.tasks(start, end) for s in task] == [("t", 0, 0, records)]


def test_only_the_topics_that_are_read_are_asked_for() -> None:
    port = FakePort({T0: [1], ("other", 0): [1]})
    planner(port).latest(planner(port).initial())
    assert set(port.named) == {("t",)}


def test_a_topic_recreated_is_noticed() -> None:
    port = FakePort()
    start = planner(port).initial()
    port.ids["t"] = "other"
    with pytest.raises(DataLossError, match="created again"):
        planner(port).latest(start)


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"t": {"0": -1, "1": -2}}'},
        {"startingOffsets": '{"t": {"0": -1, "1": -2}}', "group_id": "g"},
        {
            "startingOffsetsByTimestamp": '{"t": {"0": 9, "1": 0}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ],
    ids=["without a group", "with a group", "by time"],
)
def test_a_moving_start_survives_a_crash_in_batch_0(options: dict[str, Any]) -> None:
    """Spark asks for the start again; the batch is planned from where its end says it began."""
    port = FakePort({T0: [1] * 5, T1: [1] * 7})
    first = planner(port, **options)
    start = Position.from_json(first.initial().to_json())
    assert start.next == {T0: 5, T1: 0}
    port.logs[T0] += [2] * 3
    end = Position.from_json(first.latest(start).to_json())
    port.logs[T0] += [3] * 100
    again = planner(port, **options)
    replayed = again.tasks(again.initial(), end)
    assert replayed == first.tasks(start, end)
    assert sum(s.size for task in replayed for s in task) == 3 + 7
    assert again.latest(end).next == {T0: 108, T1: 7}


def test_a_time_without_a_record_follows_the_strategy() -> None:
    port = FakePort({T0: [1] * 5, T1: [500] * 7})
    with pytest.raises(ConfigError, match="t/0: there is no record at or after"):
        planner(port, startingTimestamp="100").initial()
    assert planner(port, startingTimestamp="1").initial().next == {T0: 0, T1: 0}
    lenient: dict[str, Any] = {"startingOffsetsByTimestampStrategy": "latest"}
    assert planner(port, startingTimestamp="100", **lenient).initial().next == {T0: 5, T1: 0}
    with pytest.raises(ConfigError, match=r"startingOffsetsByTimestamp must name .* missing t/1"):
        planner(port, startingOffsetsByTimestamp='{"t": {"0": 1}}').initial()


def test_a_batch_waits_for_enough_records_but_not_for_ever() -> None:
    """minOffsetsPerTrigger and maxTriggerDelay, as the connector counts them."""
    port, clock = FakePort({T0: [1], T1: []}), Clock()
    plan = planner(port, clock, minOffsetsPerTrigger="5", maxTriggerDelay="1m")
    first = plan.latest(plan.initial())
    assert first.next == {T0: 1, T1: 0}, "the first batch of a process does not wait"
    port.logs[T0] += [2] * 4
    clock.now += 59_999
    assert plan.latest(first).to_json() == first.to_json()
    port.logs[T1] += [2]
    second = plan.latest(first)
    assert second.next == {T0: 5, T1: 1}, "enough are there"
    port.logs[T1] += [2]
    assert plan.latest(second).next == second.next
    clock.now += 60_000
    assert plan.latest(second).next == {T0: 5, T1: 2}, "they have waited long enough"
    finishing = planner(port, clock, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5")
    finishing.freeze()
    at = finishing.initial()
    for _ in range(2):
        at = finishing.latest(at, 5)
    assert at.next == {T0: 5, T1: 2}, "AvailableNow leaves nothing behind"


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_misspelt_topic_is_an_error(lenient: str) -> None:
    """Also beside one that is there, and with failOnDataLoss=false: it was never there."""
    port = FakePort({("flights", 0): [1], T0: [1]})
    plan = planner(port, subscribe="t,fligths", failOnDataLoss=lenient)
    with pytest.raises(ConfigError, match=r"no topic fligths.*did you mean 'flights'"):
        plan.latest(plan.initial())
    chosen = planner(port, assign='{"t": [0, 3]}', failOnDataLoss=lenient)
    with pytest.raises(ConfigError, match="t has 1 partition, counted from 0, and no partition 3"):
        chosen.latest(chosen.initial())


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        (".*", ["jobs.mine.dlt", "orders"]),
        ("orders.*", ["orders"]),
        (r"orders\..*\.retry\..*", ["orders.g.retry.0s", "orders.g.retry.5m"]),
        (r".*\.dlt", ["jobs.mine.dlt", "orders.g.dlt"]),
    ],
)
def test_a_pattern_leaves_retry_topics_out_unless_it_names_them(
    pattern: str, read: list[str]
) -> None:
    """A topic of somebody's that only ends like one stands beside no entry topic."""
    names = ["orders", "orders.g.retry.0s", "orders.g.retry.5m", "orders.g.dlt", "jobs.mine.dlt"]
    port = FakePort({(name, 0): [1] for name in names})
    plan = planner(port, subscribePattern=pattern)
    assert sorted(t for t, _ in plan.initial().next) == read


def both(**options: str) -> dict[str, Any]:
    return {"subscribe": "t,u", **options}


def test_a_deleted_topic_follows_fail_on_data_loss() -> None:
    """In the plan, in the plan after stale metadata, and in a batch that is replayed."""
    clock, u0 = Clock(), ("u", 0)
    port = FakePort({T0: [1] * 5, u0: [1] * 5})
    lenient = planner(port, clock, **both(failOnDataLoss="false"))
    strict = planner(port, clock, **both())
    start = lenient.latest(lenient.initial())
    strict.latest(start)
    del port.logs[u0]
    port.logs[T0] += [2]
    end = lenient.latest(start)
    assert end.next == {T0: 6, u0: 5}
    with pytest.raises(DataLossError, match="u/0: the topic was deleted"):
        strict.latest(start)
    replayed = planner(port, clock, **both(failOnDataLoss="false"))
    spans = [s for task in replayed.tasks(lenient.initial(), end) for s in task]
    assert [s[:4] for s in sorted(spans)] == [("t", 0, 0, 6)]
    with pytest.raises(DataLossError, match="u/0: the topic was deleted"):
        planner(port, clock, **both()).tasks(lenient.initial(), end)
    clock.now += 60_000
    port.logs[u0], port.ids["u"] = [7] * 2, "new"
    later = lenient.latest(end)
    assert later.next == {T0: 6, u0: 2}
    spans = [s for task in lenient.tasks(end, later) for s in task]
    assert spans == [Range("u", 0, 0, 2, "new", True)]


def test_a_topic_that_is_created_again_with_fewer_partitions_is_read_and_may_grow() -> None:
    """Partitions that it does not have were planned, and those it got later were read from where
    the deleted topic's had been."""
    clock, t2 = Clock(), ("t", 2)
    port = FakePort({T0: [1] * 100, T1: [1] * 100, t2: [1] * 100})
    plan = planner(port, clock, failOnDataLoss="false")
    first = plan.latest(plan.initial())
    port.logs, port.ids["t"] = {T0: [5] * 10}, "new"
    clock.now += 60_000
    second = plan.latest(first)
    assert [s[:4] for task in plan.tasks(first, second) for s in task] == [("t", 0, 0, 10)]
    port.logs |= {T1: [6] * 40, t2: [6] * 120}
    clock.now += 60_000
    third = plan.latest(second)
    spans = sorted(s[:4] for task in plan.tasks(second, third) for s in task)
    assert spans == [("t", 1, 0, 40), ("t", 2, 0, 120)]


def test_a_topic_that_is_no_longer_subscribed_keeps_its_place() -> None:
    u0 = ("u", 0)
    port = FakePort({T0: [1] * 5, u0: [1] * 5})
    wide = planner(port, **both())
    start = wide.latest(wide.initial())
    for log in port.logs.values():
        log.extend([2] * 3)
    end = planner(port).latest(start)
    assert end.next == {T0: 8, u0: 5}
    again = planner(port, **both()).latest(end)
    assert again.next == {T0: 8, u0: 8}
    chosen = planner(port, assign='{"u": [0]}')
    assert chosen.latest(start).next == {T0: 5, u0: 8}


def test_available_now_stops_at_its_first_target() -> None:
    """The target is frozen at the first call."""
    port = FakePort({T0: [1] * 10, T1: []})
    plan = planner(port)
    plan.freeze()
    start = plan.initial()
    one = plan.latest(start, 6)
    port.logs[T0] += [1] * 100
    two = plan.latest(one, 6)
    assert plan.latest(two, 6).next == two.next == {T0: 10, T1: 0}


def test_retry_topics_are_bounded_by_what_is_due() -> None:
    """D4: returning `start` schedules nothing; an idle retry topic is asked seldom."""
    clock = Clock()
    port = FakePort({T0: [clock.now - 400_000, clock.now - 100], T1: []})
    plan = planner(port, clock, retryDelaysMs='{"t": 300000}', clockSkewMs="0")
    start = plan.initial()
    end = plan.latest(start)
    assert end.next == {T0: 1, T1: 0}
    asked = len(port.asked)
    for _ in range(5):
        clock.now += 1_000
        assert plan.latest(end).next == end.next
    assert len(port.asked) == asked
    clock.now += 300_000
    assert plan.latest(end).next == {T0: 2, T1: 0}
    assert port.asked.index("latest") < port.asked.index("by_time")
    last = plan.latest(end)
    (span,) = (s for task in plan.tasks(end, Position.from_json(last.to_json())) for s in task)
    assert span.planned_ms == clock.now


def test_no_topic_is_an_error_that_says_so() -> None:
    with pytest.raises(ConfigError, match="no topic t"):
        planner(FakePort({})).initial()


def with_markers(port: FakePort, *places: TopicPartition) -> None:
    for at in places:
        port.markers.add((at, len(port.logs[at])))
        port.logs[at].append(9)


def test_markers_alone_make_no_batch() -> None:
    """Else a pipeline that writes transactions to what it reads never comes to rest."""
    port = FakePort({T0: [1], T1: [1]})
    plan = planner(port, group_id="g")
    start = plan.latest(plan.initial())
    with_markers(port, T0, T1)
    assert plan.latest(start) == start
    assert plan.ends == start.next
    before = port.asked.count("records")
    assert plan.latest(start) == start
    assert port.asked.count("records") == before, "each marker is looked at once"
    assert port.group == {T0: 2, T1: 2}, "a group is not behind by markers"
    with_markers(port, T1)
    assert plan.latest(start) == start
    port.logs[T0].append(10)
    assert plan.latest(start).next == {T0: 3, T1: 3}


def test_markers_of_a_topic_that_is_created_again_are_forgotten() -> None:
    port = FakePort({T0: [1], T1: [1]})
    plan = planner(port, failOnDataLoss="false")
    start = plan.latest(plan.initial())
    with_markers(port, T0, T0, T0)
    assert plan.latest(start) == start
    port.logs, port.ids["t"] = {T0: [2], T1: []}, "another"
    port.markers.clear()
    assert plan.latest(start).next == {T0: 1, T1: 0}


def test_progress_in_a_topic_that_is_created_again_begins_anew() -> None:
    port = FakePort({T0: [1], T1: [1]})
    plan = planner(port, failOnDataLoss="false", group_id="g")
    start = plan.latest(plan.initial())
    with_markers(port, T0, T0, T0)
    assert plan.latest(start) == start
    port.logs, port.ids["t"] = {T0: [2] * 9, T1: []}, "another"
    port.markers.clear()
    first = plan.latest(start, 2)
    port.group.clear()  # as a broker does with those of a deleted topic
    plan.latest(first, 2)
    assert port.group == {T0: 2, T1: 0}


def test_a_record_where_a_leader_has_lost_markers_is_read() -> None:
    """An unclean election truncates the log; what is written then takes the markers' offsets."""
    port = FakePort({T0: [1], T1: [1]})
    plan = planner(port)
    start = plan.latest(plan.initial())
    with_markers(port, T0, T0, T0)
    assert plan.latest(start) == start
    port.logs[T0] = [1, 2]
    port.markers.clear()
    assert plan.latest(start).next == {T0: 2, T1: 1}


def test_many_offsets_are_not_looked_at() -> None:
    port = FakePort({T0: [1] * 5, T1: []})
    plan = planner(port)
    assert plan.latest(plan.initial()).next == {T0: 5, T1: 0}
    assert "records" not in port.asked
