"""What is asked of every broker: one that does not answer costs its own part alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Admin, NewTopic, TopicPartition
from kohort.client.admin.types import OffsetSpec, SurveyedGroup
from kohort.errors import ConnectionFailedError, ErrorCode, KafkaTimeoutError
from kohort.wire.messages.describe_log_dirs_response import DescribeLogDirsResponse
from kohort.wire.messages.list_groups_response import ListedGroup, ListGroupsResponse
from tests.clusters import Cluster
from tests.patience import PATIENCE_S

SOON_S = 0.5
"""How long a broker that never answers is waited for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, offsets_topic_num_partitions=6) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 3, 1)])
            for number in range(12):
                admin.alter_group_offsets(f"g{number}", {("t", 0): 0})
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin
    cluster.faults.clear()


def test_log_directories_come_from_all_brokers_that_answer(admin: Admin, cluster: Cluster) -> None:
    whole = admin.survey_log_dirs(timeout_s=PATIENCE_S)
    assert (sorted(whole.log_dirs), dict(whole.unreachable)) == ([1, 2, 3], {})
    cluster.faults.silence("DescribeLogDirs", node=2, times=99)
    part = admin.survey_log_dirs(timeout_s=SOON_S)
    assert sorted(part.log_dirs) == [1, 3]
    assert list(part.unreachable) == [2]
    assert "DescribeLogDirs" in part.unreachable[2]


def test_a_connection_that_ends_meanwhile_is_made_again(admin: Admin, cluster: Cluster) -> None:
    cut = cluster.faults.cut("DescribeLogDirs", node=2, times=1)
    survey = admin.survey_log_dirs(timeout_s=PATIENCE_S)
    assert (cut.hits, sorted(survey.log_dirs), dict(survey.unreachable)) == (1, [1, 2, 3], {})


def test_a_broker_that_refuses_is_reachable(admin: Admin, cluster: Cluster) -> None:
    refusal = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    cluster.faults.answer("DescribeLogDirs", lambda request, version: refusal, node=2)
    survey = admin.survey_log_dirs(timeout_s=PATIENCE_S)
    assert (sorted(survey.log_dirs), dict(survey.unreachable)) == ([1, 3], {})


def test_groups_come_from_all_brokers_that_answer(admin: Admin, cluster: Cluster) -> None:
    whole = admin.survey_groups(timeout_s=PATIENCE_S)
    assert (len(whole.groups), dict(whole.unreachable)) == (12, {})
    cluster.faults.silence("ListGroups", node=2, times=99)
    part = admin.survey_groups(timeout_s=SOON_S)
    assert 0 < len(part.groups) < 12
    assert "ListGroups" in part.unreachable[2]


def test_brokers_that_hang_cost_the_others_no_time(admin: Admin, cluster: Cluster) -> None:
    """One after another, each took a request's whole time-out of the call's."""
    whole = admin.survey_groups(timeout_s=PATIENCE_S)
    mine = {n for n, one in whole.groups.items() if _coordinator(one) == 3}
    assert 0 < len(mine) < 12
    for node_id in (1, 2):
        cluster.faults.silence("ListGroups", node=node_id, times=99)
    cluster.faults.delay(20, "ListGroups", node=3)
    part = admin.survey_groups(timeout_s=SOON_S)
    assert part.groups.keys() == mine
    assert not any(one.error for one in part.groups.values())
    assert list(part.unreachable) == [1, 2]


def _coordinator(group: SurveyedGroup) -> int:
    assert group.description is not None
    return group.description.coordinator.node_id


def test_share_and_streams_groups_are_not_looked_at(admin: Admin, cluster: Cluster) -> None:
    """Kafka 4 lists them with the others; what describes consumer groups says they do not exist."""
    listed = ListGroupsResponse(
        groups=[
            ListedGroup(group_id="g0", protocol_type="", group_state="Empty", group_type="classic"),
            ListedGroup(
                group_id="s", protocol_type="share", group_state="Empty", group_type="Share"
            ),
        ]
    )
    node = cluster.coordinator_of("g0")
    cluster.faults.answer("ListGroups", lambda request, version: listed, node=node)
    asked = cluster.faults.fail("OffsetFetch", "GROUP_ID_NOT_FOUND", group="s")
    survey = admin.survey_groups(timeout_s=PATIENCE_S)
    assert survey.groups["s"].error == "a share group: not looked at"
    assert survey.groups["s"].description is None
    assert survey.groups["g0"].error == ""
    assert survey.groups["g0"].offsets
    assert asked.hits == 0


def test_offsets_come_from_all_leaders_that_answer(admin: Admin, cluster: Cluster) -> None:
    """With `partial`, a leader that does not answer costs its own partitions alone."""
    (topic,) = admin.describe_topics(["t"]).values()
    there = {TopicPartition("t", p.partition) for p in topic.partitions if p.leader != 2}
    assert 0 < len(there) < 3
    wanted: dict[TopicPartition, OffsetSpec] = {
        TopicPartition("t", p.partition): "latest" for p in topic.partitions
    }
    for fault in (cluster.faults.silence, cluster.faults.cut):
        fault("ListOffsets", node=2, times=99)
        assert set(admin.list_offsets(wanted, partial=True, timeout_s=SOON_S)) == there
        cluster.faults.clear()
    cut = cluster.faults.cut("ListOffsets", node=2, times=1)
    assert len(admin.list_offsets(wanted, partial=True, timeout_s=PATIENCE_S)) == 3
    assert cut.hits == 1


def test_groups_are_deleted_by_all_coordinators_that_answer(admin: Admin, cluster: Cluster) -> None:
    """One whose answer is lost may be deleted or not; the error names it."""
    names = [f"d{number}" for number in range(6)]
    for name in names:
        admin.alter_group_offsets(name, {TopicPartition("t", 0): 0})
    described = admin.describe_groups(names)
    unsure = [n for n in names if described[n].coordinator.node_id == 2]
    assert 0 < len(unsure) < 6
    cluster.faults.cut("DeleteGroups", node=2, times=99)
    with pytest.raises(ConnectionFailedError) as raised:
        admin.delete_groups([*names, "unknown"], timeout_s=PATIENCE_S)
    for name in [*unsure, "unknown"]:
        assert repr(name) in str(raised.value)
    cluster.faults.clear()
    left = {group.group_id for group in admin.list_groups()}
    assert left & set(names) <= set(unsure)
    admin.delete_groups(sorted(left & set(names)))


def test_transactions_that_can_be_described_are_not_all_there_is(
    admin: Admin, cluster: Cluster
) -> None:
    """Each is asked for, and the error names the one without an answer."""
    cut = cluster.faults.cut("DescribeTransactions", times=99)
    with pytest.raises((ConnectionFailedError, KafkaTimeoutError)) as raised:
        admin.describe_transactions(["x", "y"], timeout_s=SOON_S)
    assert "'x'" in str(raised.value)
    assert "'y'" in str(raised.value)
    assert cut.hits > 0
