"""Redrive: chosen dead letters go another round, once; an interrupted redrive continues."""

from __future__ import annotations

import itertools

import pytest

from kohort import Admin, App, Consumer, Producer
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.errors import (
    BrokerError,
    ConfigError,
    ErrorCode,
    FencedError,
    KafkaTimeoutError,
    UsageError,
)
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.retry import Permanent
from kohort.retry import headers as h
from kohort.retry.classify import stated
from kohort.retry.copies import Attempt, copy_for, ladder
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.reading import pages_to_end
from kohort.retry.redrive import Choice, Redrive, Report
from tests.clusters import Cluster
from tests.processing.conftest import PATIENCE_S, Running, Until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


class Failures:
    """A topic whose records all failed in a first run of an app."""

    def __init__(self, cluster: Cluster, count: int = 30, size: int = 3) -> None:
        self.cluster = cluster
        self.topic = f"orders-{next(_numbers)}"
        cluster.create_topic(self.topic, partitions=3)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for n in range(count):
                producer.send(self.topic, b"%d" % n + b"." * size, b"k%d" % n, partition=n % 3)
        self.topics = RetryTopics(self.topic, "billing", RetryPolicy.parse("1h"))
        self.client = {"bootstrap_servers": cluster.bootstrap}
        self.handled: list[tuple[int, int]] = []
        self.mended = False
        self.run_app(count)
        failed = [TopicPartition(self.topics.dead_letter, n) for n in range(3)]
        seen = [r for page in pages_to_end(self._reads_committed(), failed) for r in page]
        assert len(seen) == count, "all have failed, and whoever reads committed records sees it"

    def _reads_committed(self) -> ConsumerConfig:
        return ConsumerConfig.from_mapping({**self.client, "isolation_level": "read_committed"})

    def run_app(self, until: int) -> None:
        """Run the app until it has handled so many records."""
        app = App(
            "billing",
            bootstrap_servers=self.cluster.bootstrap,
            retries="1h",
            clock_skew=0,
            drain=f"{PATIENCE_S:g}s",
            client={"heartbeat_interval_ms": 50, "retry_backoff_ms": 20},
        )
        enough = Until(until)

        @app.handler(self.topic, circuit=CircuitConfig(tokens=0))
        def handle(record):
            number = int(record.value.split(b".")[0])
            self.handled.append((number, record.attempt))
            enough.count()
            if not self.mended:
                raise Permanent("even" if number % 2 == 0 else "odd")

        running = Running(app)
        if until:
            enough.wait()
        running.stop()
        assert running.error is None

    def redrive(self, name: str = "r1", choice: Choice | None = None, **more) -> Redrive:
        return Redrive(name, self.topics, self.client, choice, **more)

    def entry(self) -> list:
        return self.there("entry")

    def there(self, target: str) -> list:
        """What whoever reads committed records finds in a target."""
        name = self.topics.entry
        if target.startswith("retry:"):
            name = self.topics.retry_topic(self.topics.policy.delays_ms[0])
        pages = pages_to_end(self._reads_committed(), [TopicPartition(name, n) for n in range(3)])
        return [record for page in pages for record in page]


def test_all_go_another_round_and_are_done(cluster) -> None:
    """Spec 5.6: sent back, for this group alone; the source topic is not touched."""
    failures = Failures(cluster)
    preview = failures.redrive().preview()
    assert (preview.sent, preview.finished) == (30, False)
    assert preview.kinds["even", "kohort.retry.classify.Permanent"] == 15
    assert failures.entry() == []
    report = failures.redrive().run()
    assert (report.sent, report.finished) == (30, True)
    failures.mended = True
    failures.handled.clear()
    failures.run_app(30)
    assert sorted(n for n, _ in failures.handled) == list(range(30))
    parsed = h.parse(failures.entry()[0].headers)
    assert (parsed.redrive_id, parsed.redrive_count, parsed.number) == ("r1", 1, 0)
    assert parsed.disposition == "redriven"


