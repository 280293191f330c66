"""Issue 4 and 5, security, between Apache Kafka and us: our clients log in to its broker, and its
clients to ours. `make interop` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer
from kohort.errors import AuthenticationError
from kohort.testing import Cluster
from kohort.testing.certificates import Certificates
from tests.interop.java import ApacheKafka, free_port, needs_java, tool
from tests.patience import PATIENCE_S

pytestmark = needs_java
USER, PASSWORD = "alice", "se-cret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
PLAIN_USERS = f'{PLAIN} required username="x" password="y" user_{USER}="{PASSWORD}";'


def pkcs8(pem: str, target: Path) -> Path:
    """The same key and certificates with the key in the form that Java reads."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    data = Path(pem).read_bytes()
    key = serialization.load_pem_private_key(data, None)
    chain = data[data.index(b"-----BEGIN CERTIFICATE") :]
    target.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + chain
    )
    return target


class SecuredKafka(ApacheKafka):
    """Apache Kafka with a listener for each protocol beside the open one."""

    def __init__(self, certificates: Certificates, directory: Path) -> None:
        super().__init__()
        self.certificates = certificates
        issued = certificates.broker()["ssl_certificate_location"]
        self._store = pkcs8(issued, directory / "broker.pem")
        self._secured = {name: free_port() for name in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")}

    def _settings(self) -> dict[str, Any]:
        base = super()._settings()
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self._secured.items()]
        protocols = ",".join(f"{name}:{name}" for name in self._secured)
        known = base["listener.security.protocol.map"]
        login: dict[str, Any] = {}
        for name in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{name}."
            login |= {
                f"{prefix}plain.sasl.jaas.config": PLAIN_USERS,
                f"{prefix}scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
                f"{prefix}scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
            }
        return {
            **base,
            **login,
            "listeners": ",".join([str(base["listeners"]), *listeners]),
            "advertised.listeners": ",".join([str(base["advertised.listeners"]), *listeners]),
            "listener.security.protocol.map": f"{known},{protocols}",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.ca_file,
            "ssl.client.auth": "requested",
            "connections.max.reauth.ms": 2_000,
        }

    def settings(self, protocol: str, mechanism: str | None, password: str = PASSWORD) -> Any:
        """Of a client of ours."""
        settings = {
            "bootstrap_servers": f"127.0.0.1:{self._secured[protocol]}",
            "security_protocol": protocol,
        }
        if "SSL" in protocol:
            settings["ssl_ca_location"] = self.certificates.ca_file
        if mechanism is not None:
            settings |= {
                "sasl_mechanism": mechanism,
                "sasl_username": USER,
                "sasl_password": password,
            }
        return settings


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    directory = tmp_path_factory.mktemp("secured")
    with SecuredKafka(Certificates(directory), directory) as started:
        with Admin(bootstrap_servers=started.bootstrap) as admin:
            admin.upsert_user(USER, PASSWORD)
            assert admin.describe_users() == {USER: {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
        yield started


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", None),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_our_clients_at_apache_kafka(
    kafka: SecuredKafka, protocol: str, mechanism: str | None
) -> None:
    """Produce, consume in a group, and administer."""
    own = kafka.settings(protocol, mechanism)
    topic = f"t-{protocol}-{mechanism}"
    with Admin(**own) as admin:
        admin.create_topics([topic])
    with Producer(**own) as producer:
        producer.send(topic, bytes(200_000)).result(PATIENCE_S)
    with Consumer(**own, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        records = consumer.poll(PATIENCE_S)
        assert [record.value for record in records] == [bytes(200_000)]


def test_our_client_renews_its_login_at_apache_kafka(kafka: SecuredKafka) -> None:
    """KIP-368: Kafka ends a connection whose login is over."""
    own = kafka.settings("SASL_PLAINTEXT", "SCRAM-SHA-512")
    with (
        Producer(**own) as producer,
        Consumer(**own, group_id="renews", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(["renewed"])
        got = 0
        for _ in range(25):
            producer.send("renewed", b"x").result(PATIENCE_S)
            got += len(consumer.poll(0.2))
        while got < 25:
            got += len(consumer.poll(PATIENCE_S))
    assert got == 25


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_apache_kafka_refuses_a_wrong_password(kafka: SecuredKafka, mechanism: str) -> None:
    own = kafka.settings("SASL_SSL", mechanism, password="wrong")
    with Admin(**own) as admin, pytest.raises(AuthenticationError, match="the broker says"):
        admin.list_topics()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256"])
def test_apache_kafkas_clients_at_our_broker(tmp_path: Path, mechanism: str) -> None:
    """Its console producer, consumer and ConfigCommand over SASL_SSL, renewing their logins."""
    certificates = Certificates(tmp_path)
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="{USER}" password="{PASSWORD}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={certificates.ca_file}\n"
    )
    with Cluster(
        security_protocol="SASL_SSL",
        users={USER: PASSWORD},
        connections_max_reauth_ms=1_000,
        **certificates.broker(),
    ) as cluster:
        to = ("--bootstrap-server", cluster.bootstrap)
        tool(
            "org.apache.kafka.tools.ConsoleProducer",
            *to,
            "--topic",
            "t",
            "--command-config",
            str(properties),
            stdin="one\ntwo\n",
        )
        read = tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *to,
            "--topic",
            "t",
            "--from-beginning",
            "--max-messages",
            "2",
            "--command-config",
            str(properties),
            "--timeout-ms",
            "20000",
        )
        assert read.split() == ["one", "two"]
        described = tool(
            "kafka.admin.ConfigCommand",
            *to,
            "--describe",
            "--entity-type",
            "users",
            "--entity-name",
            USER,
            "--command-config",
            str(properties),
        )
        assert "SCRAM-SHA-256=iterations=4096" in described
        # The same file serves our clients.
        text: dict[str, Any] = dict(
            line.split("=", 1) for line in properties.read_text().splitlines()
        )
        with Admin(bootstrap_servers=cluster.bootstrap, **text) as admin:
            assert admin.list_topics()
