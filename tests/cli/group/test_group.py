"""`kohort group`: Kafka's columns, members with their assignment, lag that is never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kohort import Admin, Consumer, NewTopic
from kohort.cli.group.commands import summed_by_topic
from kohort.testing import Cluster
from kohort.wire.messages.list_groups_response import ListedGroup, ListGroupsResponse
from tests.cli.conftest import Run

LAG_COLUMNS = [
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
]


@contextmanager
def member(cluster: Cluster, group: str, topic: str) -> Iterator[Consumer]:
    """A member that has its partitions and has read all that stands in them."""
    with Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        client_id="till",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.2)
        ends = consumer.end_offsets(list(consumer.assignment()))
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            consumer.poll(0.2)
        yield consumer


@pytest.fixture
def orders(kohort: Run) -> str:
    kohort("topic", "create", "orders", "-p", "2", "--if-not-exists")
    return "orders"


def test_a_group_with_a_member(kohort: Run, cluster: Cluster, orders: str) -> None:
    with member(cluster, "active", orders) as consumer:
        kohort("produce", orders, "-p", "1", stdin=b"a\nb\nc\n")
        while consumer.position((orders, 1)) < 3:
            consumer.poll(0.2)
        consumer.commit()
        kohort("produce", orders, "-p", "1", stdin=b"d\n")

        lag = kohort("group", "lag", "active").lines
        assert lag[0].split() == LAG_COLUMNS
        first, second = (line.split() for line in lag[1:])
        assert first[:6] == ["active", orders, "0", "0", "0", "0"]
        assert second[:6] == ["active", orders, "1", "3", "4", "1"]
        assert second[6].startswith("till-")
        assert second[7:] == ["/127.0.0.1", "till"]

        (row,) = [
            r for r in kohort("group", "list", "-o", "json").json["rows"] if r["group"] == "active"
        ]
        assert set(row) == {"group", "state", "type", "protocol", "members", "coordinator"}
        assert (row["state"], row["type"], row["members"]) == ("Stable", "classic", 1)
        assert row["protocol"] == "range"

        (group,) = kohort("group", "describe", "active", "-o", "json").json["groups"]
        assert set(group) == {
            "group",
            "state",
            "type",
            "protocol_type",
            "assignment_strategy",
            "coordinator",
            "lag",
            "unknown",
            "group_epoch",
            "target_assignment_epoch",
            "members",
            "partitions",
        }
        assert group["lag"] == 1
        (only,) = group["members"]
        assert set(only) == {
            "consumer_id",
            "group_instance_id",
            "client_id",
            "host",
            "topics",
            "assignment",
            "type",
            "rack",
            "pattern",
            "epoch",
            "target_assignment",
        }
        assert only["assignment"] == [
            {"topic": orders, "partition": 0},
            {"topic": orders, "partition": 1},
        ]
        text = kohort("group", "describe", "active").out
        assert "orders(0,1)" in text
        assert len(kohort("group", "describe", "active", "-o", "csv").lines) == 2
        assert len(kohort("group", "describe", "active", "active", "-o", "jsonl").lines) == 1

    (group,) = kohort("group", "describe", "active", "-o", "json").json["groups"]
    assert (group["state"], group["members"]) == ("Empty", [])


def test_lag_that_fails_a_check(kohort: Run, orders: str) -> None:
    """Exit code 3 when a partition has more than allowed, and the partition is named."""
    kohort("consume", orders, "-g", "checked", "--from-beginning", "--until-end")
    kohort("produce", orders, "-p", "0", stdin=b"x\ny\n")
    assert kohort("group", "lag", "checked", "--fail-above", "2").code == 0
    ran = kohort("group", "lag", "checked", "--fail-above", "1", "-o", "json")
    assert ran.code == 3
    assert "lag of group checked on orders-0 is 2, more than 1 is not allowed" in ran.err
    assert ran.json["rows"][0]["lag"] == 2


def test_a_check_fails_of_what_was_asked_for_alone(
    kohort: Run, cluster: Cluster, orders: str
) -> None:
    """Of all groups some have no offsets (Kafka Connect's), or do not read the topic."""
    kohort("topic", "create", "fees", "-p", "1")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("reads-fees", {("fees", 0): 0})
        kohort("consume", orders, "-g", "reads-orders", "--from-beginning", "--until-end")
        without_offsets = Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="without", allow_auto_create_topics=False
        )
        with without_offsets:
            without_offsets.subscribe(["not-there"])
            while "without" not in {g.group_id for g in admin.list_groups(states=["Stable"])}:
                without_offsets.poll(0.2)
            every = ("--all", "--match", "^(reads-|without)", "--fail-above", "1000")
            for words, code, message in (
                (every, 0, "group without has no offsets and reads nothing"),
                ((*every, "--topic", orders), 0, ""),
                ((*every, "--topic", "ordes"), 3, "none of the 3 groups has offsets of 'ordes'"),
                (("without", "--fail-above", "1000"), 3, "group without has no offsets and"),
                (
                    ("reads-fees", "reads-orders", "--topic", orders, "--fail-above", "1000"),
                    0,
                    "group reads-fees has no offsets of 'orders', and does not read it\n",
                ),
                (
                    ("reads-fees", "--topic", orders, "--fail-above", "1000"),
                    3,
                    "group reads-fees has no offsets of 'orders', and does not read it\n",
                ),
            ):
                ran = kohort("group", "lag", *words)
                assert ran.code == code, words
                assert message in ran.err
                assert bool(message) == bool(ran.err)