def test_chosen_ones_by_reason_and_by_place(cluster) -> None:
    failures = Failures(cluster)
    odd = failures.redrive("odd", Choice(reason="odd")).run()
    assert (odd.sent, odd.not_chosen) == (15, 15)
    some = failures.redrive("some", Choice(offsets={0: [(0, 2)], 2: [(5, 6)]})).preview()
    assert (some.sent, some.not_chosen) == (3, 27)
    none = failures.redrive("late", Choice(since_ms=1 << 50)).preview()
    assert none.sent == 0


def test_the_value_of_a_stub_is_read_with_settings_of_all_roles(cluster) -> None:
    """A redrive reads and writes: the one configuration has keys of consumers and producers."""
    failures = Failures(cluster, count=3)
    failed = [TopicPartition(failures.topics.dead_letter, n) for n in range(3)]
    reads = ConsumerConfig.from_mapping(failures.client)
    (first, *_) = (record for page in pages_to_end(reads, failed) for record in page)
    assert first.value is not None
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        stub = [*first.headers, (h.VALUE_OMITTED, b"%d" % len(first.value))]
        producer.send(failures.topics.dead_letter, None, first.key, headers=stub)
    settings = {**failures.client, "max_request_size": 1 << 20, "fetch_min_bytes": 1}
    report = Redrive("r1", failures.topics, settings).run()
    assert (report.sent, report.value_gone) == (4, 0)
    assert sorted(record.value for record in failures.entry()).count(first.value) == 2


def test_the_same_id_again_does_nothing(cluster) -> None:
    """R9: also when what it sent has failed again, or new failures have come."""
    failures = Failures(cluster)
    assert failures.redrive().run().sent == 30
    again = failures.redrive().run()
    assert (again.sent, again.finished) == (0, True)
    failures.run_app(30)  # all of them fail once more
    assert failures.redrive().run().sent == 0
    other = failures.redrive("r2", Choice(reason="odd")).run()
    assert other.sent == 30, "both rounds failed; another redrive may send both"


def test_stopped_it_goes_on_where_it_stood(cluster) -> None:
    failures = Failures(cluster, count=1_500)
    redrive = failures.redrive()
    report = redrive.run(on_progress=lambda report: redrive.stop())
    assert 0 < report.sent < 1_500
    assert not report.finished
    rest = failures.redrive().run()
    assert (report.sent + rest.sent, rest.finished) == (1_500, True)
    assert len({r.value for r in failures.entry()}) == 1_500


def test_a_partition_whose_position_is_not_known_was_not_read_to_its_end(
    cluster, monkeypatch
) -> None:
    """R9: its dead letters were passed, and never sent again."""
    failures = Failures(cluster, count=1_500)
    positions = Consumer.positions
    with monkeypatch.context() as first_run:
        first_run.setattr(
            Consumer, "positions", lambda self: {tp: n for tp, n in positions(self).items() if n}
        )
        redrive = failures.redrive()
        report = redrive.run(on_progress=lambda report: redrive.stop())
    assert 0 < report.sent <= 1_000, "a partition has not been read"
    rest = failures.redrive().run()
    assert (report.sent + rest.sent, rest.finished) == (1_500, True)


class Clock:
    """Time that passes while somebody sleeps, and then only."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("kohort.retry.redrive.steady_s", clock.monotonic)
    monkeypatch.setattr("kohort.retry.redrive.pause", clock.sleep)
    return clock


def test_a_rate_is_kept_without_bursts(cluster, clock) -> None:
    """Spec 5.6: never more than a second's worth at once, or ahead of the time."""
    seen: list[tuple[float, int]] = []
    report = (
        Failures(cluster)
        .redrive()
        .run(rate_per_s=10, on_progress=lambda report: seen.append((clock.now_s, report.sent)))
    )
    assert (report.sent, report.finished) == (30, True)
    assert len(seen) >= 3
    assert all(sent <= 10 * now_s + 10.001 for now_s, sent in seen)


def test_a_slow_redrive_hears_at_once_that_it_is_stopped(cluster, clock) -> None:
    redrive = Failures(cluster).redrive()
    clock.slept = redrive.stop
    report = redrive.run(rate_per_s=0.01)
    assert (report.sent, report.finished) == (1, False)
    assert clock.now_s < 1


