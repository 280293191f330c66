"""Offsets of a group by hand (spec 8.1): plans in files, another group's, and deleting them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort import Admin, TopicPartition
from kohort.testing import Cluster
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.cli.conftest import Run


@pytest.fixture
def billing(kohort: Run, cluster: Cluster) -> str:
    """A group at offset 3 of `bills-1` and offset 1 of `fees-0`."""
    kohort("topic", "create", "bills", "-p", "2", "--if-not-exists")
    kohort("topic", "create", "fees", "-p", "1", "--if-not-exists")
    kohort("produce", "bills", "--partition", "1", stdin=b"a\nb\nc\n")
    kohort("produce", "fees", stdin=b"a\n")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("billing", {("bills", 1): 3, ("fees", 0): 1})
    return "billing"


def at(kohort: Run, group: str) -> dict[tuple[str, int], int]:
    rows = kohort("group", "lag", group, "-o", "json").json["rows"]
    return {(row["topic"], row["partition"]): row["current_offset"] for row in rows}


def test_a_reset_is_exported_undone_and_repeated_by_file(
    kohort: Run, billing: str, tmp_path: Path
) -> None:
    """The file is the one that `kafka-consumer-groups --from-file` reads."""
    plan, before = tmp_path / "plan.csv", tmp_path / "before.csv"
    back = ("group", "reset", billing, "--to", "earliest", "--export", str(plan))
    assert "nothing was changed" in kohort(*back).err
    assert plan.read_text() == "bills,1,0\nfees,0,0\n"
    assert kohort(*back, "--undo-file", str(before), "--execute").code == 0
    assert at(kohort, billing) == {("bills", 1): 0, ("fees", 0): 0}
    assert kohort("group", "reset", billing, "--to", f"file:{before}", "--execute").code == 0
    assert at(kohort, billing) == {("bills", 1): 3, ("fees", 0): 1}
    some = ("group", "reset", billing, "--to", f"file:{plan}", "--topic", "fees", "--execute")
    assert kohort(*some).code == 0
    assert at(kohort, billing) == {("bills", 1): 3, ("fees", 0): 0}


def test_a_group_is_set_to_where_another_one_is(kohort: Run, billing: str) -> None:
    copied = kohort("group", "reset", billing, "--to", f"group:{billing}", "-o", "csv")
    assert [line.split(",")[3:5] for line in copied.lines[1:]] == [["3", "3"], ["1", "1"]]
    assert (
        "there is no group 'other'" in kohort("group", "reset", billing, "--to", "group:other").err
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("topic,partition,offset\nbills,1,99\n", "offset 99 is not in bills-1"),
        ("bills,9,0\n", "there is no partition bills-9"),
        ("bills,1\n", "plan.csv:1: 'bills,1' is not TOPIC,PARTITION,OFFSET"),
        ("bills,1,-2\n", "is not TOPIC,PARTITION,OFFSET"),
        ("gone,1,0\n", "topic 'gone' does not exist"),
        ("", "holds no offset"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_changes(
    kohort: Run, billing: str, tmp_path: Path, content: str, message: str
) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(content)
    ran = kohort("group", "reset", billing, "--to", f"file:{plan}", "--execute")
    assert ran.code in (1, 2)
    assert message in ran.err
    assert at(kohort, billing) == {("bills", 1): 3, ("fees", 0): 1}


def test_offsets_of_one_topic_are_deleted(kohort: Run, billing: str, cluster: Cluster) -> None:
    plan = ("group", "delete-offsets", billing, "--topic", "fees")
    assert kohort(*plan, "-o", "csv").lines[1:] == ["billing,fees,0,1"]
    assert set(at(kohort, billing)) == {("bills", 1), ("fees", 0)}
    assert kohort(*plan, "--execute").code == 0
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert set(admin.list_group_offsets(billing)) == {TopicPartition("bills", 1)}
    ran = kohort(*plan, "--execute")
    assert (ran.code, ran.out) == (1, "")
    assert "has no committed offset of fees; it has offsets of bills" in ran.err


def test_a_topic_whose_partitions_are_left_out_is_refused(kohort: Run, billing: str) -> None:
    """`--topic "fees:$P"` with an unset P must not mean every partition."""
    for command in (("delete-offsets", billing), ("reset", billing, "--to", "earliest")):
        ran = kohort("group", *command, "--topic", "fees:", "--execute")
        assert (ran.code, ran.out) == (1, "")
        assert "'fees:' names no partition; write fees:0,2, or fees for all" in ran.err
    assert at(kohort, billing) == {("bills", 1): 3, ("fees", 0): 1}


def committed(group: str, offsets: dict[tuple[str, int], int]) -> OffsetFetchResponse:
    """What a coordinator answers that still has offsets of a topic that is gone."""
    topics = [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[OffsetFetchResponsePartitions(partition_index=number, committed_offset=at)],
        )
        for (topic, number), at in offsets.items()
    ]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=group, topics=topics)])


@pytest.mark.parametrize("where", ["earliest", "@1970-01-02T00:00Z", "shift:+0", "group:billing"])
def test_a_reset_of_everything_leaves_out_what_nobody_answers_for(
    kohort: Run, billing: str, cluster: Cluster, where: str
) -> None:
    """One topic that is gone, or one partition without a leader, keeps no group from its reset."""
    answer = committed(billing, {("bills", 1): 3, ("fees", 0): 1, ("gone", 0): 7})
    words = ("group", "reset", billing, "--to", where, "-o", "csv")
    with (
        cluster.faults.answer("OffsetFetch", lambda request, version: answer, times=9),
        cluster.faults.fail(
            "ListOffsets", "UNKNOWN_SERVER_ERROR", topic="fees", partition=0, times=9
        ),
    ):
        ran = kohort(*words)
        named = kohort(*words, "--topic", "fees")
    assert [line.split(",")[1:3] for line in ran.lines[1:]] == [["bills", "1"]]
    assert ran.code == 4
    assert "error: gone-0 is left out: the topic does not exist (any more)" in ran.err
    assert "error: fees-0 is left out: no leader answers for it" in ran.err
    assert (named.code, named.out) == (1, "")
    assert "UNKNOWN_SERVER_ERROR" in named.err


def test_a_reset_without_any_answer_fails(kohort: Run, billing: str, cluster: Cluster) -> None:
    with cluster.faults.fail("ListOffsets", "UNKNOWN_SERVER_ERROR", times=99):
        ran = kohort("group", "reset", billing, "--to", "earliest", "--execute")
    assert (ran.code, ran.out) == (1, "")
    assert "no offset of group 'billing' can be set" in ran.err
    assert "bills-1" in ran.err


def test_records_that_do_not_exist_are_neither_read_again_nor_skipped(
    kohort: Run, cluster: Cluster
) -> None:
    """AGAIN and SKIPPED count what the log holds: retention, or a topic made again, is no loss."""
    kohort("topic", "create", "short", "-p", "1")
    kohort("produce", "short", stdin=b"a\nb\nc\nd\ne\n")
    place = TopicPartition("short", 0)

    def reset_row(at: int, where: str) -> list[str]:
        admin.alter_group_offsets("mover", {place: at})
        line = kohort("group", "reset", "mover", "--to", where, "-o", "csv").lines[1]
        return line.split(",")[3:]

    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_records({place: 2})
        assert reset_row(1, "earliest") == ["1", "2", "0", "0"]
        assert reset_row(1, "latest") == ["1", "5", "0", "3"]
        assert reset_row(900, "latest") == ["900", "5", "0", "0"]
        assert reset_row(900, "earliest") == ["900", "2", "3", "0"]
        assert reset_row(4, "3") == ["4", "3", "1", "0"]
