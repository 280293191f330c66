"""`kohort acl`: what is refused before anything is asked; the rest needs a broker with entries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kohort.cli.acl.commands import acl
from kohort.testing import Cluster


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(acls=True, super_users=("User:ANONYMOUS",)) as cluster:
        yield cluster.bootstrap


def run(servers: str, *args: str) -> tuple[int, str]:
    done = CliRunner().invoke(acl, [args[0], "-b", servers, *args[1:]])
    return done.exit_code, done.output


def test_add_list_and_remove(servers: str) -> None:
    code, out = run(
        servers,
        "add",
        "--principal",
        "User:alice",
        "-o",
        "read",
        "-o",
        "write",
        "--topic",
        "team-*",
    )
    assert code == 0, out
    assert out.splitlines() == [
        "added: allow User:alice from * to read topic team-*",
        "added: allow User:alice from * to write topic team-*",
    ]
    code, out = run(
        servers, "add", "--deny", "--principal", "User:bob", "-o", "read", "--group", "g"
    )
    assert code == 0, out
    _, out = run(servers, "list", "--topic", "team-a", "--output", "csv")
    assert out.splitlines() == [
        "permission,principal,host,operation,resource,name,pattern",
        "allow,User:alice,*,read,topic,team-,prefixed",
        "allow,User:alice,*,write,topic,team-,prefixed",
    ]
    _, out = run(servers, "remove", "--principal", "User:alice", "-o", "read")
    assert "would remove: allow User:alice from * to read topic team-*" in out
    assert "--execute" in out
    _, out = run(servers, "remove", "--principal", "User:alice", "-o", "read", "--execute")
    assert out == "removed: allow User:alice from * to read topic team-*\n"
    _, out = run(servers, "list", "--output", "csv")
    assert [line.split(",")[3:6] for line in out.splitlines()[1:]] == [
        ["write", "topic", "team-"],
        ["read", "group", "g"],
    ]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("add", "--topic", "t"), "say who and what"),
        (("add", "--principal", "User:a", "-o", "read"), "name one of"),
        (
            ("add", "--principal", "User:a", "-o", "read", "--topic", "t", "--group", "g"),
            "name one of",
        ),
        (("add", "--principal", "alice", "-o", "read", "--topic", "t"), "TYPE:NAME"),
        (("add", "--principal", "User:a", "-o", "create", "--group", "g"), "has no operation"),
        (("remove",), "say which entries are meant"),
    ],
)
def test_what_makes_no_sense_is_refused_here(servers: str, args: tuple[str, ...], why: str) -> None:
    code, out = run(servers, *args)
    assert code == 2
    assert why in out


def test_the_name_of_a_principal_does_not_drive_the_terminal(servers: str) -> None:
    who = ("--principal", "User:\x1b]0;title\x07", "-o", "read", "--topic", "t")
    for command in (("add",), ("remove",), ("remove", "--execute")):
        code, out = run(servers, command[0], *who, *command[1:])
        assert code == 0, out
        assert r"User:\x1b]0;title\x07" in out
        assert "\x1b" not in out