def test_what_is_not_known_is_a_dash(kohort: Run, cluster: Cluster, orders: str) -> None:
    """Nothing committed yet: no offset and no lag, and the check fails. Never a 0."""
    with member(cluster, "fresh", orders):
        rows = kohort("group", "lag", "fresh", "-o", "json").json["rows"]
        assert [(r["current_offset"], r["lag"]) for r in rows] == [(None, None)] * 2
        assert kohort("group", "lag", "fresh").lines[1].split()[3] == "-"
        ran = kohort("group", "lag", "fresh", "--fail-above", "100")
        assert ran.code == 3
        assert "is unknown" in ran.err


def test_a_partition_that_its_leader_cannot_read_is_a_dash(
    kohort: Run, cluster: Cluster, orders: str
) -> None:
    """One partition on a broken disk, or one leader that hangs, does not end the command."""
    kohort("produce", orders, "-p", "1", stdin=b"a\n")
    kohort("consume", orders, "-g", "offline", "--from-beginning", "--until-end")
    error = "UNKNOWN_SERVER_ERROR"  # of KAFKA_STORAGE_ERROR it hopes for so long as LEADER_S
    with cluster.faults.fail("ListOffsets", error, topic=orders, partition=0, times=1_000):
        rows = kohort("group", "lag", "offline", "-o", "json").json["rows"]
        assert [(r["partition"], r["lag"]) for r in rows] == [(0, None), (1, 0)]
        assert kohort("group", "describe", "offline").code == 0
        (_, first, second) = kohort("topic", "describe", orders, "-o", "csv").lines
        assert (first.endswith(",,"), second.endswith(",,")) == (True, False)


