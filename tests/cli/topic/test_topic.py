"""`kohort topic`: looking changes nothing, what cannot be undone asks for --execute."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.clusters import Cluster


def test_create_describe_list(kohort: Run) -> None:
    made = kohort("topic", "create", "made", "-p", "3", "-c", "retention.ms=60000")
    assert (made.code, made.out) == (0, "created made with 3 partitions\n")
    found = kohort("topic", "describe", "made", "-o", "json").json
    assert found["schema"] == 1
    (topic,) = found["topics"]
    assert set(topic) == {"topic", "topic_id", "internal", "configs", "partitions"}
    assert topic["configs"] == {"retention.ms": "60000"}
    assert topic["partitions"][2] == {
        "partition": 2,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "first_offset": 0,
        "log_end_offset": 0,
    }
    table = kohort("topic", "describe", "made").lines
    assert table[2].split() == [
        "TOPIC",
        "PARTITION",
        "LEADER",
        "REPLICAS",
        "ISR",
        "FIRST-OFFSET",
        "LOG-END-OFFSET",
    ]
    assert len(kohort("topic", "describe", "made", "-o", "csv").lines) == 4
    rows = kohort("topic", "list", "-o", "json").json["rows"]
    assert {"topic": "made", "partitions": 3, "replicas": 1} in rows


def test_create_is_all_or_nothing(kohort: Run) -> None:
    """One bad topic of two: neither is made."""
    kohort("topic", "create", "first")
    both = kohort("topic", "create", "second", "first")
    assert both.code == 1
    assert "nothing was created" in both.err
    bad = kohort("topic", "create", "third", "bad name")
    assert bad.code == 1
    assert "'bad name'" in bad.err
    assert bad.err.count("INVALID_TOPIC_EXCEPTION") == 1
    listed = [line.split()[0] for line in kohort("topic", "list").lines]
    assert "second" not in listed
    assert "third" not in listed
    again = kohort("topic", "create", "first", "fourth", "--if-not-exists")
    assert (again.code, again.err) == (0, "first is there already\n")
    assert again.out.startswith("created fourth")


def test_an_unknown_topic_is_told_and_never_made(kohort: Run) -> None:
    kohort("topic", "create", "invoices")
    before = kohort("topic", "list").out
    for args in (
        ("topic", "describe", "invoises"),
        ("topic", "delete", "invoises", "--execute"),
        ("topic", "grow", "invoises", "-p", "9", "--execute"),
        ("topic", "config", "show", "invoises"),
        ("topic", "config", "set", "invoises", "retention.ms=1"),
        ("consume", "invoises", "--until-end"),
        ("consume", "invoises", "--group", "g", "--until-end"),
    ):
        ran = kohort(*args)
        assert (ran.code, ran.out) == (1, ""), args
        assert "Did you mean 'invoices'?" in ran.err, args
    assert kohort("topic", "list").out == before


def test_delete_and_grow_change_nothing_without_execute(kohort: Run) -> None:
    kohort("topic", "create", "plan", "-p", "2")
    kohort("produce", "plan", stdin=b"a\nb\n")
    ran = kohort("topic", "grow", "plan", "-p", "4")
    assert ran.out == "would grow plan: 2 to 4 partitions\n"
    assert "nothing was changed" in ran.err
    ran = kohort("topic", "delete", "plan")
    assert ran.out == "would delete plan: 2 partitions, 2 records\n"
    assert "2 partitions" in kohort("topic", "describe", "plan").out
    assert kohort("topic", "grow", "plan", "-p", "4", "--execute").code == 0
    assert "4 partitions" in kohort("topic", "describe", "plan").out
    ran = kohort("topic", "grow", "plan", "-p", "4", "--execute")
    assert ran.code == 1
    assert "at least 5" in ran.err
    assert kohort("topic", "delete", "plan", "--execute").code == 0
    assert kohort("topic", "describe", "plan").code == 1


def test_records_that_nobody_counts_are_not_none(kohort: Run, cluster: Cluster) -> None:
    """Who reads `0 records` deletes the topic."""
    kohort("topic", "create", "full", "-p", "2")
    kohort("produce", "full", "--partition", "1", stdin=b"a\nb\n")
    words = ("topic", "delete", "full")
    error = "UNKNOWN_SERVER_ERROR"
    with cluster.faults.fail("ListOffsets", error, topic="full", partition=0, times=9):
        assert kohort(*words).out == (
            "would delete full: 2 partitions, at least 2 records "
            "(no leader answers for 1 partition)\n"
        )
    with cluster.faults.fail("ListOffsets", error, topic="full", times=9):
        assert kohort(*words).out == (
            "would delete full: 2 partitions, records not known "
            "(no leader answers for 2 partitions)\n"
        )
    assert kohort(*words).out == "would delete full: 2 partitions, 2 records\n"


def test_configurations(kohort: Run) -> None:
    kohort("topic", "create", "conf")
    ran = kohort("topic", "config", "set", "conf", "retention.ms=1000", "segment.bytes=100000")
    assert ran.out == "conf retention.ms: -1 -> 1000\nconf segment.bytes: 134217728 -> 100000\n"
    rows = kohort("topic", "config", "show", "conf", "-o", "json").json["rows"]
    assert {"name": "retention.ms", "value": "1000", "source": "topic"} in rows
    ran = kohort("topic", "config", "set", "conf", "--unset", "retention.ms")
    assert ran.out == "conf retention.ms: 1000 -> -1\n"
    everything = kohort("topic", "config", "show", "conf", "--all", "-o", "json").json["rows"]
    assert len(everything) > 5


def test_a_wrong_configuration_is_refused_with_the_nearest_name(kohort: Run) -> None:
    kohort("topic", "create", "wrong")
    ran = kohort("topic", "config", "set", "wrong", "retention.mss=1")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'retention.ms'" in ran.err
    assert kohort("topic", "config", "set", "wrong", "retention.ms=soon").code == 2
    ran = kohort("topic", "config", "set", "wrong", "retention.ms=-9")
    assert ran.code == 1
    assert "retention.ms" in ran.err
    assert ran.err.count("INVALID_CONFIG") == 1
    assert kohort("topic", "config", "set", "wrong").code == 2
    ran = kohort("topic", "create", "never", "-c", "retention.mss=1")
    assert ran.code == 1
    assert "did you mean 'retention.ms'" in ran.err
    assert kohort("topic", "describe", "never").code == 1


def test_times_and_sizes_are_taken_in_any_unit(kohort: Run) -> None:
    made = kohort("topic", "create", "units", "-c", "retention.ms=7d", "-c", "segment.bytes=64MiB")
    assert made.code == 0
    kohort("topic", "config", "set", "units", "retention.ms=90m", "retention.bytes=-1")
    shown = kohort("topic", "describe", "units", "-o", "json").json["topics"][0]["configs"]
    assert shown == {
        "retention.bytes": "-1",
        "retention.ms": "5400000",
        "segment.bytes": "67108864",
    }
    bad = kohort("topic", "config", "set", "units", "segment.bytes=big")
    assert "segment.bytes: 'big' is not a size" in bad.err
