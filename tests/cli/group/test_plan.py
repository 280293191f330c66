"""`kohort group plan`: what an assignor would do, for groups made up and for live ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort import Consumer
from kohort.group.assignors import WeightedAssignor
from kohort.testing import Cluster
from tests.cli.conftest import Run


def test_spec_3_3_from_the_command_line(bare: Run) -> None:
    """Spec 3.3, sticky: C1 keeps two of five and gets what C0 had; nothing else moves."""
    ran = bare(
        "group",
        "plan",
        "--assignor",
        "sticky",
        "--topics",
        "t0:1,t1:2,t2:3",
        "--members",
        "C0:topics=t0,C1:topics=t0+t1,C2:topics=t0+t1+t2",
        "--without",
        "C0",
        "-o",
        "json",
    )
    assert ran.code == 0, ran.err
    found = ran.json
    assert [row["assignment"] for row in found["members"]] == ["t0(0) t1(0-1)", "t2(0-2)"]
    assert [(row["kept"], row["gained"], row["lost"]) for row in found["members"]] == [
        (2, 1, 0),
        (3, 0, 0),
    ]
    assert found["moves"] == [
        {"topic": "t0", "partition": 0, "from": "C0", "to": "C1", "needed": True}
    ]
    assert found["balance"] == {"min": 3, "max": 3, "mean": 3.0, "stddev": 0.0}
    assert found["racks"] is None


def test_a_fresh_group_as_a_table(bare: Run) -> None:
    out = bare("group", "plan", "--assignor", "range", "--members", "3", "--topics", "a:6,b:4").out
    head, first, *_ = out.splitlines()
    assert head.split() == ["MEMBER", "PARTITIONS", "ASSIGNMENT"]
    assert first.split() == ["m1", "4", "a(0-1)", "b(0-1)"]
    assert "range: 3 to 4 partitions a member, mean 3.33, standard deviation 0.47" in out
    assert "moves" not in out


def test_racks_and_weights(bare: Run) -> None:
    ran = bare(
        "group",
        "plan",
        "--assignor",
        "rack-aware",
        "--members",
        "a:rack=east,b:rack=west",
        "--topics",
        "t:8",
        "--racks",
        "east,west",
    )
    assert "racks: 8 of 8 partitions have a replica where their member is, 8 their leader" in (
        ran.out
    )
    ran = bare(
        "group",
        "plan",
        "--assignor",
        "weighted",
        "--members",
        "a:weight=3,b",
        "--topics",
        "t:8",
        "--with",
        "c:weight=4",
        "-o",
        "csv",
    )
    assert ran.lines[0] == "member,rack,weight,partitions,kept,gained,lost,assignment"
    assert [line.split(",")[:7] for line in ran.lines[1:]] == [
        ["a", "", "3", "3", "3", "0", "3"],
        ["b", "", "1", "1", "1", "0", "1"],
        ["c", "", "4", "4", "0", "4", "0"],
    ]


def test_server_side_assignors(bare: Run) -> None:
    """`uniform` by name; `range` as the broker's, which knows no racks."""
    ran = bare("group", "plan", "--assignor", "uniform", "--members", "a,b", "--topics", "t:3")
    assert "uniform: 1 to 2 partitions a member" in ran.out
    made = ["group", "plan", "--assignor", "range", "--topics", "t:4", "--racks", "x,y"]
    members = ["--members", "a:rack=y,b:rack=x", "-o", "json"]
    with_racks = bare(*made, *members).json
    without = bare(*made, *members, "--server-side").json
    assert [row["assignment"] for row in with_racks["members"]] == ["t(1,3)", "t(0,2)"]
    assert [row["assignment"] for row in without["members"]] == ["t(0-1)", "t(2-3)"]


MINE = '''
from kohort import Assignor, Plan

class First(Assignor):
    """Everything to the first in order."""
    name = "first"
    def assign(self, group):
        first = group.in_order()[0]
        return Plan({first.member_id: {t: range(v.partitions) for t, v in group.topics.items()}})

class Nothing(Assignor):
    name = "nothing"
    def assign(self, group):
        return Plan({})
'''


