"""Settings of files, environment and callers: what wins, where it came from, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.client.common.config import AdminConfig, ConsumerConfig, ProducerConfig
from kohort.errors import ConfigError
from kohort.settings import (
    choose,
    chosen_profile,
    environment_settings,
    gather,
    read_settings,
    shown,
)
from tests.known import fake

NOWHERE = {"HOME": "/nonexistent"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text(
        "# comment\n! another\n\n  group.id = billing\nclient.id:a\\u00e9\\tb\n"
        "bootstrap.servers a:1,\\\n    b:2\nclient.rack=\nssl.key=C:\\\\x=y\n"
    )
    found = [(s.key, s.value, s.origin) for s in read_settings(file)]
    assert found == [
        ("group.id", "billing", f"{file}:4"),
        ("client.id", "aé\tb", f"{file}:5"),
        ("bootstrap.servers", "a:1,b:2", f"{file}:6"),
        ("client.rack", "", f"{file}:8"),
        ("ssl.key", "C:\\x=y", f"{file}:9"),
    ]


def test_toml_with_roles_profiles_and_bare_dotted_keys(tmp_path: Path) -> None:
    """`group.id = "g"` is a nested table to TOML, and a key of Kafka's to us."""
    file = tmp_path / "kohort.toml"
    file.write_text(
        'bootstrap_servers = ["a:1", "b:2"]\nclient.id = "app"\n\n[consumer]\n'
        'group.id = "g"\nmax_poll_records = 7\n\n[producer]\n"linger.ms" = 3\n\n'
        '[profiles.prod]\nclient.id = "prod"\n[profiles.prod.consumer]\ngroup.id = "h"\n'
    )
    consumer = ConsumerConfig.load(environ=NOWHERE)
    assert consumer.bootstrap_servers == ("a:1", "b:2")
    assert (consumer.client_id, consumer.group_id, consumer.max_poll_records) == ("app", "g", 7)
    assert ProducerConfig.load(environ=NOWHERE).linger_ms == 3
    prod = choose(ConsumerConfig, gather(None, {**NOWHERE, "KOHORT_PROFILE": "prod"}, AdminConfig))
    assert (prod["client_id"].value, prod["client_id"].origin) == ("prod", f"{file}:12")
    assert (prod["group_id"].value, prod["group_id"].origin) == ("h", f"{file}:14")
    with pytest.raises(ConfigError, match="profile 'prd'"):
        gather(None, {**NOWHERE, "KOHORT_PROFILE": "prd"}, AdminConfig)
    with pytest.raises(ConfigError, match="did you mean 'prod'"):
        gather(file, {**NOWHERE, "KOHORT_PROFILE": "prd"}, AdminConfig)


def test_later_sources_win(tmp_path: Path) -> None:
    """Defaults, the user's file, the project's, the environment, the caller."""
    home = tmp_path / "home"
    (home / ".config" / "kohort").mkdir(parents=True)
    environ = {"HOME": str(home)}

    def client_id(**settings: str) -> str:
        return ConsumerConfig.load(environ=environ, **settings).client_id

    assert client_id() == "kohort"
    (home / ".config" / "kohort" / "config.toml").write_text('client_id = "user"\n')
    assert client_id() == "user"
    (tmp_path / "pyproject.toml").write_text('[tool.kohort]\nclient_id = "tool"\n')
    assert client_id() == "tool"
    (tmp_path / "kohort.toml").write_text('client_id = "project"\n')
    assert client_id() == "project"
    named = tmp_path / "named.properties"
    named.write_text("client.rack=r\n")
    assert ConsumerConfig.load(named, environ=environ).client_id == "kohort"
    environ["KOHORT_CLIENT_ID"] = "environment"
    assert client_id() == "environment"
    environ["KOHORT_CONSUMER__CLIENT_ID"] = "role"
    assert client_id() == "role"
    assert ProducerConfig.load(environ=environ).client_id == "environment"
    assert client_id(client_id="caller") == "caller"
    environ["KOHORT_CONFIG"] = str(named)
    assert ConsumerConfig.load(environ=environ).client_rack == "r"


def test_a_key_of_another_role_is_refused_by_name_and_skipped_in_what_is_shared(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"'linger\.ms' is for a producer"):
        ConsumerConfig.from_mapping({"linger.ms": 3})
    with pytest.raises(ConfigError, match="'group_id' is for a consumer"):
        ProducerConfig.load(environ=NOWHERE, group_id="g")
    file = tmp_path / "kohort.toml"
    file.write_text("linger_ms = 3\n")
    assert ConsumerConfig.load(environ=NOWHERE) == ConsumerConfig()
    file.write_text("[consumer]\nlinger_ms = 3\n")
    with pytest.raises(ConfigError, match=r"kohort\.toml:2\) is for a producer"):
        ConsumerConfig.load(environ=NOWHERE)