def test_a_commit_past_the_end_of_the_log_is_a_dash(
    kohort: Run, cluster: Cluster, orders: str
) -> None:
    """The topic was made again, or has lost records: nobody knows what is left to do (spec 8.3)."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("ahead", {(orders, 0): 900})
    ran = kohort("group", "lag", "ahead", "--fail-above", "0", "-o", "json")
    assert [row["lag"] for row in ran.json["rows"]] == [None]
    assert ran.code == 3
    assert "is unknown" in ran.err
    (group,) = kohort("group", "describe", "ahead", "-o", "json").json["groups"]
    assert (group["lag"], group["unknown"]) == (None, 1)
    why = kohort("group", "why", "ahead", "--for", "1ms", "-o", "json").json
    assert (why["lag"], why["unknown"], why["partitions"][0]["lag"]) == (None, 1, None)
    assert (
        kohort("group", "why", "ahead", "--for", "1ms")
        .lines[0]
        .startswith("ahead: Empty, members 0, lag unknown, partitions 1 (stuck 1)")
    )


def test_one_leader_that_hangs_is_waited_for_once(
    kohort: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many groups each broker and each leader is asked once, not once for each group."""
    monkeypatch.setattr("kohort.sampling.log_offsets.LEADER_S", 0.5)
    with (
        Cluster(nodes=2, offsets_topic_num_partitions=4) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        admin.create_topics([NewTopic("shared", 4, 1)])
        (topic,) = admin.describe_topics(["shared"]).values()
        known = {p.partition for p in topic.partitions if p.leader != 2}
        assert 0 < len(known) < 4
        names = [f"g{number}" for number in range(6)]
        for name in names:
            admin.alter_group_offsets(name, {("shared", number): 0 for number in range(4)})
        cluster.faults.silence("ListOffsets", node=2, times=99)
        for words in (("--all",), tuple(names), ("--all", "--match", "^g")):
            cluster.requests.clear()
            ran = kohort("group", "lag", *words, "-b", cluster.bootstrap, "-o", "json")
            assert ran.code == 0, ran.err
            rows = ran.json["rows"]
            assert {row["group"] for row in rows} == set(names)
            assert {row["partition"] for row in rows if row["lag"] == 0} == known
            assert len(cluster.requests.of("ListOffsets")) == 2, "one for each leader"
            assert not cluster.requests.of("FindCoordinator")
        cluster.requests.clear()
        assert len(kohort("group", "list", "-b", cluster.bootstrap).lines) == 7
        assert len(cluster.requests.of("DescribeGroups")) <= 2


def test_a_broker_that_does_not_answer_costs_its_own_groups_alone(kohort: Run) -> None:
    with (
        Cluster(nodes=2, offsets_topic_num_partitions=4) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        admin.create_topics([NewTopic("shared", 1, 1)])
        names = [f"g{number}" for number in range(6)]
        for name in names:
            admin.alter_group_offsets(name, {("shared", 0): 0})
        there = {name for name in names if cluster.coordinator_of(name) != 2}
        assert 0 < len(there) < 6
        cluster.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", node=2, times=99)
        for words in (("list",), ("lag", "--all"), ("lag", *names)):
            ran = kohort("group", *words, "-b", cluster.bootstrap, "-o", "json")
            assert ran.code == 4
            assert {row["group"] for row in ran.json["rows"]} == there
            assert "error: broker 2 does not answer for its groups" in ran.err
        ran = kohort("group", "lag", "nope", *names, "-b", cluster.bootstrap)
        assert "group 'nope' is unknown to the brokers that answer" in ran.err
        assert "there is no group" not in ran.err


def test_offsets_of_a_deleted_topic_do_not_end_the_command(kohort: Run) -> None:
    kohort("topic", "create", "short-lived")
    kohort("produce", "short-lived", stdin=b"a\n")
    kohort("consume", "short-lived", "-g", "left", "--from-beginning", "--until-end")
    kohort("topic", "delete", "short-lived", "--execute")
    assert kohort("group", "lag", "left").code == 0
    assert kohort("group", "lag", "--all").code == 0


def test_an_unknown_group_is_told_with_the_nearest(kohort: Run, orders: str) -> None:
    kohort("consume", orders, "-g", "billing", "--from-beginning", "--until-end")
    before = kohort("group", "list").out
    for command in ("lag", "describe"):
        ran = kohort("group", command, "biling")
        assert (ran.code, ran.out) == (1, "")
        assert "there is no group 'biling'. Did you mean 'billing'?" in ran.err
    assert kohort("group", "list").out == before
    assert kohort("group", "lag").code == 2
    assert kohort("group", "lag", "billing", "--all").code == 2


def test_groups_by_state(kohort: Run, cluster: Cluster, orders: str) -> None:
    with member(cluster, "stable", orders):
        stable = [r.split()[0] for r in kohort("group", "list", "--state", "stable").lines[1:]]
        assert stable == ["stable"]
        empty = kohort("group", "list", "--state", "Empty", "-o", "jsonl").out
        assert '"stable"' not in empty


def test_a_group_is_set_back_only_without_members_and_when_told_to(
    kohort: Run, cluster: Cluster
) -> None:
    """`--to` takes what `consume --offset` takes; nothing is changed without `--execute`."""
    kohort("topic", "create", "bills", "-p", "2")
    kohort("produce", "bills", "--partition", "1", stdin=b"a\nb\nc\n")
    with member(cluster, "setter", "bills") as consumer:
        while consumer.position(("bills", 1)) < 3:
            consumer.poll(0.2)
        consumer.commit()
        refused = kohort("group", "reset", "setter", "--to", "earliest", "--execute")
        assert refused.code == 1
        assert "has members (1)" in refused.err
    back = ("group", "reset", "setter", "--to", "-2", "--topic", "bills:1", "-o", "csv")
    dry_run = kohort(*back)
    assert dry_run.lines[1:] == ["setter,bills,1,3,1,2,0"]
    assert "nothing was changed; add --execute" in dry_run.err
    assert kohort("group", "lag", "setter", "-o", "csv").lines[2].startswith("setter,bills,1,3,3,0")
    assert kohort(*back, "--execute").err == ""
    assert kohort("group", "lag", "setter", "-o", "csv").lines[2].startswith("setter,bills,1,1,3,2")
    ahead = kohort("group", "reset", "setter", "--to", "@-0s", "-o", "csv")
    assert [line.split(",")[4:] for line in ahead.lines[1:]] == [["0", "0", "0"], ["3", "0", "2"]]
    for args, code, message in (
        (("setter", "--to", "soon"), 2, "--to 'soon': write earliest"),
        (("setter", "--to", "9"), 1, "offset 9 is not in bills-0, which holds 0 to 0"),
        (("setter", "--to", "0", "--topic", "bills:7"), 1, "no partition '7'; it has 2"),
        (("seter", "--to", "0"), 1, "Did you mean 'setter'?"),
    ):
        ran = kohort("group", "reset", *args)
        assert ran.code == code
        assert message in ran.err


def test_an_unknown_group_does_not_hide_the_others(
    kohort: Run, cluster: Cluster, orders: str
) -> None:
    """What is known is shown, what is not is said, and the exit code tells a script."""
    with member(cluster, "known", orders) as consumer:
        consumer.commit()
        for command in ("lag", "describe"):
            ran = kohort("group", command, "knwon", "known", "-o", "jsonl")
            assert ran.code == 4
            assert '"known"' in ran.out
            assert "there is no group 'knwon'. Did you mean 'known'?" in ran.err
        ran = kohort("group", "lag", "neither", "nor")
        assert (ran.code, ran.out) == (1, "")
        assert kohort("group", "lag", "known", "absent", "--fail-above", "0").code == 4


@pytest.mark.parametrize(
    "words",
    [
        ("lag", "--all", "--fail-above", "0"),
        ("lag", "{}", "--topic", "other"),
        ("lag", "--all", "--total"),
        ("why", "{}", "--for", "1ms"),
        ("delete", "{}"),
        ("describe", "{}"),
        ("delete-offsets", "{}", "--topic", "other"),
        ("remove-member", "{}", "--instance", "x"),
        ("timeline", "{}"),
    ],
    ids=" ".join,
)
def test_the_name_of_a_group_does_not_drive_the_terminal(
    kohort: Run, cluster: Cluster, orders: str, words: tuple[str, ...]
) -> None:
    """Whoever may join a group chooses its name: here one that sets the window's title."""
    name = "evil\x1b]0;title\x07"
    kohort("produce", orders, "-p", "0", stdin=b"x\n")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets(name, {(orders, 0): 0})
        ran = kohort("group", *(word.format(name) for word in words))
        admin.delete_groups([name])
    assert "evil\\x1b]0;title\\x07" in ran.out + ran.err
    assert "\x1b" not in ran.out + ran.err


def test_share_and_streams_groups_are_listed_as_the_broker_lists_them(
    kohort: Run, cluster: Cluster, orders: str
) -> None:
    """Nothing here describes them: they are not dead for it, and fail no command about all."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("classic1", {(orders, 0): 0})
    types = {"classic1": "classic", "share1": "share", "streams1": "streams"}
    listed = ListGroupsResponse(
        groups=[
            ListedGroup(group_id=name, group_state="Stable", group_type=kind)
            for name, kind in types.items()
        ]
    )
    with cluster.faults.answer("ListGroups", lambda request, version: listed, times=99):
        ran = kohort("group", "list", "-o", "json")
        assert [(r["group"], r["state"], r["type"], r["members"]) for r in ran.json["rows"]] == [
            ("classic1", "Empty", "classic", 0),
            ("share1", "Stable", "share", None),
            ("streams1", "Stable", "streams", None),
        ]
        for words in ((), ("--total",), ("--match", "1$")):
            ran = kohort("group", "lag", "--all", *words, "-o", "json")
            assert (ran.code, ran.err) == (0, "")
            assert {row["group"] for row in ran.json["rows"]} == {"classic1"}
        ran = kohort("group", "lag", "share1")
        assert (ran.code, ran.out) == (1, "")
        assert "group 'share1' is a share group" in ran.err


@pytest.mark.parametrize("request_name", ["DescribeGroups", "OffsetFetch"])
def test_a_group_that_fails_does_not_hide_the_others(
    kohort: Run, cluster: Cluster, orders: str, request_name: str
) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for name in ("allowed", "shut"):
            admin.alter_group_offsets(name, {(orders, 0): 0})
    refusal = "GROUP_AUTHORIZATION_FAILED"
    with cluster.faults.fail(request_name, refusal, group="shut", times=1_000):
        both = ("shut", "allowed")
        for words in (("lag", *both), ("describe", *both)):
            ran = kohort("group", *words, "-o", "jsonl")
            assert ran.code == 4
            assert '"allowed"' in ran.out
            assert "error: " in ran.err
            assert "'shut'" in ran.err
        ran = kohort("group", "lag", "shut")
        assert (ran.code, ran.out) == (1, "")


def test_a_group_without_members_is_deleted_with_its_offsets(
    kohort: Run, cluster: Cluster, orders: str
) -> None:
    with member(cluster, "old", orders) as consumer:
        consumer.commit()
        refused = kohort("group", "delete", "old", "--execute")
        assert refused.code == 1
        assert "has members (1), which may still commit; stop them first" in refused.err
    looked = kohort("group", "delete", "old")
    assert looked.out == "would delete old: 2 committed offsets\n"
    assert "nothing was changed" in looked.err
    assert kohort("group", "delete", "old", "no-such", "--execute").code == 1
    assert kohort("group", "lag", "old").code == 0, "all that were named, or none"
    assert kohort("group", "delete", "old", "--execute").out == "deleted old: 2 committed offsets\n"
    assert "no group 'old'" in kohort("group", "lag", "old").err


def test_lag_of_some_groups_and_topics_and_by_topic(kohort: Run, cluster: Cluster) -> None:
    """Partitions whose lag nobody knows are counted beside the sum, not in it."""
    for name in ("bills", "fees"):
        kohort("topic", "create", f"sum-{name}", "-p", "2")
        kohort("produce", f"sum-{name}", "--partition", "1", stdin=b"a\nb\n")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets(
            "sums", {("sum-bills", 0): 0, ("sum-bills", 1): 1, ("sum-fees", 1): 0}
        )
        admin.alter_group_offsets("sums-b", {("sum-bills", 1): 0})
    asked = ("group", "lag", "--all", "--match", "^sums", "--by-topic", "-o", "csv")
    assert kohort(*asked).lines == [
        "group,topic,partitions,lag,unknown",
        "sums,sum-bills,2,1,0",
        "sums,sum-fees,1,2,0",
        "sums-b,sum-bills,1,2,0",
    ]
    rows = [
        {"group": "g", "topic": "t", "partition": n, "lag": lag} for n, lag in enumerate([4, None])
    ]
    assert summed_by_topic(rows) == [
        {"group": "g", "topic": "t", "partitions": 2, "lag": 4, "unknown": 1}
    ]
    rows = kohort("group", "lag", "sums", "--topic", "sum-fees", "-o", "json").json["rows"]
    assert [(row["topic"], row["lag"]) for row in rows] == [("sum-fees", 2)]
    for args, code, message in (
        (("--all", "--match", "("), 2, "is not a regular expression"),
        (("--all", "--match", "^no-such"), 1, "no group has '^no-such' in its name"),
        (("sums", "--match", "s"), 2, "--match chooses among --all groups"),
        (("sums", "--total", "--by-topic"), 2, "leave --topic and --by-topic out"),
    ):
        ran = kohort("group", "lag", *args)
        assert ran.code == code
        assert message in ran.err
