"""Every call of the admin client, refused: nothing is swallowed, what may pass is asked again.

For each: an error that passes by itself is tried on, a lasting one is raised with its code, and
where nobody answers the call ends when its time is over (issue 4: Admin).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from kohort import Admin, AsyncAdmin, NewTopic, Producer, TopicPartition
from kohort.acl import AclFilter
from kohort.client.admin.types import ProducerDescription
from kohort.errors import (
    BrokerError,
    ConnectionFailedError,
    ErrorCode,
    GroupError,
    KafkaTimeoutError,
)
from tests.clusters import APACHE, Cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(APACHE, reason="tells the broker to refuse")
TP = TopicPartition("orders", 0)
OPEN = ProducerDescription(99, 0, 0, 0, -1, 0)
AGAIN, MOVED, LEADER = "REQUEST_TIMED_OUT", "NOT_COORDINATOR", "NOT_LEADER_OR_FOLLOWER"
CONTROLLER = "NOT_CONTROLLER"


class Call(NamedTuple):
    """A call, the request that it makes, and an error of it that passes."""

    api: str
    passing: str
    make: Callable[..., Any]


def delete_topic(admin: Admin, **options: Any) -> None:
    with suppress(BrokerError):  # there already
        admin.create_topics(["gone"])
    admin.delete_topics(["gone"], **options)


CALLS = {
    "create_topics": Call(
        "CreateTopics", CONTROLLER, lambda a, **t: a.create_topics(["x"], validate_only=True, **t)
    ),
    "delete_topics": Call("DeleteTopics", CONTROLLER, delete_topic),
    "create_partitions": Call(
        "CreatePartitions", CONTROLLER, lambda a, **t: a.create_partitions({"grows": 5}, **t)
    ),
    "describe_topics": Call(
        "DescribeTopicPartitions", "", lambda a, **t: a.describe_topics(["orders"], **t)
    ),
    "describe_configs": Call(
        "DescribeConfigs", AGAIN, lambda a, **t: a.describe_configs("orders", **t)
    ),
    "alter_configs": Call(
        "IncrementalAlterConfigs",
        CONTROLLER,
        lambda a, **t: a.alter_configs("orders", {"retention.ms": "9"}, **t),
    ),
    "delete_records": Call("DeleteRecords", LEADER, lambda a, **t: a.delete_records({TP: 1}, **t)),
    "list_offsets": Call("ListOffsets", LEADER, lambda a, **t: a.list_offsets({TP: "latest"}, **t)),
    "allowed_operations": Call("DescribeCluster", "", lambda a, **t: a.allowed_operations(**t)),
    "list_groups": Call(
        "ListGroups", "COORDINATOR_LOAD_IN_PROGRESS", lambda a, **t: a.list_groups(**t)
    ),
    "describe_groups": Call("DescribeGroups", MOVED, lambda a, **t: a.describe_groups(["g"], **t)),
    "group_timeline": Call("DescribeGroups", MOVED, lambda a, **t: a.group_timeline("g", **t)),
    "delete_groups": Call("DeleteGroups", MOVED, lambda a, **t: a.delete_groups(["gone"], **t)),
    "list_group_offsets": Call("OffsetFetch", MOVED, lambda a, **t: a.list_group_offsets("g", **t)),
    "alter_group_offsets": Call(
        "OffsetCommit", MOVED, lambda a, **t: a.alter_group_offsets("g", {TP: 1}, **t)
    ),
    "delete_group_offsets": Call(
        "OffsetDelete", MOVED, lambda a, **t: a.delete_group_offsets("g", [TP], **t)
    ),
    "remove_group_members": Call(
        "LeaveGroup", "", lambda a, **t: a.remove_group_members("g", ["i"], **t)
    ),
    "reset_group_offsets": Call(
        "OffsetCommit", MOVED, lambda a, **t: a.reset_group_offsets("g", "latest", [TP], **t)
    ),
    "elect_leaders": Call("ElectLeaders", CONTROLLER, lambda a, **t: a.elect_leaders([TP], **t)),
    "describe_quotas": Call("DescribeClientQuotas", AGAIN, lambda a, **t: a.describe_quotas(**t)),
    "alter_quotas": Call(
        "AlterClientQuotas",
        CONTROLLER,
        lambda a, **t: a.alter_quotas({"user": "ann"}, {"producer_byte_rate": 9.0}, **t),
    ),
    "describe_producers": Call(
        "DescribeProducers", LEADER, lambda a, **t: a.describe_producers([TP], **t)
    ),
    "list_transactions": Call(
        "ListTransactions", "COORDINATOR_LOAD_IN_PROGRESS", lambda a, **t: a.list_transactions(**t)
    ),
    "describe_transactions": Call(
        "DescribeTransactions", MOVED, lambda a, **t: a.describe_transactions(["tx"], **t)
    ),
    "abort_transaction": Call(
        "WriteTxnMarkers", LEADER, lambda a, **t: a.abort_transaction(TP, OPEN, **t)
    ),
    "describe_acls": Call("DescribeAcls", "", lambda a, **t: a.describe_acls(**t)),
    "delete_acls": Call("DeleteAcls", "", lambda a, **t: a.delete_acls(AclFilter(), **t)),
    "describe_users": Call(
        "DescribeUserScramCredentials", AGAIN, lambda a, **t: a.describe_users(**t)
    ),
    "upsert_user": Call(
        "AlterUserScramCredentials", CONTROLLER, lambda a, **t: a.upsert_user("u", "secret", **t)
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name) for name in ("orders", "grows")])
            admin.alter_group_offsets("g", {TP: 1})
            admin.alter_group_offsets("gone", {TP: 1})
        with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="tx") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"v")
        yield cluster


@pytest.fixture
def made(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Makes a call with a client of its own. `AsyncAdmin` makes the same ones."""

    def make(call: Callable[..., Any], **options: Any) -> Any:
        with Admin(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=5) as admin:
            return call(admin, **options)

    yield make
    cluster.faults.clear()


