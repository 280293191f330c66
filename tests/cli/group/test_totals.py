"""`kohort group lag --total`: the console's own figures on the command line (spec 8.1)."""

from __future__ import annotations

from kohort import Admin, Producer, TopicPartition
from tests.cli.conftest import Run
from tests.clusters import Cluster


def test_a_line_for_each_group(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "totals", "-p", "2")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(6):
            producer.send("totals", b"v", None, n % 2, 1_000_000)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("late", {TopicPartition("totals", n): 1 for n in (0, 1)})
        admin.alter_group_offsets("done", {TopicPartition("totals", n): 3 for n in (0, 1)})
    told = kohort("group", "lag", "late", "done", "--total", "--sort", "lag")
    assert told.lines[0].split() == [
        "GROUP",
        "STATE",
        "MEMBERS",
        "PARTITIONS",
        "LAG",
        "OLDEST-UNREAD",
    ]
    assert told.lines[1].split()[:5] == ["late", "Empty", "0", "2", "4"]
    assert told.lines[2].split() == ["done", "Empty", "0", "2", "0", "0ms"]
    rows = kohort("group", "lag", "late", "--total", "--for", "1ms", "-o", "json").json["rows"]
    assert rows[0]["lag"] == 4
    assert rows[0]["oldest_unread"] > 1_000_000_000_000
    assert rows[0]["health"] == "waiting"
    assert "--total" in kohort("group", "lag", "late", "--for", "1s").err
