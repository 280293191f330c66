"""Who may do what, decided by entries alone: Kafka's StandardAuthorizer is the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    fault_of,
)
from kohort.broker.security.authorizer import REMEMBERED_MAX, Authorizer

OP, R = Operation, Resource
ALICE, BOB, HOST = "User:alice", "User:bob", "10.0.0.1"


def allow(
    operation: Operation,
    name: str,
    *,
    resource: Resource = R.TOPIC,
    pattern: Pattern = Pattern.LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, Permission.ALLOW)


def deny(operation: Operation, name: str, **more) -> Acl:
    return allow(operation, name, **more)._replace(permission=Permission.DENY)


def test_what_no_entry_applies_to_is_closed_unless_told_otherwise() -> None:
    asked = (ALICE, HOST, OP.READ, R.TOPIC, "orders")
    assert not Authorizer().may(*asked)
    assert Authorizer(open_without_entries=True).may(*asked)
    of_another = [allow(OP.READ, "orders", principal=BOB)]
    assert not Authorizer(of_another, open_without_entries=True).may(*asked)


def test_super_users_may_do_everything_even_what_is_denied() -> None:
    authorizer = Authorizer([deny(OP.ALL, "*", principal="User:*")], super_users=["User:root"])
    assert authorizer.may("User:root", HOST, OP.DELETE, R.TOPIC, "orders")
    assert authorizer.may_any("User:root", HOST, OP.WRITE, R.TOPIC)


@pytest.mark.parametrize("granted", [OP.READ, OP.WRITE, OP.DELETE, OP.ALTER, OP.ALL])
def test_these_allow_to_describe(granted: Operation) -> None:
    assert Authorizer([allow(granted, "t")]).may(ALICE, HOST, OP.DESCRIBE, R.TOPIC, "t")


def test_alter_configs_allows_describe_configs_and_not_the_other_way_round() -> None:
    assert Authorizer([allow(OP.ALTER_CONFIGS, "t")]).may(
        ALICE, HOST, OP.DESCRIBE_CONFIGS, R.TOPIC, "t"
    )
    assert not Authorizer([allow(OP.DESCRIBE_CONFIGS, "t")]).may(
        ALICE, HOST, OP.ALTER_CONFIGS, R.TOPIC, "t"
    )
    assert not Authorizer([allow(OP.DESCRIBE, "t")]).may(ALICE, HOST, OP.READ, R.TOPIC, "t")


def test_a_denial_decides_and_denies_what_it_names_alone() -> None:
    authorizer = Authorizer([allow(OP.ALL, "*"), deny(OP.DESCRIBE, "t")])
    assert authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "t")
    assert not authorizer.may(ALICE, HOST, OP.DESCRIBE, R.TOPIC, "t")
    everything = Authorizer([allow(OP.ALL, "*"), deny(OP.ALL, "t")])
    assert not everything.may(ALICE, HOST, OP.READ, R.TOPIC, "t")


def test_prefixes_hosts_and_everybody() -> None:
    authorizer = Authorizer(
        [
            allow(OP.READ, "team-", pattern=Pattern.PREFIXED),
            allow(OP.WRITE, "audit", principal="User:*", host=HOST),
        ]
    )
    assert authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "team-a")
    assert not authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "tea")
    assert not authorizer.may(ALICE, HOST, OP.READ, R.GROUP, "team-a")
    assert authorizer.may(BOB, HOST, OP.WRITE, R.TOPIC, "audit")
    assert not authorizer.may(BOB, "10.0.0.2", OP.WRITE, R.TOPIC, "audit")


def test_an_entry_for_an_ipv4_address_as_sockets_of_both_families_have_it() -> None:
    """It was the only one that worked while the broker knew such clients by it."""
    authorizer = Authorizer([allow(OP.READ, "t"), deny(OP.READ, "t", host=f"::ffff:{HOST}")])
    assert not authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "t")
    assert authorizer.may(ALICE, "10.0.0.2", OP.READ, R.TOPIC, "t")


def test_decisions_are_forgotten_when_an_entry_changes_and_bounded() -> None:
    authorizer = Authorizer([allow(OP.READ, "t")])
    assert authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "t")
    authorizer.replace([])
    assert not authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "t")
    for number in range(REMEMBERED_MAX + 5):
        authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, str(number))
    assert len(authorizer._decided) <= REMEMBERED_MAX


def test_long_names_do_not_fill_the_memory() -> None:
    """A stranger may ask for 10,000 names of 32 KB."""
    authorizer = Authorizer([allow(OP.READ, "t", pattern=Pattern.PREFIXED)])
    for _ in range(2):
        assert authorizer.may(ALICE, HOST, OP.READ, R.TOPIC, "t" * 32_000)
    assert authorizer._decided == {}


@pytest.mark.parametrize(
    ("acls", "may"),
    [
        ([], False),
        ([allow(OP.WRITE, "t")], True),
        ([allow(OP.READ, "t")], False),
        ([allow(OP.WRITE, "t"), deny(OP.WRITE, "t")], False),
        ([allow(OP.WRITE, "t"), deny(OP.WRITE, "*")], False),
        ([allow(OP.WRITE, "*"), deny(OP.WRITE, "t")], True),
        ([allow(OP.WRITE, "ab", pattern=Pattern.PREFIXED), deny(OP.WRITE, "ab")], True),
        (
            [allow(OP.WRITE, "abc"), deny(OP.WRITE, "ab", pattern=Pattern.PREFIXED)],
            False,
        ),
        (
            [
                allow(OP.WRITE, "abc", pattern=Pattern.PREFIXED),
                deny(OP.ALL, "ab", pattern=Pattern.PREFIXED),
            ],
            False,
        ),
        (
            [allow(OP.WRITE, "a", pattern=Pattern.PREFIXED), deny(OP.WRITE, "ab")],
            True,
        ),
        ([allow(OP.WRITE, "t", principal=BOB)], False),
    ],
)
def test_whether_there_is_any_topic_that_may_be_written(acls: list[Acl], may: bool) -> None:
    """KIP-679: an idempotent producer needs one topic that it may write, and no more."""
    assert Authorizer(acls).may_any(ALICE, HOST, OP.WRITE, R.TOPIC) is may


_names = st.sampled_from(["a", "ab", "abc", "b", "*"])
_acls = st.builds(
    Acl,
    st.just(R.TOPIC),
    _names,
    st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from(["*", HOST]),
    st.sampled_from([OP.ALL, OP.READ, OP.WRITE, OP.DESCRIBE]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


@given(
    st.lists(_acls, max_size=6), _acls, _names, st.sampled_from([OP.READ, OP.WRITE, OP.DESCRIBE])
)
def test_more_denials_never_allow_more_and_more_allowances_never_less(
    acls: list[Acl], extra: Acl, name: str, operation: Operation
) -> None:
    asked = (ALICE, HOST, operation, R.TOPIC, name)
    before, after = Authorizer(acls).may(*asked), Authorizer([*acls, extra]).may(*asked)
    if extra.permission is Permission.DENY:
        assert before or not after
    else:
        assert after or not before
    assert Authorizer(list(reversed(acls))).may(*asked) is before


@given(st.lists(_acls, max_size=6))
def test_if_some_topic_may_be_written_there_may_be_any(acls: list[Acl]) -> None:
    authorizer = Authorizer(acls)
    some = any(
        authorizer.may(ALICE, HOST, OP.WRITE, R.TOPIC, name)
        for name in ("a", "ab", "abc", "abcd", "b", "zz")
    )
    assert not some or authorizer.may_any(ALICE, HOST, OP.WRITE, R.TOPIC)


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        (AclFilter(), True),
        (AclFilter(resource=R.GROUP), False),
        (AclFilter(name="team-"), True),
        (AclFilter(name="team-a"), False),
        (AclFilter(name="team-a", pattern=Pattern.MATCH), True),
        (AclFilter(name="tea", pattern=Pattern.MATCH), False),
        (AclFilter(pattern=Pattern.LITERAL), False),
        (AclFilter(principal=ALICE), True),
        (AclFilter(principal=BOB), False),
        (AclFilter(operation=OP.READ, permission=Permission.ALLOW), True),
        (AclFilter(operation=OP.ALL), False),
        (AclFilter(host="*"), True),
        (AclFilter(host=HOST), False),
    ],
)
def test_filters(wanted: AclFilter, met: bool) -> None:
    assert wanted.meets(allow(OP.READ, "team-", pattern=Pattern.PREFIXED)) is met


@pytest.mark.parametrize(
    ("acl", "why"),
    [
        (allow(OP.READ, "t", resource=R.USER), "not a resource"),
        (allow(OP.READ, "t", pattern=Pattern.MATCH), "LITERAL or PREFIXED"),
        (allow(OP.CLUSTER_ACTION, "t"), "has no operation"),
        (allow(OP.ANY, "t"), "has no operation"),
        (allow(OP.READ, "t")._replace(permission=Permission.ANY), "ALLOW or DENY"),
        (allow(OP.READ, ""), "name of the resource is empty"),
        (allow(OP.ALTER, "mine", resource=R.CLUSTER), "called 'kafka-cluster'"),
        (allow(OP.READ, "t", principal="alice"), "TYPE:NAME"),
        (allow(OP.READ, "t", host=""), "host is empty"),
    ],
)
def test_what_makes_no_sense_is_refused(acl: Acl, why: str) -> None:
    assert why in (fault_of(acl) or "")


def test_every_guarded_resource_takes_its_operations() -> None:
    for resource, operations in OPERATIONS.items():
        name = CLUSTER_NAME if resource is R.CLUSTER else "x"
        for operation in {*operations, OP.ALL}:
            assert fault_of(allow(operation, name, resource=resource)) is None
    assert str(allow(OP.READ, "a", pattern=Pattern.PREFIXED)) == (
        "allow User:alice from * to read topic a*"
    )