class Died(BaseException):
    """kill -9: nothing may catch it."""


@pytest.mark.rows(2)
@pytest.mark.parametrize("commits", [0, 1, 2])
@pytest.mark.parametrize("target", ["entry", "retry:1h"])
def test_what_a_crash_left_sent_is_not_sent_again(cluster, monkeypatch, commits, target) -> None:
    """R9 without a ledger: killed after a page was sent and before that was committed."""
    failures = Failures(cluster, count=1_500)
    left, commit = [commits], Producer.commit_transaction

    def dying(self, *timeout) -> None:
        if not left[0]:
            self.flush()
            raise Died
        left[0] -= 1
        commit(self, *timeout)

    with monkeypatch.context() as killed:
        killed.setattr(Producer, "commit_transaction", dying)
        killed.setattr(Producer, "abort_transaction", dying)
        with pytest.raises(Died):
            failures.redrive(target=target).run()
    report = failures.redrive(target=target).run()
    assert report.finished
    assert report.sent == 1_500 - 500 * commits
    there = [record.value for record in failures.there(target)]
    assert len(there) == 1_500
    assert len(set(there)) == 1_500


@pytest.mark.parametrize("at", range(1, 5))
def test_of_two_runs_at_once_the_second_goes_on(cluster, clock, at) -> None:
    """R9 without a ledger: the first one is fenced wherever it is, and both together send once."""
    failures = Failures(cluster, count=40)
    reports: list[Report] = []
    pages = itertools.count(1)

    def other_run(report: Report) -> None:
        """Between two pages of the first."""
        if next(pages) == at:
            reports.append(failures.redrive().run())

    first = failures.redrive()
    with pytest.raises(FencedError, match="another run of it has begun"):
        first.run(rate_per_s=10, on_progress=other_run)
    assert reports[0].finished
    assert reports[0].sent == 40 - 10 * at
    values = [record.value for record in failures.entry()]
    assert len(values) == len(set(values)) == 40
    assert failures.redrive().run().sent == 0


def test_a_second_run_takes_over_in_the_midst_of_a_page(cluster, monkeypatch) -> None:
    """What the first had sent of a page it has not committed is as never sent."""
    failures = Failures(cluster)
    reports: list[Report] = []
    send_offsets = Producer.send_offsets_to_transaction

    def late(self, offsets, member) -> None:
        self.flush()
        if not reports:
            reports.append(Report())
            reports.append(failures.redrive().run())
        send_offsets(self, offsets, member)

    monkeypatch.setattr(Producer, "send_offsets_to_transaction", late)
    with pytest.raises(FencedError, match="another run of it has begun"):
        failures.redrive().run()
    assert reports[1].sent == 30
    values = [record.value for record in failures.entry()]
    assert len(values) == len(set(values)) == 30


def test_a_run_that_is_cancelled_elsewhere_sends_nothing_more(cluster, clock) -> None:
    """Else it would write the progress that was just forgotten."""
    failures = Failures(cluster)
    first = failures.redrive()
    with pytest.raises(FencedError, match="it was cancelled"):
        first.run(rate_per_s=10, on_progress=lambda report: failures.redrive().cancel())
    assert len(failures.entry()) == 10
    assert failures.redrive().preview().sent == 30


def test_runs_of_one_id_over_two_topics_leave_each_other_alone(cluster, clock) -> None:
    """Their progress is of other topics, though their group is the same."""
    some, others = Failures(cluster), Failures(cluster)
    reports: list[Report] = []

    def other_run(report: Report) -> None:
        if not reports:
            reports.append(others.redrive().run())

    assert some.redrive().run(rate_per_s=10, on_progress=other_run).sent == 30
    assert [report.sent for report in reports] == [30]


def test_cancelled_it_begins_anew(cluster) -> None:
    failures = Failures(cluster)
    assert failures.redrive().run().sent == 30
    failures.redrive().cancel()
    assert failures.redrive().preview().sent == 30
    failures.redrive().cancel()  # nothing is known of it any more, which is no error


