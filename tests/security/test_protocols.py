"""Issue 4 and 5, security: our clients of every role against our broker, in every combination."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Consumer, Producer
from kohort.broker.state.failpoints import Moment
from kohort.client.common.types import TopicPartition
from kohort.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    ConnectionFailedError,
    KafkaTimeoutError,
    KohortError,
    UsageError,
)
from kohort.testing import Cluster
from kohort.testing.certificates import Certificates
from tests.patience import PATIENCE_S, until
from tests.security.conftest import PASSWORD, USER, settings

Start = Callable[..., Cluster]
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
COMBINATIONS = [
    ("SSL", None),
    *(("SASL_PLAINTEXT", mechanism) for mechanism in PASSWORDS),
    *(("SASL_SSL", mechanism) for mechanism in PASSWORDS),
]


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline
        values += [record.value for record in consumer.poll(PATIENCE_S)]
    return values


@pytest.mark.parametrize(("protocol", "mechanism"), COMBINATIONS)
def test_every_role(
    start: Start, certificates: Certificates, protocol: str, mechanism: str | None
) -> None:
    """Admin, producer, transactions, group and simple consumer, sync and async."""
    cluster = start(protocol)
    own = settings(cluster, certificates, mechanism)
    with Admin(**own) as admin:
        admin.create_topics(["t"])
    with Producer(**own) as producer:
        producer.send("t", b"plain").result(PATIENCE_S)
    with Producer(**own, transactional_id="tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", bytes(300_000))
        producer.commit_transaction()
    with Consumer(**own, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        assert read(consumer, 2) == [b"plain", bytes(300_000)]
        consumer.commit()

    async def assigned() -> bytes | None:
        async with AsyncConsumer(
            **own, group_id="s", group_protocol="consumer", auto_offset_reset="earliest"
        ) as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            records = await consumer.poll(PATIENCE_S)
            return records[0].value

    assert asyncio.run(assigned()) == b"plain"


def test_what_a_broker_knows_of_who_asks(start: Start, certificates: Certificates) -> None:
    """The principal is the user's, or the certificate's subject, mapped by rules (KIP-371)."""
    seen: list[str] = []

    def principal_of(cluster: Cluster, **own: Any) -> str:
        broker = cluster.broker
        peers = broker._endpoints[0].peers  # the one place where it stands
        until(lambda: not broker.call(lambda: len(peers)), "the end of those who asked before")
        with Admin(**own) as admin:
            admin.describe_cluster()
            return broker.call(lambda: next(iter(peers)).principal)

    by_password = start("SASL_PLAINTEXT")
    seen.append(principal_of(by_password, **settings(by_password, None, "PLAIN")))
    by_certificate = start("SSL", ssl_client_auth="required")
    shown = certificates.client("bob")
    seen.append(principal_of(by_certificate, bootstrap_servers=by_certificate.bootstrap, **shown))
    rules = "RULE:^CN=(.*?),.*$/$1/U,DEFAULT"
    mapped = start("SSL", ssl_client_auth="requested", ssl_principal_mapping_rules=rules)
    seen.append(principal_of(mapped, bootstrap_servers=mapped.bootstrap, **shown))
    without = certificates.client()
    seen.append(principal_of(mapped, bootstrap_servers=mapped.bootstrap, **without))
    assert seen[0] == f"User:{USER}"
    assert seen[1].startswith("User:CN=bob,")
    assert seen[2:] == ["User:BOB", "User:ANONYMOUS"]


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_a_refused_login_is_final(start: Start, mechanism: str) -> None:
    """Every role raises AuthenticationError at once, tries no second time, and says no secret."""
    cluster = start("SASL_PLAINTEXT")
    own = settings(cluster, None, mechanism, password="wrong-secret")

    def produced() -> None:
        with Producer(**own) as producer:
            producer.send("t", b"x").result(PATIENCE_S)

    def asked() -> None:
        with Admin(**own) as admin:
            admin.list_topics()

    def consumed() -> None:
        with Consumer(**own, group_id="g") as consumer:
            consumer.subscribe(["t"])
            consumer.poll(PATIENCE_S)

    async def awaited() -> None:
        async with AsyncConsumer(**own) as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            await consumer.poll(PATIENCE_S)

    for use in (produced, asked, consumed, lambda: asyncio.run(awaited())):
        begun = time.monotonic()
        with pytest.raises(AuthenticationError) as caught:
            use()
        assert time.monotonic() - begun < 50, "less than any time-out: it is told at once"
        error = caught.value
        assert not error.retriable
        assert (error.mechanism, error.user) == (mechanism, USER)
        assert error.broker
        assert error.reason
        assert error.advice
        assert "wrong-secret" not in str(error) + repr(error)
    with Admin(**own) as admin:
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                admin.list_topics()
        logins = [e for e in cluster.requests if e.api == "SaslAuthenticate"]
        before = len(logins)
        with pytest.raises(AuthenticationError):
            admin.list_topics()
        assert len([e for e in cluster.requests if e.api == "SaslAuthenticate"]) == before


def test_what_waits_fails_with_the_login(start: Start) -> None:
    """A flush does not wait for its time-out, and a transaction is dead."""
    cluster = start("SASL_PLAINTEXT")
    own = settings(cluster, None, "SCRAM-SHA-256", password="wrong")
    with Producer(**own, transactional_id="tx") as producer, pytest.raises(AuthenticationError):
        producer.init_transactions()
    with Consumer(**own, group_id="g") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        with pytest.raises(KohortError):
            consumer.commit({TopicPartition("t", 0): 1})
        with pytest.raises(AuthenticationError):
            consumer.poll(PATIENCE_S)


def test_a_mechanism_that_is_not_enabled(start: Start) -> None:
    cluster = start("SASL_PLAINTEXT", sasl_enabled_mechanisms=("SCRAM-SHA-512",))
    with (
        Admin(**settings(cluster, None, "PLAIN")) as admin,
        pytest.raises(AuthenticationError, match="the broker has SCRAM-SHA-512 only"),
    ):
        admin.list_topics()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_without_security_is_told_what_is_missing(start: Start, protocol: str) -> None:
    cluster = start(protocol)
    with Admin(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=300) as admin:

        def setting_is_named() -> bool:
            """On a slow machine the time may be over before the broker has refused anything."""
            with pytest.raises(KohortError) as caught:
                admin.list_topics()
            return "security_protocol" in str(caught.value)

        until(setting_is_named, "the setting that is wrong")


def test_a_client_that_wants_more_than_there_is(certificates: Certificates) -> None:
    """TLS and SASL where the broker has neither."""
    with Cluster() as cluster:
        tls = {**certificates.client(), "bootstrap_servers": cluster.bootstrap}
        with (
            Admin(**tls, default_api_timeout_ms=500) as admin,
            pytest.raises((AuthenticationError, ConnectionFailedError, KafkaTimeoutError)),
        ):
            admin.list_topics()
        sasl = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "a",
            "sasl_password": "b",
        }
        with (
            Admin(sasl, bootstrap_servers=cluster.bootstrap) as admin,
            pytest.raises(AuthenticationError, match="ILLEGAL_SASL_STATE"),
        ):
            admin.list_topics()


def test_a_broker_that_is_not_believed(start: Start, tmp_path: Any) -> None:
    cluster = start("SASL_SSL")
    own = settings(cluster, Certificates(tmp_path), "PLAIN")
    with Admin(**own) as admin, pytest.raises(AuthenticationError, match="ssl_ca_location"):
        admin.list_topics()


def test_connections_come_back_with_a_login(start: Start) -> None:
    """Reconnecting logs in again, and goes by the users that there are then."""
    cluster = start("SASL_PLAINTEXT")
    own = settings(cluster, None, "SCRAM-SHA-256")
    with Producer(**own) as producer:
        producer.send("t", b"1").result(PATIENCE_S)
        cluster.restart()
        producer.send("t", b"2").result(PATIENCE_S)
        cluster.restart(sasl_users=(f"{USER}:another",))
        with pytest.raises(AuthenticationError):
            producer.send("t", b"3").result(PATIENCE_S)


def test_a_login_that_ends_is_renewed_over_the_same_connection(start: Start) -> None:
    """KIP-368, on both sides: nothing is lost, nothing is asked in between."""
    cluster = start("SASL_PLAINTEXT", connections_max_reauth_ms=120)
    own = settings(cluster, None, "SCRAM-SHA-512")
    with (
        Producer(**own) as producer,
        Consumer(**own, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(["t"])
        sent, got = 0, list[bytes | None]()

        def renewed() -> bool:
            """Every connection that there is has logged in twice, or more."""
            opened = cluster.broker.call(lambda: len(cluster.broker._endpoints[0].peers))
            handshakes = [e for e in cluster.requests if e.api == "SaslHandshake"]
            return bool(got) and len(handshakes) >= 2 * opened

        end = time.monotonic() + PATIENCE_S
        while not renewed():
            assert time.monotonic() < end
            producer.send("t", b"%d" % sent).result(PATIENCE_S)
            sent += 1
            got += [record.value for record in consumer.poll(0.05)]
        got += read(consumer, sent - len(got))
        assert got == [b"%d" % n for n in range(sent)]


def test_users_of_the_admin_client(start: Start) -> None:
    """KIP-554: make, list, use, change and remove; the next login goes by it."""
    cluster = start("SASL_PLAINTEXT")
    own = settings(cluster, None, "PLAIN")
    bobs = {**own, "sasl_username": "bob", "sasl_password": "b"}
    with Admin(**own) as admin:
        assert admin.describe_users() == {USER: {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
        admin.upsert_user("bob", "b", iterations=5_000, mechanisms=["SCRAM-SHA-256"])
        assert admin.describe_users(["bob"]) == {"bob": {"SCRAM-SHA-256": 5_000}}
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            with Admin(bobs, sasl_mechanism=mechanism) as other:
                other.describe_cluster()
        with (
            Admin(bobs, sasl_mechanism="SCRAM-SHA-512") as other,
            pytest.raises(AuthenticationError),
        ):
            other.describe_cluster()
        admin.upsert_user("bob", "c")
        with Admin(**bobs) as other, pytest.raises(AuthenticationError):
            other.describe_cluster()
        admin.delete_user("bob")
        with pytest.raises(BrokerError, match="RESOURCE_NOT_FOUND"):
            admin.describe_users(["bob"])
        with pytest.raises(BrokerError, match="RESOURCE_NOT_FOUND"):
            admin.delete_user("bob")
        with pytest.raises(BrokerError, match="UNACCEPTABLE_CREDENTIAL"):
            admin.upsert_user("bob", "c", iterations=4_095)
        for name, word in (("", "x"), ("bob", ""), ("b\u00adb", "x"), ("bob", "\u2168")):
            with pytest.raises(ConfigError if name and word else UsageError) as caught:
                admin.upsert_user(name, word)
            assert "\u2168" not in str(caught.value)


def test_no_secret_is_in_what_is_shown(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Configurations, requests as tests see them, logs of both sides."""
    caplog.set_level("DEBUG")
    cluster = start("SASL_PLAINTEXT")
    own = settings(cluster, None, "PLAIN")
    with cluster.tap(Moment.RECEIVED, lambda e: True) as tap, Admin(**own) as admin:
        admin.describe_cluster()
        admin.upsert_user("bob", "hidden-word")
        shown = [repr(admin.config), repr(cluster.config), str(tap)]
        with Admin(own, sasl_password="hidden-word") as other, pytest.raises(AuthenticationError):
            other.describe_cluster()
        shown += [repr(entry) for entry in cluster.requests]
    shown.append(caplog.text)
    assert "authentication by PLAIN" in caplog.text
    for secret in (PASSWORD, "hidden-word"):
        assert not [text for text in shown if secret in text]


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_the_child_of_a_fork_leaves_the_parents_stream_alone(
    start: Start, certificates: Certificates
) -> None:
    """TLS would say goodbye on it when the child ends."""
    cluster = start("SASL_SSL")
    with Producer(**settings(cluster, certificates, "PLAIN")) as producer:
        producer.send("t", b"before").result(PATIENCE_S)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        logins = len([e for e in cluster.requests if e.api == "SaslAuthenticate"])
        producer.send("t", b"after").result(PATIENCE_S)
        assert len([e for e in cluster.requests if e.api == "SaslAuthenticate"]) == logins


def test_what_a_user_may_do_goes_by_who_logged_in(start: Start) -> None:
    """Logins and access control together: the principal of a login is the one of its rights."""
    cluster = start(
        "SASL_PLAINTEXT",
        users={USER: PASSWORD, "bob": "b"},
        acls=True,
        super_users=(f"User:{USER}",),
    )
    own = settings(cluster, None, "SCRAM-SHA-512")
    bobs = {**own, "sasl_username": "bob", "sasl_password": "b"}
    with Admin(**own) as admin:
        admin.create_topics(["t"])
    with Admin(**bobs) as admin:
        for refused in (
            lambda: admin.create_topics(["u"]),
            lambda: admin.upsert_user("bob", "c"),
            admin.describe_users,
        ):
            with pytest.raises(BrokerError, match="AUTHORIZATION_FAILED"):
                refused()
