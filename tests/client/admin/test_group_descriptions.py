"""What `Admin.describe_groups` makes of the answers of both protocols."""

from __future__ import annotations

from kohort import Admin, TopicPartition
from kohort.client.admin.group_descriptions import consumer_group
from kohort.client.cluster.metadata import Node
from kohort.errors import ErrorCode
from kohort.wire.messages.consumer_group_describe_response import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from kohort.wire.messages.describe_groups_response import (
    DescribedGroup as ClassicGroup,
)
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from tests.client.scripted import ScriptedBroker


def parts(*numbers: int) -> Assignment:
    return Assignment(topic_partitions=[TopicPartitions(topic_name="t", partitions=list(numbers))])


GROUP = DescribedGroup(
    group_id="g",
    group_state="Reconciling",
    group_epoch=5,
    assignment_epoch=5,
    assignor_name="uniform",
    members=[
        Member(
            member_id="m",
            instance_id="i",
            rack_id="r",
            member_epoch=4,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex="t.*",
            assignment=parts(0),
            target_assignment=parts(0, 1),
            member_type=1,
        ),
        Member(member_id="old", subscribed_topic_regex="", member_type=0),
    ],
)


def test_a_group_of_the_consumer_protocol() -> None:
    """KIP-848: epochs, and for each member what it has and what it is on its way to."""
    node = Node(1, "h", 9)
    group = consumer_group(GROUP, node)
    assert (group.group_type, group.state, group.protocol) == ("consumer", "Reconciling", "uniform")
    assert (group.epoch, group.assignment_epoch, group.coordinator) == (5, 5, node)
    new, old = group.members
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    assert (new.assignment, new.target) == ((t0,), (t0, t1))
    assert (new.member_type, new.epoch, new.rack, new.pattern) == ("consumer", 4, "r", "t.*")
    assert (new.group_instance_id, new.topics) == ("i", ("t",))
    assert (old.member_type, old.pattern, old.target) == ("classic", None, ())


def test_admin_asks_in_both_ways(brokers) -> None:
    """A group that is not a classic one is asked for as a consumer group; else it is dead."""
    broker = ScriptedBroker(brokers)
    broker.answers["FindCoordinatorRequest"] = lambda r, c: FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=r.coordinator_keys[0], node_id=0, host="127.0.0.1", port=broker.port)
        ]
    )
    broker.answers["DescribeGroupsRequest"] = lambda r, c: DescribeGroupsResponse(
        groups=[ClassicGroup(group_id=r.groups[0], error_code=ErrorCode.GROUP_ID_NOT_FOUND)]
    )
    broker.answers["ConsumerGroupDescribeRequest"] = lambda r, c: ConsumerGroupDescribeResponse(
        groups=[
            GROUP
            if r.group_ids == ["g"]
            else DescribedGroup(group_id=r.group_ids[0], error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        ]
    )
    with Admin(bootstrap_servers=broker.address) as admin:
        found = admin.describe_groups(["g", "none"])
    assert (found["g"].group_type, found["none"].state) == ("consumer", "Dead")


def test_admin_with_a_broker_that_has_no_such_groups(brokers) -> None:
    """Before Kafka 4.0: there is nothing else to ask."""
    broker = ScriptedBroker(brokers)
    del broker.versions[69]
    broker.answers["FindCoordinatorRequest"] = lambda r, c: FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=r.coordinator_keys[0], node_id=0, host="127.0.0.1", port=broker.port)
        ]
    )
    broker.answers["DescribeGroupsRequest"] = lambda r, c: DescribeGroupsResponse(
        groups=[ClassicGroup(group_id=r.groups[0], group_state="Dead")]
    )
    with Admin(bootstrap_servers=broker.address) as admin:
        assert admin.describe_groups(["g"])["g"].state == "Dead"
