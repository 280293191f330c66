"""Settings: flags before environment before file before defaults; unknown keys are refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import click
import pytest

from kohort.cli.common.connect import DEFAULT_BOOTSTRAP, Client, client_options, key_values
from kohort.client.common.config import AdminConfig, ConsumerConfig
from kohort.errors import ConfigError
from kohort.settings import read_settings
from tests.cli.conftest import Ran, Run


@click.command()
@client_options
def probe(client: Client) -> Client:
    """Gives what the options came to."""
    return client


def client_of(*args: str) -> Client:
    return probe.main(list(args), standalone_mode=False)


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOHORT_BOOTSTRAP_SERVERS", raising=False)
    file = tmp_path / "c.properties"
    file.write_text("# shared\nbootstrap.servers=file:1\nmax.poll.records = 7\nlinger.ms=3\n")

    def bootstrap(*args: str) -> str:
        return client_of(*args).common()["bootstrap_servers"]

    assert bootstrap() == DEFAULT_BOOTSTRAP
    assert bootstrap("--config", str(file)) == "file:1"
    monkeypatch.setenv("KOHORT_BOOTSTRAP_SERVERS", "env:1")
    assert bootstrap("--config", str(file)) == "env:1"
    assert bootstrap("--config", str(file), "-b", "flag:1") == "flag:1"
    found = client_of("--config", str(file), "-X", "max.poll.records=9")
    config = ConsumerConfig.from_mapping(found.for_role(ConsumerConfig, max_poll_records=5))
    assert config.max_poll_records == 9
    assert found.common() == {"bootstrap_servers": "env:1"}


def test_a_command_with_clients_of_all_roles_gets_the_keys_of_all(tmp_path: Path) -> None:
    """What all clients have comes from no role's own table: it would hold for the others, too."""
    file = tmp_path / "c.toml"
    file.write_text(
        '"fetch.min.bytes" = 2\n[consumer]\nclient_id = "reader"\n[producer]\nlinger_ms = 3\n'
    )
    found = client_of("--config", str(file), "-b", "b:1", "-X", "max.request.size=9")
    assert found.all_roles() == {
        "bootstrap_servers": "b:1",
        "fetch_min_bytes": 2,
        "linger_ms": 3,
        "max_request_size": "9",
    }


