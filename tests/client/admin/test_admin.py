"""The admin client against the embedded broker; and what scripted brokers make it do."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kohort import (
    Admin,
    AsyncAdmin,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from kohort.client.admin.types import ProducerDescription
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    GroupError,
    KafkaTimeoutError,
    UsageError,
)
from kohort.wire.messages.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kohort.wire.messages.create_topics_response import CreatableTopicResult, CreateTopicsResponse
from kohort.wire.messages.delete_groups_response import DeletableGroupResult, DeleteGroupsResponse
from kohort.wire.messages.delete_topics_response import DeletableTopicResult, DeleteTopicsResponse
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from kohort.wire.messages.metadata_response import MetadataResponseBroker
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tests.client.scripted import CLOSE, ScriptedBroker
from tests.clusters import Cluster
from tests.patience import PATIENCE_S, until


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        yield cluster


OPEN = ProducerDescription(
    1, 0, last_sequence=0, last_timestamp_ms=0, coordinator_epoch=0, transaction_start_offset=0
)


class Awaiting:
    """An `AsyncAdmin` whose calls are waited for, so that tests need not know which face it is."""

    def __init__(self, admin: AsyncAdmin, runner: asyncio.Runner) -> None:
        self._admin, self._runner = admin, runner

    def __getattr__(self, name: str):
        call = getattr(self._admin, name)
        return lambda *args, **options: self._runner.run(call(*args, **options))


@pytest.fixture(params=["Admin", "AsyncAdmin"])
def admin(request, cluster) -> Iterator[Admin | Awaiting]:
    if request.param == "Admin":
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            yield admin
        return
    with asyncio.Runner() as runner:
        made = AsyncAdmin(bootstrap_servers=cluster.bootstrap)
        yield Awaiting(made, runner)
        runner.run(made.close())


@pytest.fixture
def topic(admin, request) -> str:
    name = re.sub(r"\W", "-", request.node.name)
    admin.create_topics([NewTopic(name, partitions=2)])
    return name


def fill(cluster, topic: str, count: int = 10, partition: int = 0) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, partition=partition, timestamp_ms=1_000 + n)


def soon(check) -> None:
    """Apache Kafka's brokers learn of topics a little after the controller has answered."""
    until(check)


def test_topics_are_created_listed_described_extended_deleted(admin):
    made = admin.create_topics([NewTopic("a", 3, configs={"retention.ms": "1000"}), "b"])
    assert made["a"].partition_count == 3
    assert {t.name for t in admin.list_topics()} >= {"a", "b"}
    described = admin.describe_topics(["a"])["a"]
    assert [p.partition for p in described.partitions] == [0, 1, 2]
    assert all(p.leader >= 0 for p in described.partitions)
    admin.create_partitions({"a": 5})
    soon(lambda: len(admin.describe_topics(["a"])["a"].partitions) == 5)
    admin.delete_topics(["a", "b"])
    soon(lambda: not {t.name for t in admin.list_topics()} & {"a", "b"})


def test_errors_name_every_object_that_failed(admin, topic):
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS") as caught:
        admin.create_topics([topic, "fresh"])
    assert topic in str(caught.value)
    assert "1 of 2" in str(caught.value) or caught.value.code == 36
    soon(lambda: "fresh" in {t.name for t in admin.list_topics()})
    missing = TopicPartition("missing", 0)
    for call in (
        lambda: admin.describe_topics(["missing"]),
        lambda: admin.delete_topics(["missing"]),
        lambda: admin.create_partitions({"missing": 4}),
        lambda: admin.describe_configs("missing"),
        lambda: admin.alter_configs("missing", {"retention.ms": "1"}),
        lambda: admin.list_offsets({missing: "latest"}),
        lambda: admin.delete_records({missing: 1}),
        lambda: admin.describe_producers([missing]),
        lambda: admin.abort_transaction(missing, OPEN),
        lambda: admin.elect_leaders([missing]),
    ):
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            call()
    beyond = TopicPartition(topic, 9)
    for call in (
        lambda: admin.list_offsets({beyond: "latest"}),
        lambda: admin.delete_records({beyond: 1}),
        lambda: admin.describe_producers([beyond]),
        lambda: admin.abort_transaction(beyond, OPEN),
        lambda: admin.elect_leaders([beyond]),
    ):
        with pytest.raises(UsageError, match="no partition 9"):
            call()


