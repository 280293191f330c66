"""`kohort user`, client commands with a login from a file, and `kohort broker run --user`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin
from kohort.cli.broker.commands import _add_users, _lines
from kohort.errors import AuthenticationError
from kohort.testing import Cluster
from kohort.testing.certificates import Certificates
from tests.cli.conftest import Run
from tests.patience import PATIENCE_S


def test_users_and_a_login_from_a_file(bare: Run, tmp_path: Path) -> None:
    """Java's own properties file serves every command; passwords come from files."""
    certificates = Certificates(tmp_path)
    with Cluster(
        security_protocol="SASL_SSL",
        users={"admin": "first"},
        connection_failed_authentication_delay_ms=1,
        **certificates.broker(),
    ) as cluster:
        config = tmp_path / "admin.properties"
        config.write_text(
            f"bootstrap.servers={cluster.bootstrap}\nsecurity.protocol=SASL_SSL\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.ca_file}\n"
            "sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=org.apache.kafka.common.security."
            'scram.ScramLoginModule required username="admin" password="first";\n'
        )
        at = ("--config", str(config))
        word = tmp_path / "word"
        word.write_text("second\n")
        made = bare("user", "set", "bob", "--password-file", str(word), *at)
        assert (made.code, made.err) == (0, "")
        listed = bare("user", "list", "-o", "json", *at)
        assert {row["user"] for row in listed.json["rows"]} == {"admin", "bob"}
        word.write_text("second\n")
        bobs = ("-X", "sasl.username=bob", "-X", f"sasl.password.file={word}")
        plain = [line for line in config.read_text().splitlines() if "jaas" not in line]
        config.write_text("\n".join(plain))
        wrote = bare("produce", "t", *at, *bobs, stdin=b"one\n")
        assert wrote.code == 0, wrote.err
        read = bare("consume", "t", "--from-beginning", "-e", *at, *bobs)
        assert "one" in read.out, read.err
        word.write_text("third\n")
        refused = bare("topic", "list", *at, *bobs)
        assert refused.code == 1
        assert "SCRAM-SHA-512" in refused.err
        assert "third" not in refused.err
        word.write_text("second\n")
        dry_run = bare("user", "delete", "bob", *at, *bobs)
        assert "would remove: user bob" in dry_run.out
        assert bare("user", "delete", "bob", "--execute", *at, *bobs).code == 0
        assert bare("topic", "list", *at, *bobs).code == 1


def test_a_broker_with_users_from_file_and_environment(tmp_path: Path) -> None:
    """A user on the command line turns SASL on."""
    users = tmp_path / "users"
    users.write_text("# who may\nalice:a,b:c\n\n")
    environ = {
        **os.environ,
        "KOHORT_USERS": "bob:b carol:c",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "kohort", "broker", "run", "--port", "0"]
    with subprocess.Popen(
        [*command, "--users-file", str(users)],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().split()[2]
        own = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
        }
        for name, word in (("alice", "a,b:c"), ("bob", "b"), ("carol", "c")):
            with Admin(**own, sasl_username=name, sasl_password=word) as admin:
                assert set(admin.describe_users()) == {"alice", "bob", "carol"}
        with (
            Admin(**own, sasl_username="alice", sasl_password="x") as admin,
            pytest.raises(AuthenticationError),
        ):
            admin.list_topics()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_comma_between_users_is_refused_with_the_form_they_have(
    bare: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made one user of both, with a strange password, in silence; no secret is shown."""
    monkeypatch.setenv("KOHORT_USERS", "alice:hidden,bob:other")
    ran = bare("broker", "run", "--port", "0")
    assert ran.code == 2
    assert "user 'alice' has a comma" in ran.err
    assert 'KOHORT_USERS="alice:secret bob:other"' in ran.err
    assert "hidden" not in ran.err
    monkeypatch.delenv("KOHORT_USERS")
    assert bare("broker", "run", "--port", "0", "--user", "alice:a,b").code == 2


def test_a_file_that_is_no_text_is_named(bare: Run, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"caf\xe9")
    for args in (("user", "set", "bob", "--password-file"), ("broker", "run", "--users-file")):
        ran = bare(*args, str(odd))
        assert ran.code == 2
        assert f"{odd} is not UTF-8" in ran.err
        assert "caf" not in ran.err


def test_users_of_the_settings_stay(tmp_path: Path) -> None:
    assert _lines(None) == []
    values: dict[str, Any] = {"sasl_users": "a:1,b:2", "ssl_certificate_location": "x"}
    _add_users(values, ["c:3"])
    assert values["sasl_users"] == ("a:1", "b:2", "c:3")
    assert values["security_protocol"] == "SASL_SSL"


def test_what_a_user_may_not_is_told_with_whom_to_ask(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that is missing, a name that may be hidden, a user that is not there."""
    with Cluster(
        users={"admin": "a", "bob": "b"},
        security_protocol="SASL_PLAINTEXT",
        acls=True,
        super_users=("User:admin",),
    ) as cluster:
        monkeypatch.setenv("KOHORT_BOOTSTRAP_SERVERS", cluster.bootstrap)
        monkeypatch.setenv("KOHORT_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
        monkeypatch.setenv("KOHORT_SASL_MECHANISM", "SCRAM-SHA-512")
        monkeypatch.setenv("KOHORT_SASL_USERNAME", "bob")
        monkeypatch.setenv("KOHORT_SASL_PASSWORD", "b")
        for args in (("acl", "list"), ("user", "list")):
            ran = bare(*args)
            assert ran.code == 1
            assert "this user may not. Ask the cluster's administrator" in ran.err
        assert "(or this user may not see it)" in bare("topic", "describe", "t").err
        monkeypatch.setenv("KOHORT_SASL_USERNAME", "admin")
        monkeypatch.setenv("KOHORT_SASL_PASSWORD", "a")
        assert "Did you mean 'bob'?" in bare("user", "delete", "bobb").err
        ran = bare("user", "set", "carl", stdin=b"word")
        assert ran.code == 2
        assert "use --password-file" in ran.err
        ran = bare("acl", "remove", "--principal", "User:nobody")
        assert (ran.code, ran.out) == (0, "")
        assert "no entry is meant by that" in ran.err
