"""Client configurations: Kafka's names and defaults, and what is refused before anything starts."""

from __future__ import annotations

import threading

import pytest

from kohort import Admin, Consumer, Producer
from kohort.client.common.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    parse_address,
)
from kohort.client.common.offset_reset import ResetPolicy
from kohort.errors import ConfigError
from tests.known import fake

KIP_848 = {"group_protocol": "consumer"}


def test_consumer_defaults_are_kafkas():
    c = ConsumerConfig()
    assert (c.session_timeout_ms, c.heartbeat_interval_ms) == (45_000, 3_000)
    assert (c.max_poll_interval_ms, c.max_poll_records) == (300_000, 500)
    assert c.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert (c.enable_auto_commit, c.auto_commit_interval_ms) == (True, 5_000)
    assert c.auto_offset_reset == "latest"
    assert (c.fetch_min_bytes, c.fetch_max_wait_ms, c.fetch_max_bytes) == (1, 500, 52_428_800)


def test_producer_defaults_are_kafkas():
    p = ProducerConfig()
    assert (p.acks, p.enable_idempotence, p.linger_ms, p.batch_size) == (-1, True, 5, 16_384)
    assert (p.buffer_memory, p.max_block_ms, p.delivery_timeout_ms) == (32 << 20, 60_000, 120_000)
    assert (p.max_request_size, p.compression_type, p.compression_level) == (1 << 20, "none", None)


def test_dotted_keys_text_values_and_addresses_in_one_string():
    c = ConsumerConfig.from_mapping(
        {
            "bootstrap.servers": "a:1, [::1]:9092",
            "session.timeout.ms": "10s",
            "heartbeat_interval_ms": 1_000,
            "group.id": "g",
            "partition.assignment.strategy": "sticky,range",
        }
    )
    assert c.addresses == [("a", 1), ("::1", 9092)]
    assert c.session_timeout_ms == 10_000
    assert c.partition_assignment_strategy == ("sticky", "range")


@pytest.mark.parametrize("name", ["batch.size", "buffer.memory", "max.request.size"])
def test_sizes_may_be_written_with_a_unit_where_kafkas_name_does_not_say_bytes(name):
    config = ProducerConfig.from_mapping({name: "2MiB"})
    assert getattr(config, name.replace(".", "_")) == 2 << 20


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batch.size", "big", "batch_size='big': 'big' is not a size; write for example 512"),
        ("retries", "often", "retries='often': a whole number is needed"),
        ("enable.idempotence", "maybe", "enable_idempotence='maybe': true or false is needed"),
        ("sasl.oauthbearer.token.provider", "f", "a Python function is needed"),
    ],
)
def test_a_text_that_is_no_value_is_refused_in_words(name, value, says):
    with pytest.raises(ConfigError) as error:
        ProducerConfig.from_mapping({name: value})
    assert says in str(error.value)
    assert "class" not in str(error.value)


@pytest.mark.parametrize("text", ["", "host", "host:", ":9092", "host:0", "host:70000", "a b:1"])
def test_a_bad_address_is_refused(text):
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize(
    ("config", "values", "named"),
    [
        (ConsumerConfig, {"session_timeout_ms": 3_000}, "heartbeat_interval_ms"),
        (ConsumerConfig, {"fetch_max_wait_ms": 30_000}, "fetch_max_wait_ms"),
        (ConsumerConfig, {"auto_offset_reset": "oldest"}, "auto_offset_reset"),
        (ConsumerConfig, {"auto_offset_reset": "by_duration:P"}, "auto_offset_reset"),
        (ConsumerConfig, {"group_protocol": "streams"}, "group_protocol"),
        (ConsumerConfig, {"group_remote_assignor": "uniform"}, "group_protocol=consumer"),
        (ConsumerConfig, {**KIP_848, "group_remote_assignor": ""}, "group_remote_assignor"),
        (ConsumerConfig, {**KIP_848, "session_timeout_ms": 6_000}, "group.consumer.session"),
        (ConsumerConfig, {**KIP_848, "heartbeat_interval_ms": 50}, "group.consumer.heartbeat"),
        (ConsumerConfig, {**KIP_848, "partition_assignment_strategy": "sticky"}, "remote_assignor"),
        (ConsumerConfig, {"isolation_level": "committed"}, "isolation_level"),
        (ConsumerConfig, {"group_instance_id": "i"}, "group_instance_id"),
        (ConsumerConfig, {"group_id": ""}, "group_id"),
        (ConsumerConfig, {"max_poll_records": 0}, "max_poll_records"),
        (ConsumerConfig, {"partition_assignment_strategy": ()}, "partition_assignment_strategy"),
        (ProducerConfig, {"acks": 2}, "acks"),
        (ProducerConfig, {"acks": 1, "enable_idempotence": True}, "enable_idempotence"),
        (ProducerConfig, {"compression_type": "brotli"}, "compression_type"),
        (ProducerConfig, {"compression_zstd_level": 40}, "compression_zstd_level"),
        (ProducerConfig, {"delivery_timeout_ms": 10}, "delivery_timeout_ms"),
        (ProducerConfig, {"partitioner": "crc"}, "partitioner"),
        (ProducerConfig, {"linger_ms": True}, "linger_ms"),
        (AdminConfig, {"bootstrap_servers": ()}, "bootstrap_servers"),
        (AdminConfig, {"security_protocol": "TLS"}, "security_protocol"),
        (AdminConfig, {"retry_backoff_ms": 2_000}, "retry_backoff_ms"),
    ],
)
def test_what_can_never_work_is_refused_and_named(config, values, named):
    with pytest.raises(ConfigError, match=named):
        config(**values)