def test_partial_offsets_leave_out_what_is_not_there(admin, cluster, topic):
    """One topic that goes away between two calls hides no other one (spec 8.2)."""
    fill(cluster, topic)
    tp, beyond, missing = TopicPartition(topic, 0), TopicPartition(topic, 9), ("missing", 0)
    found = admin.list_offsets(dict.fromkeys((tp, beyond, missing), "latest"), partial=True)
    assert {place: at.offset for place, at in found.items()} == {tp: 10}
    assert "missing" not in {t.name for t in admin.list_topics()}


def test_validate_only_creates_nothing(admin):
    admin.create_topics(["only-asked"], validate_only=True)
    assert "only-asked" not in {t.name for t in admin.list_topics()}


def test_configurations_are_changed_one_by_one(admin, topic):
    before = admin.describe_configs(topic)
    assert before["segment.bytes"].is_default
    admin.alter_configs(topic, {"retention.ms": "5000", "segment.bytes": "1048576"})
    admin.alter_configs(topic, {"segment.bytes": None})
    after = admin.describe_configs(topic)
    assert (after["retention.ms"].value, after["retention.ms"].source) == ("5000", "topic")
    assert after["segment.bytes"].value == before["segment.bytes"].value
    with pytest.raises(BrokerError):
        admin.alter_configs(topic, {"no.such.key": "1"})
    node_id = admin.describe_cluster().nodes[0].node_id
    assert admin.describe_configs(str(node_id), broker=True)
    with pytest.raises(UsageError):
        admin.describe_configs("x", broker=True)


def test_offsets_by_name_and_time(admin, cluster, topic):
    fill(cluster, topic)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.list_offsets({tp: "latest", other: "latest"})[tp].offset == 10
    assert admin.list_offsets({tp: "earliest"})[tp].offset == 0
    assert admin.list_offsets({tp: 1_004})[tp][:2] == (4, 1_004)
    assert admin.list_offsets({tp: 99_000})[tp].offset == -1
    assert admin.list_offsets({tp: "max_timestamp"})[tp][:2] == (9, 1_009)


def test_records_are_deleted_up_to_an_offset(admin, cluster, topic):
    fill(cluster, topic)
    tp = TopicPartition(topic, 0)
    assert admin.delete_records({tp: 6}) == {tp: 6}
    assert admin.list_offsets({tp: "earliest"})[tp].offset == 6
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        admin.delete_records({tp: 99})


def test_group_offsets_are_set_listed_and_deleted(admin, cluster, topic):
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets("g1", {tp: 5, other: OffsetAndMetadata(7, "note")})
    assert admin.list_group_offsets("g1") == {
        tp: OffsetAndMetadata(5),
        other: OffsetAndMetadata(7, "note"),
    }
    assert set(admin.list_group_offsets("g1", [other])) == {other}
    assert "g1" in {g.group_id for g in admin.list_groups()}
    assert admin.describe_groups(["g1"])["g1"].state == "Empty"
    admin.delete_group_offsets("g1", [other])
    assert set(admin.list_group_offsets("g1")) == {tp}
    admin.delete_groups(["g1"])
    assert admin.describe_groups(["g1"])["g1"].state == "Dead"
    assert admin.list_group_offsets("g1") == {}
    with pytest.raises(GroupError, match="GROUP_ID_NOT_FOUND"):
        admin.delete_groups(["g1"])


def test_a_group_shows_its_members_and_refuses_changes_while_it_has_some(admin, cluster, topic):
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "live", "client.id": "their-client"}
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.05)
    group = admin.describe_groups(["live"])["live"]
    assert (group.state, group.protocol_type, group.protocol) == ("Stable", "consumer", "range")
    (member,) = group.members
    assert member.client_id == "their-client"
    assert member.topics == (topic,)
    assert set(member.assignment) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert [g.group_id for g in admin.list_groups(states=["Stable"])] == ["live"]
    assert [g.group_id for g in admin.list_groups(states=["stable"])] == ["live"]
    with pytest.raises(GroupError, match="NON_EMPTY_GROUP"):
        admin.delete_groups(["live"])
    with pytest.raises(GroupError):
        admin.alter_group_offsets("live", {TopicPartition(topic, 0): 1})
    consumer.close()


def test_a_static_member_is_removed_by_its_instance_id(admin, cluster, topic):
    """KIP-345: its partitions are free at once; an unknown one is named."""
    group = f"static-{topic}"
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id=group, group_instance_id="i-1"
    ) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.05)
        with pytest.raises(GroupError, match=r"UNKNOWN_MEMBER_ID.*'i-2'"):
            admin.remove_group_members(group, ["i-2"])
        assert [m.group_instance_id for m in admin.describe_groups([group])[group].members] == [
            "i-1"
        ]
        admin.remove_group_members(group, ["i-1"], reason="its machine is gone")
        assert admin.describe_groups([group])[group].members == ()