def test_cancelled_for_one_topic_it_is_not_forgotten_for_another(cluster) -> None:
    """R9: one id over two topics is two redrives; the other's failures would be sent again."""
    some, others = Failures(cluster, 6), Failures(cluster, 6)
    assert [each.redrive("both").run().sent for each in (some, others)] == [6, 6]
    some.redrive("both").cancel()
    assert some.redrive("both").preview().sent == 6
    assert others.redrive("both").run().sent == 0
    with Admin(some.client) as admin:
        topics = {at.topic for at in admin.list_group_offsets("redrive.both")}
    assert topics == {others.topics.dead_letter}


def test_what_it_sent_and_failed_again_is_not_sent_by_the_same_id(cluster) -> None:
    """R9: not even when its progress is forgotten, which sends the first copies once more."""
    failures = Failures(cluster, 6)
    assert failures.redrive().run().sent == 6
    failures.run_app(6)  # all fail again
    failures.redrive().cancel()
    preview = failures.redrive().preview()
    assert (preview.sent, preview.again) == (6, 6)
    assert failures.redrive("r2").preview().sent == 12


def test_edited_or_left_out(cluster) -> None:
    failures = Failures(cluster)

    def edit(key, value, headers):
        return None if value == b"0..." else (key, value + b"!", headers)

    report = failures.redrive(edit=edit).run()
    assert (report.sent, report.left_by_edit) == (29, 1)
    assert all(r.value.endswith(b"!") for r in failures.entry())


def test_into_a_retry_topic_or_another_topic(cluster) -> None:
    failures = Failures(cluster)
    failures.redrive("t", Choice(reason="odd"), target="retry:1h").run()
    assert len(failures.there("retry:1h")) == 15
    with pytest.raises(ConfigError, match="there is no such retry topic; the policy has 1h"):
        failures.redrive(target="retry:5m")
    with pytest.raises(UsageError, match="does not exist, so no program would read"):
        failures.redrive(target="topic:nowhere").run()
    with pytest.raises(ConfigError, match="write entry, retry:30m or topic:NAME"):
        failures.redrive(target="source")


def test_nothing_has_ever_failed(cluster) -> None:
    topics = RetryTopics("no-such", "billing", RetryPolicy.parse("1h"))
    # Settings of a consumer or a producer alone do not stand in the way of the other clients.
    client = {
        "bootstrap_servers": cluster.bootstrap,
        "isolation.level": "read_committed",
        "linger.ms": 5,
    }
    redrive = Redrive("r", topics, client)
    with pytest.raises(UsageError, match="nothing of 'no-such' has failed"):
        redrive.run()
    with pytest.raises(ConfigError, match="no_such_key"):
        Redrive("r", topics, {**client, "no_such_key": 1}).run()
    with pytest.raises(ConfigError, match="use letters, digits"):
        Redrive("a b", topics, {})


class Stubs:
    """Two dead letters that left a small and a large value at their origin; then one with it."""

    def __init__(self, cluster: Cluster, **entry: str) -> None:
        self.cluster = cluster
        self.topic = f"orders-{next(_numbers)}"
        self.topics = RetryTopics(self.topic, "billing", RetryPolicy.parse("1h"))
        cluster.create_topic(self.topic, partitions=1)
        cluster.create_topic(self.topics.dead_letter, partitions=1)
        cluster.create_topic(self.topics.entry, partitions=1, config=entry)
        self.values = [b"s" * 10, b"l" * 50_000, b"kept"]
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for value in self.values:
                at = producer.send(self.topic, value, b"k").result(PATIENCE_S)
                origin = h.Origin(self.topic, 0, at.offset, at.timestamp_ms)
                tried = Attempt(origin, 0, (self.topic, 0, at.offset), b"k", value, [])
                failure = stated("x", permanent=True)
                copy, _ = copy_for(tried, failure, topics=self.topics, now_ms=1)
                *_, stub = ladder(copy)
                sent = copy if value == b"kept" else stub
                producer.send(copy.topic, sent.value, b"k", headers=sent.headers)

    def redrive(self, **client) -> Redrive:
        settings = {"bootstrap_servers": self.cluster.bootstrap, **client}
        return Redrive("stubs", self.topics, settings)

    def sent(self) -> list[bytes | None]:
        config = ConsumerConfig.from_mapping(
            {"bootstrap_servers": self.cluster.bootstrap, "isolation_level": "read_committed"}
        )
        pages = pages_to_end(config, [TopicPartition(self.topics.entry, 0)])
        return [record.value for page in pages for record in page]