def test_a_file_may_hold_keys_of_other_clients_but_no_unknown_one(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('linger_ms = 3\n"fetch.min.bytes" = 2\n')
    assert "linger_ms" not in client_of("--config", str(file)).for_role(AdminConfig)
    file.write_text('"fetch.min.byte" = 2\n')
    with pytest.raises(ConfigError, match=r"c.toml:1\); did you mean 'fetch.min.bytes'"):
        client_of("--config", str(file))


def test_tls_keys_pass() -> None:
    found = client_of("-X", "ssl.ca.location=/ca.pem")
    assert found.for_role(AdminConfig)["ssl_ca_location"] == "/ca.pem"


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_a_setting_is_key_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        key_values([text], "-X")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.toml", b"a = ", "not TOML"),
        ("c.properties", b"a\n", r"c.properties:1: 'a' is not key=value"),
        ("c.properties", b"\xff\xff", "cannot be read"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_settings(file)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("topic", "list", "-X", "clinet.id=a"),
            "unknown client configuration key 'clinet.id' "
            "(command line); did you mean 'client.id'?",
        ),
        (("consume", "t", "-X", "fetch_min_byte=1"), "did you mean 'fetch.min.bytes'?"),
        (("produce", "t", "-X", "linger.msx=1"), "did you mean 'linger.ms'?"),
        (("config", "show", "-X", "group.idd=g"), "did you mean 'group.id'?"),
        (("group", "list", "-X", "clinet.id=a"), "did you mean 'client.id'?"),
        (("topic", "list", "-X", "request.timeout.ms=soon"), "request.timeout.ms='soon'"),
        (("topic", "list", "-b", "localhost:kafka"), "write host:port"),
        (("console", "-X", "fetch.min.bytes=1"), "'fetch.min.bytes' is for a consumer"),
        (("user", "list", "-X", "linger.ms=1"), "'linger.ms' is for a producer"),
        (("app", "status", "-X", "max.poll.records=1"), "'max.poll.records' is for a consumer"),
        (("broker", "run", "-X", "num.partitons=3"), "did you mean 'num.partitions'?"),
        (("broker", "run", "--port", "99999"), "port=99999"),
        (("broker", "run", "--host", "0.0.0.0"), "--allow-open"),
        (("broker", "run", "--durability", "fsync"), "needs data_dir"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_connected(
    bare: Run, args: tuple[str, ...], message: str
) -> None:
    """Exit code 2, one line on stderr that names the key and the nearest, nothing on stdout."""
    ran = bare(*args)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def in_time(bare: Run, address: str, message: str) -> Ran:
    """Ask an address that will not answer; longer where the machine had no time to try it."""
    for timeout_ms in (500, 5_000):
        ran = bare("topic", "list", "-b", address, "-X", f"default.api.timeout.ms={timeout_ms}")
        if message in ran.err:
            return ran
    return bare("topic", "list", "-b", address, "-X", "default.api.timeout.ms=50000")


def test_an_unreachable_cluster_is_named(bare: Run) -> None:
    ran = in_time(bare, "127.0.0.1:1", "refused")
    assert (ran.code, ran.out) == (1, "")
    assert "127.0.0.1:1" in ran.err
    assert "refused" in ran.err


def test_what_ends_in_an_error_is_told_once(bare: Run, caplog: pytest.LogCaptureFixture) -> None:
    """No warning that says the same three seconds before."""
    ran = bare("topic", "list", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=3500")
    assert ran.code == 1
    assert ran.err.count("no broker could be reached") == 1
    assert caplog.messages == []


def test_a_port_that_is_no_broker_is_told_apart(bare: Run) -> None:
    """Somebody listens there and says nothing that a broker would."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        message = "connected, but it does not answer as a Kafka broker does"
        ran = in_time(bare, f"127.0.0.1:{port}", message)
    assert ran.code == 1
    assert message in ran.err


def test_config_show_tells_where_each_value_is_from(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Default, file and line, environment, command line (issue C, configuration)."""
    file = tmp_path / "c.properties"
    file.write_text("bootstrap.servers=file:1\nmax.poll.records=7\n")
    monkeypatch.setenv("KOHORT_CLIENT_RACK", "r1")
    ran = bare("config", "show", "--config", str(file), "-X", "client.id=me", "-o", "json")
    rows = {row["key"]: row for row in ran.json["rows"]}
    assert rows["client.id"] == {"key": "client.id", "value": "me", "role": "all"}
    assert rows["max.poll.records"]["role"] == "consumer"
    ran = bare(
        "config",
        "show",
        "--origin",
        "--given",
        "--role",
        "consumer",
        "--config",
        str(file),
        "--property",
        "client.id=me",
        "-o",
        "csv",
    )
    assert ran.lines == [
        "key,value,origin",
        f"bootstrap.servers,file:1,{file}:1",
        "client.id,me,command line",
        "client.rack,r1,environment KOHORT_CLIENT_RACK",
        f"max.poll.records,7,{file}:2",
    ]
    assert ",default" in bare("config", "show", "--origin", "-o", "csv").out
    refused = bare("config", "show", "--role", "consumer", "-X", "linger.ms=1")
    assert refused.code == 2
    assert "is for a producer" in refused.err


def test_an_empty_bootstrap_is_refused(bare: Run) -> None:
    """An unset variable in a script must not mean another cluster than was meant."""
    ran = bare("topic", "list", "-b", "")
    assert ran.code == 2
    assert "-b is empty" in ran.err


def test_an_address_without_a_port_has_kafka_s(bare: Run) -> None:
    for address, full in (("127.0.0.1", "127.0.0.1:9092"), ("[::1],h:1", "[::1]:9092,h:1")):
        shown = bare("config", "show", "-b", address, "-o", "json")
        assert full in json.dumps(shown.json).replace('", "', ",")