def test_ones_own_by_module_and_class(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the working directory; a plan that breaks the contract is refused by rule."""
    (tmp_path / "plan_assignors.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made = ["--members", "a,b", "--topics", "t:3"]
    assert "t(0-2)" in bare("group", "plan", "--assignor", "plan_assignors:First", *made).out
    ran = bare("group", "plan", "--assignor", "plan_assignors:Nothing", *made)
    assert ran.code == 1
    assert "nobody gets 't' partitions [0, 1, 2]" in ran.err
    ran = bare("group", "plan", "--assignor", "plan_assignors:Missing", *made)
    assert ran.code == 2
    assert "AttributeError" in ran.err


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--assignor", "range"], "say --group, or all of"),
        (["--group", "g", "--members", "a"], "--group reads members and topics"),
        (["--assignor", "range", "--members", "a:wait=3", "--topics", "t:1"], "a member is NAME["),
        (["--assignor", "range", "--members", "a", "--topics", "t"], "a topic is NAME:PARTITIONS"),
        (["--assignor", "rangy", "--members", "a", "--topics", "t:1"], "did you mean 'range'"),
        (
            ["--assignor", "range", "--members", "a,b", "--topics", "t:1", "--without", "c"],
            "nobody in the group is 'c'; there are: a, b",
        ),
        (
            ["--assignor", "range", "--members", "a", "--topics", "t:1", "--with", "a"],
            "'a' is in the group already",
        ),
        (
            ["--assignor", "range", "--members", "a:weight=2", "--topics", "t:1"],
            "takes nothing behind a colon",
        ),
        (["--assignor", "range", "--members", "0", "--topics", "t:1"], "1 to 100,000 members"),
    ],
)
def test_what_is_refused(bare: Run, args: list[str], complaint: str) -> None:
    ran = bare("group", "plan", *args)
    assert ran.code == 2
    assert complaint in ran.err


def test_a_live_group(kohort: Run, cluster: Cluster) -> None:
    """Members, topics and assignments from the cluster; nothing there is changed."""
    kohort("topic", "create", "planned", "-p", "6")
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "group_id": "planner"}
    with Consumer(
        **settings, client_id="one", partition_assignment_strategy=WeightedAssignor(weight=2)
    ) as one:
        one.subscribe(["planned"])
        while len(one.assignment()) < 6:
            one.poll(0.2)
        found = kohort("group", "plan", "--group", "planner", "-o", "json").json
        assert found["assignor"] == "weighted"
        [row] = found["members"]
        assert (row["weight"], row["partitions"], row["kept"]) == (2, 6, 6)
        assert found["moves"] == []

        ran = kohort("group", "plan", "--group", "planner", "--with", "two", "-o", "json")
        assert [row["partitions"] for row in ran.json["members"]] == [4, 2]
        assert len(ran.json["moves"]) == 2

        ran = kohort(
            "group", "plan", "--group", "planner", "--assignor", "uniform", "--with", "two,three"
        )
        assert "uniform: 2 to 2 partitions a member" in ran.out
        assert "moves: 4 partitions (4 between members that stay)" in ran.out

        ran = kohort(
            "group", "plan", "--group", "planner", "--without", "one", "--with", "two", "-o", "json"
        )
        assert all(move["needed"] for move in ran.json["moves"])
        assert len(one.assignment()) == 6
    gone = kohort("group", "plan", "--group", "planer")
    assert gone.code == 1
    assert "Did you mean 'planner'?" in gone.err


def test_an_empty_live_group(kohort: Run, cluster: Cluster) -> None:
    """It has no assignor and no topics of its own: both must be said."""
    kohort("topic", "create", "later", "-p", "4")
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="idle") as one:
        one.subscribe(["later"])
        while not one.assignment():
            one.poll(0.2)
        one.commit({("later", 0): 0})
    ran = kohort("group", "plan", "--group", "idle")
    assert ran.code == 2
    assert "choose one (--assignor)" in ran.err
    ran = kohort(
        "group",
        "plan",
        "--group",
        "idle",
        "--assignor",
        "range",
        "--with",
        "a:topics=later,b:topics=later",
        "-o",
        "json",
    )
    assert [row["assignment"] for row in ran.json["members"]] == ["later(0-1)", "later(2-3)"]


def test_a_live_group_of_the_consumer_protocol(kohort: Run, cluster: Cluster) -> None:
    """KIP-848: the broker's assignor on the members' targets; a client's can be tried as well."""
    kohort("topic", "create", "modern", "-p", "6")
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="modern", group_protocol="consumer"
    ) as one:
        one.subscribe(["modern"])
        while len(one.assignment()) < 6:
            one.poll(0.2)
        found = kohort("group", "plan", "--group", "modern", "--with", "two", "-o", "json").json
        assert found["assignor"] == "uniform"
        assert [(row["partitions"], row["kept"]) for row in found["members"]] == [(3, 3), (3, 0)]
        ran = kohort("group", "plan", "--group", "modern", "--assignor", "sticky", "--with", "two")
        assert "sticky: 3 to 3 partitions a member" in ran.out
        assert "moves: 3 partitions (3 between members that stay)" in ran.out


def test_a_live_group_over_racks(bare: Run) -> None:
    """`rack-aware` over real nodes: each member reads what is led where it is."""
    with Cluster(nodes=2, broker_rack=("east", "west")) as two:
        where = ("-b", two.bootstrap)
        bare("topic", "create", "spread", "-p", "6", *where)
        settings: dict[str, Any] = {
            "bootstrap_servers": two.bootstrap,
            "group_id": "racks",
            "partition_assignment_strategy": "rack-aware",
        }
        with Consumer(**settings, client_rack="west") as one:
            one.subscribe(["spread"])
            while len(one.assignment()) < 6:
                one.poll(0.2)
            ran = bare(
                "group", "plan", "--group", "racks", "--with", "two:rack=east", "-o", "json", *where
            )
            assert ran.json["racks"] == {"partitions": 6, "replica": 6, "leader": 6}
            with Consumer(**settings, client_rack="east") as two_:
                two_.subscribe(["spread"])
                while (len(one.assignment()), len(two_.assignment())) != (3, 3):
                    one.poll(0.1)
                    two_.poll(0.1)
                ran = bare("group", "plan", "--group", "racks", "-o", "json", *where)
                assert ran.json["racks"] == {"partitions": 6, "replica": 6, "leader": 6}
                assert ran.json["moves"] == []
