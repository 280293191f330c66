"""The app against the embedded broker: every kind of worker, retries, rebalances, clean ends."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, defaultdict

import pytest

from kohort import Admin, Consumer, Producer
from kohort.errors import BrokerError, ConfigError, UsageError
from kohort.processing.app import App
from kohort.retry import Permanent, Temporary
from kohort.retry import headers as h
from tests.patience import until
from tests.processing.conftest import PATIENCE_S, Until


def committed(cluster, app):
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        found = admin.list_group_offsets(app.group)
    return {tuple(tp): offset.offset for tp, offset in found.items()}


def ends(cluster, names):
    with Consumer(bootstrap_servers=cluster.bootstrap, allow_auto_create_topics=False) as consumer:
        tps = [(name, number) for name in names for number in range(3)]
        return {tuple(tp): end for tp, end in consumer.end_offsets(tps).items()}


def drain(cluster, name):
    found = []
    with Consumer(bootstrap_servers=cluster.bootstrap, allow_auto_create_topics=False) as consumer:
        tps = [(name, number) for number in range(3)]
        consumer.assign(tps)
        consumer.seek_to_beginning()
        left = sum(consumer.end_offsets(tps).values())
        while len(found) < left:
            found += consumer.poll(5)
    return found


def failures(cluster, name):
    """What has failed for good, as soon as something has: it may be the last that is heard of."""
    while not (found := drain(cluster, name)):
        pass
    return found


def settled(cluster, app, topic):
    """Everything that stands in the topic and its retry topics is committed."""
    names = [topic, *app.topics[topic].delays_ms]
    at = committed(cluster, app)
    return all(at.get(tp, 0) == end for tp, end in ends(cluster, names).items())


def test_threads_retry_and_fail_and_commit_cleanly(cluster, topic, produce, app, start) -> None:
    """Spec 4.12, 5.1, 5.3: each input done once or failed once; a clean end commits all of it."""
    produce(500)
    done, ended = Counter(), Until(500)
    program = app()

    @program.handler(topic)
    def handle(record):
        number = int(record.value)
        if number % 100 == 7 and record.attempt < 2:
            raise Temporary("down")
        if number % 100 == 9:
            ended.count()
            raise Permanent("bad")
        done[number] += 1
        ended.count()

    running = start(program)
    ended.wait()
    running.stop()
    assert running.error is None
    assert program.counts() != {}, "the counts are still there when it has ended"
    assert sorted(done) == [n for n in range(500) if n % 100 != 9]
    assert set(done.values()) == {1}
    failed = drain(cluster, program.topics[topic].dead_letter)
    assert sorted(int(r.value) for r in failed) == [9, 109, 209, 309, 409]
    assert {h.parse(r.headers).reason for r in failed} == {"bad"}
    assert settled(cluster, program, topic)


def test_order_within_a_key(topic, produce, app, start) -> None:
    """Spec 4.12: order is kept per key, whatever the workers do."""
    produce(2_000, keys=50)
    seen, lock, until = defaultdict(list), threading.Lock(), Until(2_000)
    program = app(threads=8)

    @program.handler(topic)
    def handle(record):
        with lock:
            seen[record.key].append(int(record.value))
        until.count()

    start(program)
    until.wait()
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_tasks(topic, produce, app, start) -> None:
    produce(300)
    until, at_once, most = Until(300), 0, 0
    program, two = app(tasks=20), asyncio.Event()

    @program.handler(topic, order="none", timeout="10m")
    async def handle(record):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once > 1:
            two.set()
        await two.wait()  # nobody is done before two are at work at once
        at_once -= 1
        until.count()

    start(program)
    until.wait()
    assert 1 < most <= 20


def test_a_task_that_takes_too_long_is_cancelled_and_retried(topic, produce, app, start) -> None:
    produce(1)
    until = Until(1)
    program = app(retries="50ms " * 20)  # a busy machine may cut some more tries short

    @program.handler(topic, timeout="50ms")
    async def handle(record):
        if not record.attempt:
            await asyncio.Event().wait()
        until.count()

    start(program)
    until.wait()


def test_batches_mark_what_failed(cluster, topic, produce, app, start) -> None:
    produce(100)
    until, sizes = Until(99), []
    program = app(retries="none")

    @program.handler(topic, order="partition", batch=True, decode="json")
    def handle(batch):
        sizes.append(len(batch))
        for index, number in enumerate(batch.data):
            if number == 42:
                batch.fail(index, "forty_two")
            else:
                until.count()

    running = start(program)
    until.wait()
    failed = failures(cluster, program.topics[topic].dead_letter)
    running.stop()
    assert max(sizes) > 1
    assert [r.value for r in failed] == [b"42"]


def test_a_batch_that_raises_is_halved_until_the_bad_one_is_alone(
    cluster, topic, produce, app, start
) -> None:
    """W7: one bad record never fails its neighbours."""
    produce(64)
    done = set()
    until = Until(63)
    program = app(retries="none")

    @program.handler(topic, order="none", batch=True)
    def handle(batch):
        numbers = [int(r.value) for r in batch]
        if 13 in numbers:
            raise ValueError("unlucky")
        for number in set(numbers) - done:
            done.add(number)
            until.count()

    running = start(program)
    until.wait()
    (failed,) = failures(cluster, program.topics[topic].dead_letter)
    running.stop()
    assert (failed.value, h.parse(failed.headers).reason) == (b"13", "ValueError")


def test_arrow(topic, produce, app, start) -> None:
    pytest.importorskip("pyarrow")
    produce(100)
    until = Until(101)
    program = app()

    @program.handler(topic, order="none", arrow=True)
    def handle(batch):
        outcomes = []
        for value, attempt in zip(
            batch.column("value").to_pylist(), batch.column("attempt").to_pylist(), strict=True
        ):
            outcomes.append("later" if value == b"5" and not attempt else None)
            until.count()
        return outcomes

    start(program)
    until.wait()


def in_a_process(record):
    if record.value == b"3":
        os._exit(9)
    record.send(record.headers[0][1].decode(), b"%d" % os.getpid(), record.key)


def test_processes_and_one_record_that_kills_them(cluster, topic, app, start) -> None:
    """W2: a process that dies is replaced, and the record that kills it twice, alone, fails."""
    from kohort import Producer

    out = f"{topic}-out"
    cluster.create_topic(out, partitions=3)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(40):
            producer.send(topic, b"%d" % n, b"k%d" % (n % 5), headers=[("out", out.encode())])
    program = app(retries="none", processes=2)
    program.handler(topic, workers="processes")(in_a_process)
    running = start(program)
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="out", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([(out, n) for n in range(3)])
        pids = Counter()
        while sum(pids.values()) < 39:
            pids.update(r.value for r in consumer.poll(5))
    failed = failures(cluster, program.topics[topic].dead_letter)
    running.stop()
    assert os.getpid() not in {int(pid) for pid in pids}
    assert [(r.value, h.parse(r.headers).disposition) for r in failed] == [(b"3", "crash")]


def test_outputs_are_sent_only_by_what_succeeds(cluster, topic, produce, app, start) -> None:
    """W5: what a failed try sent does not count."""
    out = f"{topic}-out"
    cluster.create_topic(out, partitions=3)
    produce(50)
    until = Until(50)
    program = app()

    @program.handler(topic)
    def handle(record):
        record.send(out, record.value, record.key)
        if not record.attempt and int(record.value) % 10 == 0:
            raise Temporary("later")
        until.count()

    running = start(program)
    until.wait()
    running.stop()
    sent = Counter(int(r.value) for r in drain(cluster, out))
    assert sent == Counter(range(50))


def test_what_does_not_decode_fails_with_its_bytes(cluster, topic, app, start) -> None:
    from kohort import Producer

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"\xff{", b"k")
        producer.send(topic, b'{"a": 1}', b"k")
    until, program = Until(1), app()

    @program.handler(topic, decode="json")
    def handle(record):
        assert record.data == {"a": 1}
        until.count()

    running = start(program)
    until.wait()
    running.stop()
    (failed,) = drain(cluster, program.topics[topic].dead_letter)
    assert (failed.value, h.parse(failed.headers).disposition) == (b"\xff{", "deserialize")


def test_a_second_member_takes_over_without_loss(cluster, topic, produce, app, start) -> None:
    """Revocation drains what is in flight and commits it before it is given up."""
    produce(3_000, keys=100)
    done, until, lock = Counter(), Until(3_000), threading.Lock()
    joined, waiting = threading.Event(), threading.Event()
    programs = [app(drain="200ms"), app()]
    for number, program in enumerate(programs):

        @program.handler(topic, order="key")
        def handle(record, number=number):
            if number:
                joined.set()
            elif int(record.value) > 1_500:
                waiting.set()
                joined.wait()
            with lock:
                done[int(record.value)] += 1
                if done[int(record.value)] == 1:
                    until.count()

    start(programs[0])
    assert waiting.wait(PATIENCE_S)
    start(programs[1])
    until.wait()
    assert sorted(done) == list(range(3_000))


def test_a_batch_handler_gets_as_many_as_it_takes(cluster, topic, produce, app, start) -> None:
    """Issue 14, item 17: with 2,000 ready records no call had more than 180 of its 500."""
    cluster.create_topic(f"{topic}-one", partitions=1)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(2_000):
            producer.send(f"{topic}-one", b"%d" % n)
    program = app(threads=1)
    sizes: list[int] = []

    @program.handler(f"{topic}-one", batch=True, max_batch=500)
    def handle(batch):
        sizes.append(len(batch))

    running = start(program)
    until(lambda: sum(sizes) == 2_000 or running.error, "all are handled")
    running.stop()
    assert max(sizes) == 500


def test_refusals(cluster, topic, app) -> None:
    program = app()
    with pytest.raises(UsageError, match="no handler"):
        program.run()
    with pytest.raises(ConfigError, match="order='keys' is not one of partition, key, none"):
        program.handler(topic, order="keys")(lambda record: None)
    with pytest.raises(ConfigError, match="a thread cannot be stopped"):
        program.handler(topic, timeout="1s")(lambda record: None)
    program.handler(topic)(lambda record: None)
    with pytest.raises(ConfigError, match="has a handler already"):
        program.handler(topic)(lambda record: None)
    with pytest.raises(ConfigError, match="did you mean 'fetch_max_wait_ms'"):
        app(client={"fetch.max.wait": 3})
    with pytest.raises(ConfigError, match="decided by the app"):
        app(client={"group.id": "other"})
    with pytest.raises(ConfigError, match="decided by the app"):
        app(enable_auto_commit=True)
    with pytest.raises(ConfigError, match="'retires'; did you mean 'retries'"):
        app(retires="5m")
    wrong = App("g", bootstrap_servers=cluster.bootstrap, topic_wait=0)
    wrong.handler("no-such-topic")(lambda record: None)
    with pytest.raises(BrokerError, match="does not exist; nothing was started"):
        wrong.run()


def test_client_settings_are_keywords_or_a_mapping() -> None:
    """Issue 15: typed settings; a keyword wins over the mapping, whatever its spelling."""
    program = App(
        "g",
        client={"session.timeout.ms": "30s", "max.poll.records": 7},
        session_timeout_ms="9s",
    )
    expected = {"session_timeout_ms": "9s", "max_poll_records": 7}
    assert program.client_settings.client == {**expected, "isolation_level": "read_committed"}


def test_what_waits_in_a_retry_topic_that_is_no_longer_read_is_told(
    topic, produce, app, start, caplog
) -> None:
    """Spec 5.4: delays that were changed while records waited would have them forgotten."""
    produce(3)
    before, enough = app(retries="1h"), Until(3)

    @before.handler(topic)
    def fail(record) -> None:
        enough.count()
        raise Temporary("down")

    running = start(before)
    enough.wait()
    running.stop()
    after = app(retries="2h")
    after.handler(topic)(print)
    (left,) = [state for state in after.check() if "wait in it" in state.wrong]
    assert (left.spec.name, left.exists, left.command) == (
        before.topics[topic].retry_topic(3_600_000),
        True,
        "",
    )
    assert "about 3 records" in left.wrong
    with caplog.at_level("WARNING", "kohort.processing"):
        again = start(after)
        until(lambda: bool(after.health().partitions), "partitions")
        again.stop()
    assert any(left.spec.name in message for message in caplog.messages)
    assert not [state for state in before.check() if state.wrong], "the one that still reads it"
