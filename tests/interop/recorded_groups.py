"""The recorded requests about groups, offsets and transactions; see `recorded`."""

from __future__ import annotations

from typing import Any

from tests.broker.harness import batch_of
from tests.interop.asking import World

STAMP_MS = 1_700_000_000_000
NOBODY = bytes(15) + b"\x07"
RANGE = [{"name": "range", "metadata": b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"}]
REGISTERED = "g"


def classic(world: World) -> None:
    """One member of the classic protocol, and what goes wrong."""
    ask = world.ask

    def join(label: str, version: int, **more: Any) -> Any:
        return ask(
            "JoinGroup",
            label,
            version,
            **{
                "group_id": f"j{version}",
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 5_000,
                "protocol_type": "consumer",
                "protocols": RANGE,
                **more,
            },
        )

    for version in range(2, 10):
        first = join("a new member", version)
        joined = join("with its id", version, member_id=first.member_id) if version >= 4 else first
        me = {
            "group_id": f"j{version}",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        synced(world, version, me)
        join("an unknown id", version, member_id="nobody")
        join(
            "another protocol",
            version,
            group_id=f"j{version}",
            protocols=[{"name": "other", "metadata": b""}],
        )
        join("another type", version, protocol_type="connect")
        join("no protocols", version, protocols=[])
        join("no type", version, protocol_type="")
        join("too short a session", version, session_timeout_ms=1)
        join("too long a session", version, session_timeout_ms=100_000_000)
        join("no group", version, group_id="")
        committed(world, version, me)
        left(world, version, me)
    static(world)


def synced(world: World, version: int, me: dict[str, Any]) -> None:
    used = min(version, 5)
    mine = [{"member_id": me["member_id"], "assignment": b"mine"}]
    names = {"protocol_type": "consumer", "protocol_name": "range"}

    def sync(label: str, **more: Any) -> None:
        world.ask(
            "SyncGroup",
            f"{label}, join v{version}",
            used,
            **{**me, **names, "assignments": mine, **more},
        )

    sync("an old generation", generation_id=me["generation_id"] - 1)
    sync("an unknown id", member_id="nobody")
    sync("another protocol", protocol_name="other")
    sync("the leader")
    sync("again")
    sync("an unknown group", group_id="nope")
    sync("no group", group_id="")

    def beat(label: str, **more: Any) -> None:
        world.ask("Heartbeat", f"{label}, join v{version}", min(version, 4), **{**me, **more})

    beat("a member")
    beat("an old generation", generation_id=0)
    beat("an unknown id", member_id="nobody")
    beat("no id", member_id="")
    beat("an unknown group", group_id="nope")
    beat("no group", group_id="")
    label = f"a group, join v{version}"
    world.each("DescribeGroups", label, groups=[me["group_id"]])
    world.each(
        "DescribeGroups",
        f"with operations, join v{version}",
        since=3,
        groups=[me["group_id"]],
        include_authorized_operations=True,
    )


def left(world: World, version: int, me: dict[str, Any]) -> None:
    used = min(version, 5)

    def leave(label: str, member_id: str, instance: str | None = None, **more: Any) -> None:
        one = {"member_id": member_id, "group_instance_id": instance, "reason": "r"}
        fields = {"group_id": me["group_id"], "member_id": member_id, "members": [one], **more}
        world.ask("LeaveGroup", f"{label}, join v{version}", used, **fields)

    leave("an unknown id", "nobody")
    leave("an unknown group", me["member_id"], group_id="nope")
    leave("no group", me["member_id"], group_id="")
    if used >= 3:
        leave("an unknown instance", "", "nobody")
    leave("the member", me["member_id"])
    leave("again", me["member_id"])


def static(world: World) -> None:
    def join(label: str, **more: Any) -> Any:
        return world.ask(
            "JoinGroup",
            f"static, {label}",
            9,
            **{
                "group_id": "static",
                "session_timeout_ms": 10_000,
                "group_instance_id": "i",
                "rebalance_timeout_ms": 5_000,
                "protocol_type": "consumer",
                "protocols": RANGE,
                **more,
            },
        )

    first = join("new")
    me = {"group_id": "static", "generation_id": first.generation_id, "group_instance_id": "i"}
    world.ask(
        "SyncGroup",
        "static",
        5,
        **me,
        member_id=first.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    second = join("restarted")
    world.ask("Heartbeat", "static, fenced", 4, **me, member_id=first.member_id)
    world.ask(
        "SyncGroup",
        "static, fenced",
        5,
        **me,
        member_id=first.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    join("fenced", member_id=first.member_id)
    world.ask("Heartbeat", "static", 4, **me, member_id=second.member_id)
    world.ask(
        "Heartbeat",
        "static, another instance",
        4,
        **{**me, "group_instance_id": "k"},
        member_id=second.member_id,
    )
    member = {"member_id": "", "group_instance_id": "i", "reason": None}
    world.ask("LeaveGroup", "static, by instance", 5, group_id="static", members=[member])


def committed(world: World, version: int, me: dict[str, Any]) -> None:
    """Commits of a member and of strangers, in a version that goes with the join's."""
    used = version

    def commit(label: str, topic: str = "t", partition: int = 0, **more: Any) -> None:
        part = {"partition_index": partition, "committed_offset": 7, "committed_metadata": "m"}
        part |= {name: more.pop(name) for name in list(more) if name in part}
        owner = {
            "group_id": me["group_id"],
            "member_id": me["member_id"],
            "generation_id_or_member_epoch": me["generation_id"],
        }
        topics = [{"name": topic, "topic_id": world.topic_id("t"), "partitions": [part]}]
        world.ask("OffsetCommit", label, used, **{**owner, "topics": topics, **more})

    commit("a member")
    commit("an old generation", generation_id_or_member_epoch=0)
    commit("an unknown id", member_id="nobody")
    commit("nobody", member_id="", generation_id_or_member_epoch=-1)
    commit("an unknown partition", partition=9)
    commit("an unknown topic", topic="nope")
    commit("much metadata", committed_metadata="x" * 5_000)
    commit("less than no offset", committed_offset=-2)
    commit("an unknown group", group_id=f"n{version}")
    commit("no group", group_id="")


def offsets(world: World) -> None:
    t = world.topic_id("t")
    part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "said"}
    for version in range(2, 11):
        world.ask(
            "OffsetCommit",
            "of nobody",
            version,
            group_id="g",
            topics=[{"name": "t", "topic_id": t, "partitions": [part]}],
        )
    world.ask(
        "OffsetCommit",
        "of an unknown id",
        10,
        group_id="g",
        topics=[{"topic_id": NOBODY, "partitions": [part]}],
    )
    world.ask("OffsetCommit", "nothing", group_id="g", topics=[])

    def fetched(label: str, group: str, name: str, indexes: list[int] | None, **more: Any) -> None:
        topic_id = t if name == "t" else NOBODY
        one = {"name": name, "topic_id": topic_id, "partition_indexes": indexes or []}
        topics = None if indexes is None else [one]
        old = None if indexes is None else [{"name": name, "partition_indexes": indexes}]
        group_of = {
            "group_id": group,
            "topics": topics,
            **{n: more.pop(n) for n in list(more) if n.startswith("member")},
        }
        fields = {"group_id": group, "topics": old, "groups": [group_of], "since": 2, **more}
        world.each("OffsetFetch", label, **fields)

    fetched("one", "g", "t", [0])
    fetched("never committed", "g", "t", [1])
    fetched("an unknown partition", "g", "t", [9])
    fetched("an unknown topic", "g", "nope", [0])
    fetched("all", "g", "t", None)
    fetched("all of an unknown group", "nope", "t", None)
    fetched("of an unknown group", "nope", "t", [0])
    fetched("of no group", "", "t", [0])
    fetched("stable", "g", "t", [0], since=7, require_stable=True)
    fetched("of a member that is none", "g", "t", [0], since=9, member_id="m", member_epoch=3)
    fetched("two groups", "g", "t", [0], since=8)

    def delete(label: str, group: str, topic: str, index: int) -> None:
        world.ask(
            "OffsetDelete",
            label,
            0,
            group_id=group,
            topics=[{"name": topic, "partitions": [{"partition_index": index}]}],
        )

    delete("never committed", "g", "t", 1)
    delete("an unknown partition", "g", "t", 9)
    delete("an unknown topic", "g", "nope", 0)
    delete("an unknown group", "nope", "t", 0)
    delete("no group", "", "t", 0)
    delete("one", "g", "t", 0)
    world.ask("OffsetFetch", "deleted", 8, groups=[{"group_id": "g", "topics": None}])


def listed(world: World) -> None:
    each = world.each
    each("DescribeGroups", "unknown", groups=["nope"])
    each("DescribeGroups", "no name", groups=[""])
    each("DescribeGroups", "nothing", groups=[])
    each("DescribeGroups", "twice", groups=["nope", "nope"])
    world.ask("ListGroups", "in a state", 5, states_filter=["Stable"])
    world.ask("ListGroups", "in an unknown state", 5, states_filter=["Nowhere"])
    world.ask("ListGroups", "of a type", 5, types_filter=["consumer"])
    world.ask("ListGroups", "of an unknown type", 5, types_filter=["nowhere"])
    each("ListGroups", "all", states_filter=[], types_filter=[])
    each("DeleteGroups", "unknown", groups_names=["nope"])
    each("DeleteGroups", "no name", groups_names=[""])
    each("DeleteGroups", "nothing", groups_names=[])
    world.ask("DeleteGroups", "one that has a member", groups_names=["static"])
    world.ask("DeleteGroups", "one", groups_names=["j9"])


def consumers(world: World) -> None:
    """A member of the consumer protocol (KIP-848)."""

    def beat(label: str, **more: Any) -> Any:
        return world.ask(
            "ConsumerGroupHeartbeat",
            label,
            **{
                "group_id": "k",
                "member_id": "m-1",
                "member_epoch": 0,
                "rebalance_timeout_ms": 5_000,
                "subscribed_topic_names": ["t"],
                "topic_partitions": [],
                **more,
            },
        )

    bare: dict[str, Any] = {
        "subscribed_topic_names": None,
        "topic_partitions": None,
        "rebalance_timeout_ms": -1,
    }
    beat("no group", group_id="")
    beat("no member", member_id="")
    beat("no rebalance timeout", rebalance_timeout_ms=-1)
    beat("no subscription", subscribed_topic_names=None)
    beat("an unknown assignor", server_assignor="nope")
    beat("a bad pattern", subscribed_topic_names=None, subscribed_topic_regex="(")
    beat("less than no epoch", member_epoch=-5)
    beat("an unknown member", member_epoch=3, **bare)
    joined = beat("new")
    beat("in its epoch", member_epoch=joined.member_epoch, **bare)
    beat("in an old epoch", member_epoch=joined.member_epoch + 7, **bare)
    owned = [{"topic_id": world.topic_id("t"), "partitions": [0, 1]}]
    beat("it owns", member_epoch=joined.member_epoch, **{**bare, "topic_partitions": owned})
    world.each("ConsumerGroupDescribe", "a group", group_ids=["k"])
    world.each(
        "ConsumerGroupDescribe",
        "with operations",
        group_ids=["k"],
        include_authorized_operations=True,
    )
    world.each("ConsumerGroupDescribe", "unknown", group_ids=["nope"])
    world.each("ConsumerGroupDescribe", "no name", group_ids=[""])
    world.each("ConsumerGroupDescribe", "a classic group", group_ids=["static"])
    world.each("DescribeGroups", "a consumer group", groups=["k"])
    part = {"partition_index": 0, "committed_offset": 1}
    for label, epoch, member in (
        ("its epoch", joined.member_epoch, "m-1"),
        ("another epoch", 9, "m-1"),
        ("a stranger", 1, "m-2"),
        ("nobody", -1, ""),
    ):
        for version in (9, 10):
            topics = [{"name": "t", "topic_id": world.topic_id("t"), "partitions": [part]}]
            who = {"group_id": "k", "member_id": member, "generation_id_or_member_epoch": epoch}
            world.ask("OffsetCommit", f"consumer group, {label}", version, **who, topics=topics)
            group = {
                "group_id": "k",
                "member_id": member or None,
                "member_epoch": epoch,
                "topics": [
                    {"name": "t", "topic_id": world.topic_id("t"), "partition_indexes": [0]}
                ],
            }
            world.ask("OffsetFetch", f"consumer group, {label}", version, groups=[group])
    world.ask(
        "JoinGroup",
        "a consumer group",
        9,
        group_id="k",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=5_000,
        protocol_type="consumer",
        protocols=[{"name": "x", "metadata": b""}],
    )
    beat("static", member_id="m-2", instance_id="i")
    beat("the same instance", member_id="m-3", instance_id="i")
    beat("leaves", member_epoch=-1, **bare)
    beat("leaves again", member_epoch=-1, **bare)
    beat("a classic group", group_id="static")


def transactions(world: World) -> None:
    """What is asked of the transaction coordinator, and of partitions for it."""
    t = world.topic_id("t")
    each, ask = world.each, world.ask
    each("InitProducerId", "idempotent", transactional_id=None, transaction_timeout_ms=1_000)
    ask("InitProducerId", "no name", transactional_id="", transaction_timeout_ms=1_000)
    ask("InitProducerId", "no time", transactional_id="x", transaction_timeout_ms=0)
    ask("InitProducerId", "too much time", transactional_id="x", transaction_timeout_ms=100_000_000)
    ask(
        "InitProducerId",
        "half an identity",
        transactional_id="x",
        transaction_timeout_ms=1_000,
        producer_id=5,
    )
    ask(
        "InitProducerId",
        "a stranger's identity",
        transactional_id="x",
        producer_id=5,
        producer_epoch=0,
        transaction_timeout_ms=1_000,
    )
    for version in range(6):
        me = ask(
            "InitProducerId",
            "a name",
            version,
            transactional_id=f"tx{version}",
            transaction_timeout_ms=60_000,
        )
        who = {
            "transactional_id": f"tx{version}",
            "producer_id": me.producer_id,
            "producer_epoch": me.producer_epoch,
        }
        transaction(world, version, who)
    each(
        "DescribeTransactions",
        "open, ended, unknown, nameless",
        transactional_ids=["tx0", "tx3", "nope", ""],
    )
    each("DescribeTransactions", "nothing", transactional_ids=[])
    each("ListTransactions", "all")
    each("ListTransactions", "in a state", state_filters=["Ongoing"])
    each("ListTransactions", "in an unknown state", state_filters=["Nowhere"])
    each("ListTransactions", "of a producer", producer_id_filters=[123_456])
    each("ListTransactions", "long ones", since=1, duration_filter=100_000_000)
    each("ListTransactions", "by pattern", since=2, transactional_id_pattern="tx[12]")
    each("ListTransactions", "by a bad pattern", since=2, transactional_id_pattern="(")
    each("ListTransactions", "by no pattern", since=2, transactional_id_pattern="")
    marker = {
        "producer_id": 987,
        "producer_epoch": 0,
        "transaction_result": True,
        "topics": [
            {"name": "t", "partition_indexes": [0, 9]},
            {"name": "nope", "partition_indexes": [0]},
        ],
    }
    each("WriteTxnMarkers", "of a stranger", markers=[marker])
    each("WriteTxnMarkers", "nothing", markers=[])
    batch = batch_of(
        [b"x"], STAMP_MS, producer_id=55, producer_epoch=0, base_sequence=0, transactional=True
    )
    data = {"name": "t", "topic_id": t, "partition_data": [{"index": 0, "records": batch}]}
    for version in (9, 11, 12, 13):
        ask(
            "Produce",
            "transactional, without a name",
            version,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[data],
        )
        ask(
            "Produce",
            "transactional, of a stranger",
            version,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[data],
            transactional_id="stranger",
        )
    tx_offsets(world)


def transaction(world: World, version: int, who: dict[str, Any]) -> None:
    ask = world.ask
    mine = {
        "v3_and_below_transactional_id": who["transactional_id"],
        "v3_and_below_producer_id": who["producer_id"],
        "v3_and_below_producer_epoch": who["producer_epoch"],
    }

    def add(label: str, topic: str, index: int, **more: Any) -> None:
        topics = [{"name": topic, "partitions": [index]}]
        ask(
            "AddPartitionsToTxn",
            label,
            version,
            **{
                **mine,
                "v3_and_below_topics": topics,
                **more,
                "transactions": [{**who, "verify_only": False, "topics": topics}],
            },
        )

    def end(label: str, committed: bool, used: int | None = None, **more: Any) -> Any:
        return ask(
            "EndTxn",
            label,
            version if used is None else used,
            **{**who, "committed": committed, **more},
        )

    end("nothing to commit", True)
    add("a partition", "t", 0)
    add("the same again", "t", 0)
    add("an unknown topic", "nope", 0)
    add("an unknown partition", "t", 9)
    ask("AddOffsetsToTxn", f"a group, v{version}", min(version, 4), **who, group_id="g")
    ask("AddOffsetsToTxn", f"no group, v{version}", min(version, 4), **who, group_id="")
    end("another epoch", True, producer_epoch=who["producer_epoch"] + 5)
    end("another id", True, producer_id=99_999)
    end("another name", True, transactional_id="nope")
    if version != 3:  # that one stays open
        end("committed" if version % 2 else "aborted", bool(version % 2))


def tx_offsets(world: World) -> None:
    me = world.call("InitProducerId", transactional_id="to", transaction_timeout_ms=60_000)
    who = {
        "transactional_id": "to",
        "producer_id": me.producer_id,
        "producer_epoch": me.producer_epoch,
        "group_id": "g",
    }
    part = {"partition_index": 0, "committed_offset": 3, "committed_metadata": None}

    def commit(label: str, version: int, topic: str = "t", **more: Any) -> None:
        world.ask(
            "TxnOffsetCommit",
            label,
            version,
            **{**who, "topics": [{"name": topic, "partitions": [part]}], **more},
        )

    for version in range(6):
        commit("of a stranger", version, producer_id=99_999)
    commit("not added", 4)
    world.call("AddOffsetsToTxn", **who)
    for version in range(5):
        commit("staged", version)
        commit("an unknown topic", version, "nope")
    commit("an unknown member", 4, member_id="m", generation_id=3)
    commit("another epoch", 4, producer_epoch=who["producer_epoch"] + 3)
    commit("no group", 4, group_id="")
    group = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
    world.ask("OffsetFetch", "staged, unstable", 8, groups=[group])
    world.ask("OffsetFetch", "staged, stable", 8, groups=[group], require_stable=True)
    world.ask(
        "EndTxn",
        "with offsets",
        4,
        committed=False,
        **{name: who[name] for name in who if name != "group_id"},
    )


def access(world: World) -> None:
    """Without an authorizer."""
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    world.each("CreateAcls", "without access control", creations=[acl])
    world.each(
        "DescribeAcls",
        "without access control",
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    each = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    world.each("DeleteAcls", "without access control", filters=[each])


STORIES = (classic, offsets, consumers, listed, transactions, access)
