"""Access control entries through `Admin`, and what clients are told that may not do something."""

from __future__ import annotations

import pytest

from kohort import Admin, Consumer, NewTopic, Producer
from kohort.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from kohort.errors import BrokerError, ErrorCode
from kohort.testing import Cluster
from tests.patience import PATIENCE_S

NOBODY = "User:ANONYMOUS"


def test_entries_are_added_found_and_removed() -> None:
    with (
        Cluster(acls=True, super_users=(NOBODY,)) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        read = Acl(
            Resource.TOPIC,
            "team-",
            Pattern.PREFIXED,
            "User:alice",
            "*",
            Operation.READ,
            Permission.ALLOW,
        )
        write = read._replace(operation=Operation.WRITE)
        admin.create_acls([read, write])
        admin.create_acls([read])
        assert admin.describe_acls() == sorted([read, write])
        meant = AclFilter(Resource.TOPIC, "team-a", Pattern.MATCH, operation=Operation.READ)
        assert admin.describe_acls(meant) == [read]
        assert admin.delete_acls(read.as_filter()) == [read]
        assert admin.describe_acls() == [write]
        with pytest.raises(BrokerError, match="TYPE:NAME"):
            admin.create_acls([read._replace(principal="alice")])


def test_a_client_is_told_what_it_may_not_do() -> None:
    """Clients without a login are User:ANONYMOUS, who may do what is granted, and no more."""
    with Cluster(acls=True, super_users=("User:root",)) as cluster:
        servers = cluster.bootstrap
        with Admin(bootstrap_servers=servers) as admin, pytest.raises(BrokerError) as refusal:
            admin.create_topics([NewTopic("orders")])
        assert refusal.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with Producer(bootstrap_servers=servers) as producer, pytest.raises(BrokerError) as refusal:
            producer.send("orders", b"1").result(PATIENCE_S)
        assert refusal.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with Consumer(bootstrap_servers=servers, group_id="g") as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(BrokerError, match="AUTHORIZATION_FAILED"):
                consumer.poll(PATIENCE_S)