def test_every_call_is_here() -> None:
    calls = {n for n, v in vars(AsyncAdmin).items() if hasattr(v, "__wrapped__")}
    others = {
        "list_topics",
        "describe_cluster",
        "describe_log_dirs",
        "create_acls",
        "delete_user",
        "broker_features",  # asks what every connection asks: test_admin_cluster.py
        "survey_groups",  # leaves out what does not answer: test_survey.py
        "survey_log_dirs",  # the same: test_admin_cluster.py
    }
    assert calls == CALLS.keys() | others


@pytest.mark.parametrize("name", CALLS)
def test_a_lasting_error_is_raised(name: str, cluster: Cluster, made: Callable[..., Any]) -> None:
    """With its code; and not tried again."""
    call = CALLS[name]
    with cluster.faults.fail(call.api, "CLUSTER_AUTHORIZATION_FAILED", times=1_000) as fault:
        with pytest.raises(BrokerError) as raised:
            made(call.make, timeout_s=PATIENCE_S)
        assert raised.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert fault.hits == 1


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.passing])
def test_an_error_that_passes_is_tried_on(
    name: str, cluster: Cluster, made: Callable[..., Any]
) -> None:
    """A controller, leader or coordinator that moves, or is loading: it is looked for again."""
    call = CALLS[name]
    with cluster.faults.fail(call.api, call.passing, times=2) as fault:
        made(call.make, timeout_s=PATIENCE_S)
        assert fault.hits == 2


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.passing])
def test_an_error_that_does_not_pass_ends_with_the_call_s_time(
    name: str, cluster: Cluster, made: Callable[..., Any]
) -> None:
    """The last error is raised, which says more than that the time is over."""
    call = CALLS[name]
    with cluster.faults.fail(call.api, call.passing, times=1_000_000) as fault:
        while not fault.hits:  # a slow machine may not come to ask in so little time
            begun = time.monotonic()
            with pytest.raises((BrokerError, KafkaTimeoutError, ConnectionFailedError)) as raised:
                made(call.make, timeout_s=0.1)
            assert time.monotonic() - begun < PATIENCE_S
            if fault.hits and isinstance(raised.value, BrokerError):
                assert raised.value.name == call.passing


@pytest.mark.parametrize("name", CALLS)
def test_a_broker_that_does_not_answer(
    name: str, cluster: Cluster, made: Callable[..., Any]
) -> None:
    call = CALLS[name]
    with (
        cluster.faults.silence(call.api, times=1_000_000),
        pytest.raises((KafkaTimeoutError, ConnectionFailedError)),
    ):
        made(call.make, timeout_s=0.1)


def test_a_call_about_several_groups_tries_all_of_them(made: Callable[..., Any]) -> None:
    """And names those that failed; what comes behind the first of them is not forgotten."""
    made(lambda a: a.alter_group_offsets("old", {TP: 1}))
    with pytest.raises(GroupError, match="'none'") as raised:
        made(lambda a: a.delete_groups(["none", "old", "nobody"]))
    assert raised.value.name == "GROUP_ID_NOT_FOUND"
    assert "1 of 3 succeeded, failed also: 'nobody' GROUP_ID_NOT_FOUND" in str(raised.value)
    assert "old" not in {group.group_id for group in made(lambda a: a.list_groups())}
    with pytest.raises(BrokerError, match="'none'") as unknown:
        made(lambda a: a.describe_transactions(["none", "tx", "nobody"]))
    assert "1 of 3 succeeded, failed also: 'nobody'" in str(unknown.value)


def test_a_call_about_several_partitions_names_all_that_failed(made: Callable[..., Any]) -> None:
    no, neither = TopicPartition("orders", 7), TopicPartition("nowhere", 0)
    for call in (
        lambda a: a.alter_group_offsets("g", {TP: 1, no: 1, neither: 1}, timeout_s=0.3),
        lambda a: a.delete_group_offsets("g", [TP, no, neither], timeout_s=0.3),
    ):
        message = ""
        while not message:
            message = refused(made, call)
        assert {"orders-7", "nowhere-0"} <= set(message.replace("'", " ").split())


def refused(made: Callable[..., Any], call: Callable[..., Any]) -> str:
    """What it is refused with; nothing where a slow machine had no answer in so little time."""
    try:
        made(call)
    except GroupError as error:
        return str(error)
    except (KafkaTimeoutError, ConnectionFailedError):
        return ""
    pytest.fail("it was not refused")