def test_unknown_keys_name_their_place_and_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text("\nfetch.min.byte=1\n")
    with pytest.raises(ConfigError, match=r"c\.properties:2\); did you mean 'fetch\.min\.bytes'"):
        AdminConfig.load(file, environ=NOWHERE)
    with pytest.raises(ConfigError, match="KOHORT_GROUP_IDD: did you mean KOHORT_GROUP_ID"):
        ConsumerConfig.load(environ={**NOWHERE, "KOHORT_GROUP_IDD": "g"})
    others = {"KOHORT_PURE": "1", "KOHORT_DEBUG": "1", "KOHORT_HOME": "/", "PATH": "/bin"}
    assert environment_settings(others, ConsumerConfig.field_names()) == []


def test_durations_sizes_and_truth_are_read_from_text() -> None:
    environ = {
        "KOHORT_SESSION_TIMEOUT_MS": "10s",
        "KOHORT_FETCH_MAX_BYTES": "1MiB",
        "KOHORT_ENABLE_AUTO_COMMIT": "off",
    }
    config = ConsumerConfig.load(environ=NOWHERE | environ)
    assert (config.session_timeout_ms, config.fetch_max_bytes) == (10_000, 1 << 20)
    assert config.enable_auto_commit is False


def test_a_configuration_shows_what_was_given() -> None:
    assert repr(ConsumerConfig(group_id="g")) == "ConsumerConfig(group_id='g')"


def test_secrets_are_never_shown_and_may_stand_in_a_file(tmp_path: Path) -> None:
    """Neither by `repr`, nor by an error, nor by `config show`; `KEY.file` names where it is."""
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    file = tmp_path / "c.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=eva\n"
        f"sasl.password.file={secret}\n"
    )
    config = AdminConfig.load(file, environ=NOWHERE)
    assert config.sasl_password == "s3cret"
    assert "s3cret" not in repr(config)
    assert "sasl_password=***" in repr(config)
    found = choose(AdminConfig, gather(file, NOWHERE, AdminConfig))["sasl_password"]
    assert found.origin == f"{secret}, by {file}:4"
    assert shown("sasl_password", found.value) == "***"
    secret.unlink()
    with pytest.raises(ConfigError, match=r"sasl\.password\.file"):
        AdminConfig.load(file, environ=NOWHERE)


def test_keywords_win_over_an_object() -> None:
    held = ProducerConfig(bootstrap_servers=fake("127.0.0.1:1"), linger_ms=1)
    made = ProducerConfig.settled(held, {"linger_ms": 7})
    assert (made.linger_ms, made.bootstrap_servers) == (7, held.bootstrap_servers)


def test_a_home_that_cannot_be_looked_into_has_no_settings() -> None:
    """As in a container that runs as another user (`--user 1234`) with root's HOME."""
    environ = {"HOME": "/" + "x" * 300}  # an error other than "not there", for root as well
    assert ConsumerConfig.load(environ=environ).client_id == "kohort"
    assert chosen_profile(environ) is None


@pytest.mark.parametrize(
    "own",
    [
        '[profiles.production]\nclient_id = "other"\n',
        '# see profiles.prod\nclient_id = "other"\n',
        'client_id = "profiles.prod"\n',
        '[other.profiles.prod]\nclient_id = "other"\n',
    ],
    ids=["longer name", "comment", "value", "other table"],
)
def test_a_profile_is_found_where_its_table_is(tmp_path: Path, own: str) -> None:
    """A project's file whose text has such words made the user's profile fail."""
    home = tmp_path / ".config" / "kohort"
    home.mkdir(parents=True)
    (home / "config.toml").write_text('[profiles.prod]\ngroup_id = "mine"\n')
    environ = {"HOME": str(tmp_path), "KOHORT_PROFILE": "prod"}
    if own.startswith("[other"):
        (tmp_path / "pyproject.toml").write_text(own.replace("[other", "[tool.other"))
    else:
        (tmp_path / "kohort.toml").write_text(own)
    assert choose(ConsumerConfig, gather(None, environ, AdminConfig))["group_id"].value == "mine"


@pytest.mark.parametrize(
    "text",
    [
        '[profiles]\nstage = {group_id = "s"}\n',
        'profiles = {stage = {group_id = "s"}}\n',
        'profiles.stage.group_id = "s"\n',
        '[profiles."stage"]\ngroup_id = "s"\n',
    ],
)
@pytest.mark.parametrize("name", ["kohort.toml", "pyproject.toml"])
def test_a_profile_has_every_form_of_toml(tmp_path: Path, text: str, name: str) -> None:
    table = "" if name == "kohort.toml" else "tool.kohort."
    if table:
        text = text.replace("[profiles", f"[{table}profiles")
        text = text if text.startswith("[") else table + text
    (tmp_path / name).write_text(text)
    found = gather(None, {**NOWHERE, "KOHORT_PROFILE": "stage"}, AdminConfig)
    assert choose(ConsumerConfig, found)["group_id"].value == "s"


def test_a_found_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "kohort.toml").write_bytes(b'client_id = "\xff"\n')
    with pytest.raises(ConfigError, match=r"kohort\.toml cannot be read as settings"):
        gather(None, NOWHERE, AdminConfig)
