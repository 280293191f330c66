"""Issue 5, security: librdkafka, aiokafka and kafka-python log in to our broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from kohort.testing import Cluster
from kohort.testing.certificates import Certificates
from tests.patience import PATIENCE_S, until
from tests.peers import PEERS
from tests.security.conftest import PASSWORD, USER

pytestmark = PEERS
Start = Callable[..., Cluster]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
def cluster(start: Start) -> Cluster:
    made = start("SASL_SSL", ssl_client_auth="requested")
    made.create_topic("t")
    return made


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(cluster: Cluster, certificates: Certificates, mechanism: str) -> None:
    """Also renewing its login (KIP-368), and users by its admin client (KIP-554)."""
    confluent = pytest.importorskip("confluent_kafka")
    admin = pytest.importorskip("confluent_kafka.admin")
    own = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": certificates.ca_file,
        "sasl.mechanisms": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    producer = confluent.Producer(own)
    failures: list[Any] = []
    producer.produce("t", b"x" * 200_000, on_delivery=lambda error, m: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None]
    consumer = confluent.Consumer({**own, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"x" * 200_000)
    consumer.close()
    client = admin.AdminClient(own)
    salted = admin.UserScramCredentialUpsertion(
        "bob", admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4_096), b"secret"
    )
    client.alter_user_scram_credentials([salted])["bob"].result(PATIENCE_S)
    found = client.describe_user_scram_credentials(["bob"])["bob"].result(PATIENCE_S)
    assert [info.iterations for info in found.scram_credential_infos] == [4_096]
    logged = confluent.Producer(
        {
            **own,
            "sasl.username": "bob",
            "sasl.password": "secret",
            "sasl.mechanisms": "SCRAM-SHA-256",
        }
    )
    assert "t" in logged.list_topics(timeout=PATIENCE_S).topics


def test_librdkafka_hears_of_a_wrong_password(cluster: Cluster, certificates: Certificates) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    errors: list[Any] = []
    client = confluent.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": certificates.ca_file,
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": "wrong",
            "error_cb": errors.append,
        }
    )
    until(lambda: client.poll(0.1) or errors, "an error")
    assert errors[0].code() == confluent.KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_aiokafka(cluster: Cluster, certificates: Certificates, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    context = ssl.create_default_context(cafile=certificates.ca_file)

    async def run() -> bytes:
        own = {
            "bootstrap_servers": cluster.bootstrap,
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        producer = aiokafka.AIOKafkaProducer(**own)
        await producer.start()
        await producer.send_and_wait("t", b"x")
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer("t", **own, group_id="g", auto_offset_reset="earliest")
        await consumer.start()
        record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        await consumer.stop()
        return record.value

    assert asyncio.run(run()) == b"x"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_kafka_python(cluster: Cluster, certificates: Certificates, mechanism: str) -> None:
    kafka = pytest.importorskip("kafka")
    own = {
        "bootstrap_servers": cluster.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": certificates.ca_file,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    producer = kafka.KafkaProducer(**own)
    producer.send("t", b"x").get(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer("t", **own, group_id="g", auto_offset_reset="earliest")
    found: dict[Any, Any] = {}
    while not found:
        found = consumer.poll(timeout_ms=10_000)
    assert [record.value for records in found.values() for record in records] == [b"x"]
    consumer.close()


def test_librdkafka_renews_its_login(start: Start) -> None:
    """KIP-368 from the broker's side."""
    confluent = pytest.importorskip("confluent_kafka")
    cluster = start("SASL_PLAINTEXT", connections_max_reauth_ms=1_000)
    producer = confluent.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )
    errors: list[Any] = []
    for _ in range(16):
        producer.produce("t", b"x", on_delivery=lambda error, m: errors.append(error))
        producer.flush(PATIENCE_S)
        producer.poll(0.1)
    assert errors == [None] * 16


def test_librdkafka_with_a_certificate(start: Start, certificates: Certificates) -> None:
    """TLS both ways, without SASL."""
    confluent = pytest.importorskip("confluent_kafka")
    cluster = start("SSL", ssl_client_auth="required")
    mine = certificates.client("carol")["ssl_certificate_location"]
    client = confluent.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": certificates.ca_file,
            "ssl.certificate.location": mine,
            "ssl.key.location": mine,
        }
    )
    assert client.list_topics(timeout=PATIENCE_S).brokers
