"""The table of what is visible to whom, asked of Apache Kafka with its StandardAuthorizer, and its
answers beside ours, field by field (issue F.8 to F.10)."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest

from tests.clusters import Embedded
from tests.interop.asking import Flat, World
from tests.interop.java import ApacheKafka, free_port, needs_java
from tests.security.access import Hiding, group, table, topic, visible

pytestmark = [needs_java, pytest.mark.slow, pytest.mark.java]
USERS = {"root": "root-secret", "alice": "alice-secret"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OTHERWISE = (
    ("ApiVersions.* *", "*", "compared by test_same_answers"),
    ("DescribeQuorum.* *", "*", "there is no metadata log here"),
    ("DescribeLogDirs.* *", "*_size", "sizes of what each has written"),
    ("DescribeLogDirs.* *", "*_bytes", "the volume is not looked at in memory"),
    ("CreateTopics.* *", "*configs[*", "other defaults (differences.md)"),
    ("CreateTopics.7 *", "*topic_id", "a topic that is not made has no id"),
    ("*", "*epoch", "counters of KIP-848 (differences.md)"),
    ("*", "*error_message", "texts"),
    ("DescribeUserScramCredentials.0 * no rights", "results*", "Kafka names a user '' as refused"),
)


class GuardedKafka(ApacheKafka):
    """Apache Kafka with a listener for users who may not do everything."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()

    def _settings(self) -> dict[str, Any]:
        base, name = super()._settings(), "SASL_PLAINTEXT"
        users = " ".join(f'user_{user}="{word}"' for user, word in USERS.items())
        listener = f"{name}://127.0.0.1:{self.port}"
        return {
            **base,
            "listeners": f"{base['listeners']},{listener}",
            "advertised.listeners": f"{base['advertised.listeners']},{listener}",
            "listener.security.protocol.map": (
                f"{base['listener.security.protocol.map']},{name}:{name}"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{PLAIN} required username="x" password="y" {users};'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:root",
        }


def answers_of(bootstrap: str) -> tuple[dict[str, Flat], dict[str, Flat]]:
    """Its answers, and what expressions stand for."""
    root, alice = (World(bootstrap, login) for login in USERS.items())
    hiding = Hiding(root, alice)
    try:
        answers = {**hiding.answers(), **hiding.answers_to_strangers()}
        read = group("READ", "calice")
        expressions = {
            f"{expression} {len(rights)}": hiding.read_by(expression, (read, *rights))
            for expression in (".*", "the.*", "mi.*")
            for rights in ((), (topic("DESCRIBE"),))
        }
    finally:
        root.close()
        alice.close()
    return answers, expressions


@pytest.fixture(scope="module")
def theirs() -> Any:
    with GuardedKafka() as kafka:
        return answers_of(f"127.0.0.1:{kafka.port}")


@pytest.fixture(scope="module")
def ours() -> Any:
    with Embedded(
        security_protocol="SASL_PLAINTEXT",
        users=USERS,
        acls=True,
        super_users=("User:root",),
        sasl_enabled_mechanisms=("PLAIN",),
        offsets_topic_num_partitions=3,
        transaction_state_log_num_partitions=3,
    ) as cluster:
        return answers_of(cluster.bootstrap)


def test_the_table_is_what_apache_kafka_shows(theirs: Any) -> None:
    assert {what: visible(answer) for what, answer in theirs[0].items()} == table()


def test_expressions_stand_for_the_same_topics(theirs: Any, ours: Any) -> None:
    assert ours[1] == theirs[1]
    assert any(theirs[1].values())


def test_every_field_is_the_same_or_its_difference_is_listed(theirs: Any, ours: Any) -> None:
    used: set[int] = set()
    unlisted: list[str] = []
    assert ours[0].keys() == theirs[0].keys()
    for what, one in theirs[0].items():
        other = ours[0][what]
        for place in sorted(one.keys() | other.keys()):
            values = one.get(place, "-"), other.get(place, "-")
            if values[0] == values[1]:
                continue
            rows = [
                number
                for number, (request, field, _) in enumerate(OTHERWISE)
                if fnmatch(what, request) and fnmatch(place, field.replace("[", "[[]"))
            ]
            used.update(rows[:1])
            if not rows:
                unlisted.append(f"{what}\n    {place}: {values[0]} | {values[1]}")
    assert not unlisted, "\n".join(unlisted[:40])
    assert used == set(range(len(OTHERWISE))), "listed, and no longer true"