def test_the_values_of_stubs_are_read_at_their_origin(cluster) -> None:
    """With settings of a producer, too, which a consumer does not know."""
    stubs = Stubs(cluster)
    assert stubs.redrive(linger_ms=1).run().sent == 3
    assert stubs.sent() == stubs.values


def test_a_record_that_the_target_does_not_take_is_left_out(cluster) -> None:
    """It ended the transaction of its page, and so every run to come."""
    stubs = Stubs(cluster, **{"max.message.bytes": "20000"})
    assert (stubs.redrive().preview().sent, stubs.redrive().preview().too_large) == (2, 1)
    report = stubs.redrive().run()
    assert (report.sent, report.too_large, report.finished) == (2, 1, True)
    assert stubs.sent() == [stubs.values[0], b"kept"]


def test_a_record_that_the_client_does_not_send_is_left_out(cluster) -> None:
    stubs = Stubs(cluster)
    report = stubs.redrive(max_request_size=20_000).run()
    assert (report.sent, report.too_large, report.finished) == (2, 1, True)


def test_a_codec_may_make_it_small_enough(cluster) -> None:
    stubs = Stubs(cluster, **{"max.message.bytes": "20000"})
    assert stubs.redrive(compression_type="gzip").run().sent == 3


def test_a_value_that_does_not_come_is_not_gone(cluster, monkeypatch) -> None:
    """A leader that is away for a while: the position was committed past the record."""
    stubs = Stubs(cluster)
    poll = Consumer.poll

    def silent(self, timeout, *, max_records=None):
        if any(tp.topic == stubs.topic for tp in self.assignment()):
            return []
        return poll(self, timeout, max_records=max_records)

    with monkeypatch.context() as away:
        away.setattr(Consumer, "poll", silent)
        with pytest.raises(KafkaTimeoutError, match="none came"):
            stubs.redrive().run()
    assert stubs.sent() == []
    assert stubs.redrive().run().sent == 3


def test_a_refusal_is_not_taken_for_a_value_that_is_gone(cluster, monkeypatch) -> None:
    stubs = Stubs(cluster)

    poll = Consumer.poll

    def refused(self, timeout, *, max_records=None):
        if any(tp.topic == stubs.topic for tp in self.assignment()):
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")
        return poll(self, timeout, max_records=max_records)

    with monkeypatch.context() as away:
        away.setattr(Consumer, "poll", refused)
        with pytest.raises(BrokerError):
            stubs.redrive().run()
    assert stubs.redrive().run().sent == 3


def test_the_value_is_gone_with_its_topic(cluster) -> None:
    """Also where the topic was created again, and holds no such record yet."""
    stubs = Stubs(cluster)
    with Admin({"bootstrap_servers": cluster.bootstrap}) as admin:
        admin.delete_topics([stubs.topic])
    report = stubs.redrive(default_api_timeout_ms=2_000).preview()
    assert (report.sent, report.value_gone) == (1, 2)
    cluster.create_topic(stubs.topic, partitions=1)
    report = stubs.redrive().run()
    assert (report.sent, report.value_gone, report.finished) == (1, 2, True)


def test_the_value_is_gone_when_retention_has_taken_it(cluster) -> None:
    stubs = Stubs(cluster)
    with Admin({"bootstrap_servers": cluster.bootstrap}) as admin:
        admin.delete_records({TopicPartition(stubs.topic, 0): 1})
    report = stubs.redrive().run()
    assert (report.sent, report.value_gone) == (2, 1)
    assert stubs.sent() == stubs.values[1:]