def test_the_cluster_is_described(admin, cluster):
    described = admin.describe_cluster()
    (node,) = described.nodes
    assert f"{node.host}:{node.port}" == cluster.bootstrap
    assert described.cluster_id


def test_where_a_group_goes_on_is_reset(admin, cluster, topic):
    """To a name or a time, of all that is committed or of some; past all records: the end."""
    fill(cluster, topic)
    fill(cluster, topic, 4, partition=1)
    p0, p1, group = TopicPartition(topic, 0), TopicPartition(topic, 1), f"g-{topic}"
    admin.alter_group_offsets(group, {p0: 9, p1: 3})
    assert admin.reset_group_offsets(group, "earliest", [p1]) == {p1: 0}
    assert {tp: at.offset for tp, at in admin.list_group_offsets(group).items()} == {p0: 9, p1: 0}
    assert admin.reset_group_offsets(group, 1_006) == {p0: 6, p1: 4}
    assert {tp: at.offset for tp, at in admin.list_group_offsets(group).items()} == {p0: 6, p1: 4}
    assert admin.reset_group_offsets("nobody", "latest") == {}
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        consumer.poll(PATIENCE_S, max_records=1)
        with pytest.raises(GroupError, match="does it have members"):
            admin.reset_group_offsets(group, "earliest")


def test_admin_calls_of_tasks_run_side_by_side_and_closing_ends_them(cluster):
    """No call blocks the loop; cancelling one stops the waiting, and `close` what is under way."""

    async def main() -> None:
        async with AsyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            both = [admin.create_topics([name]) for name in ("side", "by")]
            assert [list(made) for made in await asyncio.gather(*both)] == [["side"], ["by"]]
        silent = AsyncAdmin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=120_000)
        waiting = [asyncio.create_task(silent.describe_cluster()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        await silent.close()
        with pytest.raises(ClosedError):
            await waiting[1]
        with pytest.raises(ClosedError, match="make a new one"):
            await silent.list_topics()
        await silent.close()

    def threads() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("kohort-admin")}

    others, started = threads(), time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < 60
    until(lambda: threads() <= others, "the end of its threads")


def test_a_mutation_whose_answer_is_lost_is_not_repeated(broker):
    broker.answers["CreateTopicsRequest"] = lambda r, call: CLOSE
    with (
        Admin(bootstrap_servers=broker.address) as admin,
        pytest.raises(ConnectionFailedError),
    ):
        admin.create_topics(["t"])
    assert len(broker.of("CreateTopicsRequest")) == 1


def test_a_mutation_that_was_refused_for_now_is_tried_again(broker):
    codes = [41, 0]  # NOT_CONTROLLER
    broker.answers["CreateTopicsRequest"] = lambda r, call: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", error_code=codes.pop(0), num_partitions=1)]
    )
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        assert admin.create_topics(["t"])["t"].partition_count == 1


def test_a_controller_that_has_moved_is_looked_for(broker):
    """Without KRaft a broker that was the controller refuses, and nobody forwards."""
    new = ScriptedBroker(broker.cluster, 1)

    def moved(request, call):
        broker.cluster.controller_id = 1
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=41)])

    broker.answers["CreateTopicsRequest"] = moved
    new.answers["CreateTopicsRequest"] = lambda r, call: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", num_partitions=1)]
    )
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        assert admin.create_topics(["t"], timeout_s=PATIENCE_S)["t"].partition_count == 1


def test_topics_are_deleted_by_the_controller(broker):
    """Before KRaft no other broker deletes them, or forwards."""
    new = ScriptedBroker(broker.cluster, 1)
    broker.cluster.controller_id = 1
    names = [f"t{number}" for number in range(5)]
    broker.cluster.topics.update((name, {0: (0, 1)}) for name in names)
    for each in (broker, new):
        code = 0 if each is new else 41  # NOT_CONTROLLER
        each.answers["DeleteTopicsRequest"] = lambda r, call, code=code: DeleteTopicsResponse(
            responses=[DeletableTopicResult(name=t.name, error_code=code) for t in r.topics]
        )
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        for name in names:
            admin.delete_topics([name], timeout_s=PATIENCE_S)
    assert not broker.of("DeleteTopicsRequest")
    assert len(new.of("DeleteTopicsRequest")) == 5