@pytest.mark.parametrize(
    ("client", "config", "key", "owner"),
    [
        (Consumer, ConsumerConfig, "linger_ms", "producer"),
        (Producer, ProducerConfig, "group_id", "consumer"),
        (Admin, AdminConfig, "max_poll_records", "consumer"),
    ],
)
def test_a_key_of_another_role_is_refused_however_it_is_given(client, config, key, owner):
    """Nothing is started: no thread, no connection."""
    before = set(threading.enumerate())
    for name in (key, key.replace("_", ".")):
        with pytest.raises(ConfigError, match=f"is for a {owner}"):
            config.from_mapping({name: 5})
        with pytest.raises(ConfigError, match=f"is for a {owner}"):
            client(**{name: 5})
        with pytest.raises(ConfigError, match=f"is for a {owner}"):
            client(config(client_id="one"), **{name: 5})
    other = ConsumerConfig() if client is Producer else ProducerConfig()
    with pytest.raises(ConfigError, match=rf"takes a {config.__name__}, not a \w+Config"):
        client(fake(other))
    assert set(threading.enumerate()) <= before, "one of an earlier test may have ended"


def test_a_mapping_is_taken_and_keywords_win_in_any_spelling():
    mapping = {"client.id": "one", "max.poll.records": "7", "ssl.ca.location": "x"}
    made = ConsumerConfig.settled(mapping, {"max_poll_records": 9})
    assert (made.client_id, made.max_poll_records, made.ssl_ca_location) == ("one", 9, "x")
    with pytest.raises(ConfigError, match="did you mean 'max_poll_records'"):
        ConsumerConfig.settled({"max_pol_records": 9}, {})


def test_keywords_beside_an_object_are_read_as_those_without_one():
    """Dotted or not, text or not; what the object says of other keys stays."""
    one = ConsumerConfig(client_id="one", max_poll_records=7)
    made = ConsumerConfig.settled(one, {"max.poll.records": "9", "session_timeout_ms": "1m"})
    assert (made.client_id, made.max_poll_records, made.session_timeout_ms) == ("one", 9, 60_000)
    with pytest.raises(ConfigError, match="did you mean 'max_poll_records'"):
        ConsumerConfig.settled(one, {"max_pol_records": 9})
    modern = ConsumerConfig(group_protocol="consumer", group_id="g")
    assert ConsumerConfig.settled(modern, {"client.id": "two"}).client_id == "two"
    assert ConsumerConfig.settled(one, {}) is one


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(ConfigError, match=r"did you mean 'max\.poll\.records'"):
        ConsumerConfig.from_mapping({"max.pol.records": 5})


def test_a_key_that_no_client_knows_is_told_the_nearest_of_any() -> None:
    """A flag of the command line is for all roles: the near name may be any role's."""
    message = str(ClientConfig.unknown("session.timeout", "command line"))
    assert "did you mean 'session.timeout.ms'?" in message


def test_tls_keys_are_unused_without_tls():
    assert AdminConfig.from_mapping({"ssl.ca.location": "x", "sasl_mechanism": "PLAIN"})
    assert AdminConfig.from_mapping({"ssl.keystore.type": "PEM", "sasl.kerberos.x": "y"})


@pytest.mark.parametrize("values", [{"acks": 1}, {"acks": "0"}, {"retries": 0}])
def test_idempotence_gives_way_to_what_excludes_it(values):
    assert ProducerConfig(**values).enable_idempotence is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1H", 3_600_000), ("P1DT2H", 93_600_000), ("PT0.5S", 500), ("P7D", 604_800_000)],
)
def test_reset_by_duration(text, expected):
    config = ConsumerConfig(auto_offset_reset=f"by_duration:{text}")
    assert ResetPolicy.parse(config.auto_offset_reset).duration_ms == expected


@pytest.mark.parametrize(
    "key", ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"]
)
def test_the_consumer_protocol_refuses_what_the_broker_decides(key):
    """KIP-848, as Java: also when the value is the default, for it was meant to do something."""
    default = getattr(ConsumerConfig(), key.replace(".", "_"))
    with pytest.raises(ConfigError, match="group_protocol=consumer"):
        ConsumerConfig.from_mapping({"group.protocol": "consumer", key: default})


def test_the_consumer_protocol_in_any_case():
    """Kafka takes the value in any case."""
    config = ConsumerConfig.from_mapping(
        {"group.protocol": "CONSUMER", "group.remote.assignor": "uniform"}
    )
    assert (config.group_protocol, config.group_remote_assignor) == ("consumer", "uniform")
    assert config.replace(max_poll_records=5).group_protocol == "consumer"


@pytest.mark.parametrize("text", ["false", " False", "FALSE"])
def test_false_is_false(text):
    config = ConsumerConfig.from_mapping({"enable.auto.commit": text})
    assert config.enable_auto_commit is False
