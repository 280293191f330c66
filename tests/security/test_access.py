"""What is visible to whom, API by API and version by version, by Apache Kafka's rules (issue F.8).

`access.txt` is what Apache Kafka 4.3 shows; `tests/interop/test_access.py` asks it again.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator

import pytest

import kohort.broker.apis
from kohort.broker.apis import APIS
from kohort.broker.authorization import AUTHORIZERS
from tests.clusters import Embedded
from tests.interop.asking import Flat, World
from tests.security.access import Hiding, group, shown, table, topic, visible

USERS = {"root": "root-secret", "alice": "alice-secret"}
NAMES = {api.request.NAME.removesuffix("Request") for api in APIS.values()}


@pytest.fixture(scope="module")
def hiding() -> Iterator[Hiding]:
    cluster = Embedded(
        security_protocol="SASL_PLAINTEXT",
        users=USERS,
        acls=True,
        super_users=("User:root",),
        offsets_topic_num_partitions=3,
        transaction_state_log_num_partitions=3,
    )
    with cluster:
        root, alice = (World(cluster.bootstrap, login) for login in USERS.items())
        yield Hiding(root, alice)
        root.close()
        alice.close()


@pytest.fixture(scope="module")
def answers(hiding: Hiding) -> dict[str, Flat]:
    return {**hiding.answers(), **hiding.answers_to_strangers()}


def test_every_version_of_every_api_is_in_the_table() -> None:
    modules = {m.name for m in pkgutil.iter_modules(kohort.broker.apis.__path__)}
    served = {api.module.rpartition(".")[2] for api in APIS.values()}
    assert {name for name in modules if not name.startswith("_")} == served
    there = {what.partition(" ")[0] for what in table()}
    for api in APIS.values():
        name = api.request.NAME.removesuffix("Request")
        assert name in AUTHORIZERS
        for version in range(api.min_version, api.max_version + 1):
            assert f"{name}.{version}" in there, f"access.txt has no {name} {version}"


@pytest.mark.parametrize("api", sorted(NAMES))
def test_what_is_visible_is_what_apache_kafka_shows(answers: dict[str, Flat], api: str) -> None:
    expected = {what: seen for what, seen in table().items() if what.startswith(f"{api}.")}
    assert {
        what: visible(answer) for what, answer in answers.items() if what.startswith(f"{api}.")
    } == expected


MINE = {"assignment.topic_partitions[<id of mine>].topic_id": "<id of mine>"}


@pytest.mark.parametrize(
    ("expression", "rights", "assigned"),
    [
        (".*", (), {}),
        (".*", (topic("DESCRIBE"),), MINE),
        ("the.*", (topic("DESCRIBE"),), {}),
        ("mi.*", (topic("READ"),), MINE),
    ],
    ids=lambda value: shown(value) if isinstance(value, tuple) else None,
)
def test_an_expression_stands_for_topics_that_may_be_described(
    hiding: Hiding, answers: dict[str, Flat], expression: str, rights: tuple, assigned: Flat
) -> None:
    assert hiding.read_by(expression, (group("READ", "calice"), *rights)) == assigned