def test_a_mutation_that_the_broker_did_not_end_in_time_is_not_repeated(broker):
    """It goes on: a repetition would call what it has done an error."""
    codes = [7, 3]  # REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION
    broker.cluster.topics["t"] = {0: (0, 1)}
    broker.answers["DeleteTopicsRequest"] = lambda r, call: DeleteTopicsResponse(
        responses=[DeletableTopicResult(name="t", error_code=codes.pop(0))]
    )
    broker.answers["CreateTopicsRequest"] = lambda r, call: CreateTopicsResponse(
        topics=[  # THROTTLING_QUOTA_EXCEEDED: this one alone would be asked for again
            CreatableTopicResult(name="a", error_code=89),
            CreatableTopicResult(name="b", error_code=7),
        ]
    )
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        with pytest.raises(BrokerError, match=r"'t'.* may still carry it out") as raised:
            admin.delete_topics(["t"], timeout_s=PATIENCE_S)
        assert raised.value.code == 7
        with pytest.raises(BrokerError, match=r"REQUEST_TIMED_OUT .*'b'.*'a' THROTTLING"):
            admin.create_topics(["a", "b"], timeout_s=PATIENCE_S)
    assert len(broker.of("DeleteTopicsRequest")) == 1
    assert len(broker.of("CreateTopicsRequest")) == 1


def test_a_broker_ends_a_change_before_the_caller_gives_up(broker):
    """An answer that is too late would be a lost one."""
    tp = TopicPartition("t", 0)
    broker.cluster.topics["t"] = {0: (0, 1)}
    kinds = ("CreateTopics", "CreatePartitions", "DeleteTopics", "DeleteRecords", "ElectLeaders")
    for kind in kinds:
        broker.answers[f"{kind}Request"] = lambda r, call: CLOSE
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        for change in (
            lambda: admin.create_topics(["u"], timeout_s=1),
            lambda: admin.create_partitions({"t": 2}, timeout_s=1),
            lambda: admin.delete_topics(["t"], timeout_s=1),
            lambda: admin.elect_leaders([tp], timeout_s=1),
            lambda: admin.delete_records({tp: -1}, timeout_s=1),
        ):
            with pytest.raises((ConnectionFailedError, KafkaTimeoutError)):
                change()
    for kind in kinds:
        waits = [request.timeout_ms for request in broker.of(f"{kind}Request")]
        assert waits, kind
        assert all(0 < ms < 1_000 for ms in waits), kind


def dead_controller(broker: ScriptedBroker, answers: float) -> None:
    """So many answers name node 9 the controller, where nobody listens; the next the broker."""
    calls: list[None] = []

    def answer(request, call):
        calls.append(None)
        broker.cluster.controller_id = 9 if len(calls) <= answers else broker.node_id
        metadata = broker.cluster.metadata(request, call)
        metadata.brokers.append(MetadataResponseBroker(node_id=9, host="127.0.0.1", port=1))
        return metadata

    broker.answers["MetadataRequest"] = answer
    broker.answers["CreateTopicsRequest"] = lambda r, call: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", num_partitions=1)]
    )


def test_a_change_that_never_left_is_sent_to_the_next_controller(broker):
    """The one that metadata names is down: nothing can have been carried out."""
    dead_controller(broker, 2)
    with Admin(
        bootstrap_servers=broker.address, retry_backoff_ms=1, reconnect_backoff_ms=1
    ) as admin:
        assert admin.create_topics(["t"], timeout_s=PATIENCE_S)["t"].partition_count == 1
    assert len(broker.of("CreateTopicsRequest")) == 1


def test_a_change_that_cannot_leave_fails_with_the_cause_when_its_time_is_over(broker):
    dead_controller(broker, math.inf)
    with (
        Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin,
        pytest.raises((ConnectionFailedError, KafkaTimeoutError), match=r"127\.0") as raised,
    ):
        admin.create_topics(["t"], timeout_s=0.3)
    assert raised.type in (ConnectionFailedError, KafkaTimeoutError)
    assert not broker.of("CreateTopicsRequest")


def test_a_lost_answer_about_the_coordinator_keeps_no_change_from_being_made(broker):
    lost = [CLOSE]

    def found(request, call):
        if lost:
            return lost.pop()
        place = Coordinator(key="g", node_id=0, host="127.0.0.1", port=broker.port)
        return FindCoordinatorResponse(coordinators=[place])

    broker.answers["FindCoordinatorRequest"] = found
    broker.answers["DeleteGroupsRequest"] = lambda r, call: DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id="g")]
    )
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        admin.delete_groups(["g"], timeout_s=PATIENCE_S)
    assert not lost
    assert len(broker.of("DeleteGroupsRequest")) == 1


@pytest.mark.parametrize("version", [7, 8])
def test_an_offset_that_may_not_be_read_is_not_one_that_is_not_there(broker, version):
    """KIP-709 changes where the answer has it. Of all offsets, brokers name the readable ones."""
    place = Coordinator(key="g", node_id=0, host="127.0.0.1", port=broker.port)
    broker.versions[9] = (0, version)  # OffsetFetch
    codes = [(0, 5, 0), (1, -1, 29), (2, -1, 0), (3, -1, 3)]  # TOPIC_AUTHORIZATION_FAILED, UNKNOWN
    broker.answers["FindCoordinatorRequest"] = lambda r, call: FindCoordinatorResponse(
        coordinators=[place]
    )

    def answer(request, call):
        facts = [
            {"partition_index": n, "committed_offset": offset, "metadata": "", "error_code": code}
            for n, offset, code in codes
        ]
        if version < 8:
            old = [OffsetFetchResponsePartition(**each) for each in facts]
            return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=old)])
        parts = [OffsetFetchResponsePartitions(**each) for each in facts]
        topics = [OffsetFetchResponseTopics(name="t", partitions=parts)]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])

    broker.answers["OffsetFetchRequest"] = answer
    tps = [TopicPartition("t", n) for n, *_ in codes]
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        with pytest.raises(GroupError, match=r"TOPIC_AUTHORIZATION_FAILED .*'g'.*'t-1'"):
            admin.list_group_offsets("g", tps)
        assert admin.list_group_offsets("g") == {tps[0]: OffsetAndMetadata(5)}
        codes[1] = (1, 6, 0)
        assert set(admin.list_group_offsets("g", tps)) == set(tps[:2])


def test_only_what_was_throttled_is_asked_for_again(broker):
    """KIP-599 (THROTTLING_QUOTA_EXCEEDED, 89): the first are done, and would be errors now."""
    asked: list[list[str]] = []

    def codes(names):
        asked.append(list(names))
        return [(name, 89 if n else 0) for n, name in enumerate(asked[-1])]

    broker.answers["CreateTopicsRequest"] = lambda r, call: CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=name, error_code=code)
            for name, code in codes(t.name for t in r.topics)
        ]
    )
    broker.answers["CreatePartitionsRequest"] = lambda r, call: CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=name, error_code=code)
            for name, code in codes(t.name for t in r.topics)
        ]
    )
    broker.answers["DeleteTopicsRequest"] = lambda r, call: DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=name, error_code=code)
            for name, code in codes(t.name for t in r.topics)
        ]
    )
    names = ["a", "b", "c"]
    broker.cluster.topics.update((name, {0: (0, 1)}) for name in names)
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        assert sorted(admin.create_topics(names)) == names
        admin.create_partitions(dict.fromkeys(names, 2))
        admin.delete_topics(names)
    assert asked == 3 * [["a", "b", "c"], ["b", "c"], ["c"]]


def test_calls_of_several_threads_wait_for_their_own_topics(cluster, monkeypatch):
    """Each watched its topics in place of the other's: a partition was said not to exist."""
    for name in ("mine", "theirs"):
        cluster.create_topic(name, partitions=1)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin, ThreadPoolExecutor(2) as pool:
        meeting, refresh = threading.Barrier(2), admin._refresh

        def after_both_watch(deadline_ms):
            meeting.wait(PATIENCE_S)
            return refresh(deadline_ms)

        monkeypatch.setattr(admin, "_refresh", after_both_watch)
        asked = [{TopicPartition(name, 0): "latest"} for name in ("mine", "theirs")]
        for partitions, found in zip(asked, pool.map(admin.list_offsets, asked), strict=True):
            assert found.keys() == partitions.keys()


def test_what_is_refused_for_long_is_told_once_while_it_is_tried_on(broker, monkeypatch, caplog):
    """A full disk: whoever waits a minute for `topic delete` learns why before it is over."""
    monkeypatch.setattr("kohort.client.admin.calls.WARNED_MS", 0)
    codes = [56, 56, 56, 0]  # KAFKA_STORAGE_ERROR
    broker.answers["CreateTopicsRequest"] = lambda r, call: CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", error_code=codes.pop(0), num_partitions=1)]
    )
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        admin.create_topics(["t"])
    warnings = [r.getMessage() for r in caplog.records if r.name == "kohort.client.admin"]
    assert len(warnings) == 1
    assert warnings[0].startswith("KAFKA_STORAGE_ERROR (56): creating topic 't'")
    assert warnings[0].endswith("; retrying")


def test_no_broker_is_said_in_time():
    with (
        Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=200) as admin,
        pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1"),
    ):
        admin.describe_cluster()
    with pytest.raises(ClosedError):
        admin.list_topics()
