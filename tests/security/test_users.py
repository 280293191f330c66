"""The users of a broker: durable, salted, never a password on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kohort import Admin
from kohort.broker.log.directory import USERS_FILE, DataDirectory
from kohort.broker.log.files import MemoryFiles
from kohort.broker.security.users import Users
from kohort.errors import BrokerError, StorageError
from kohort.sasl.scram import ScramCredential
from kohort.testing import Cluster
from tests.security.conftest import PASSWORD, USER, settings


def opened(files: MemoryFiles, *logins: str) -> Users:
    counter = iter(range(10_000))
    directory = DataDirectory.open(files, "cluster", durable=True)
    users = Users(directory, lambda: next(counter).to_bytes(16, "big"))
    users.ensure(logins)
    return users


def test_users_outlive_the_process_and_their_passwords_do_not_touch_the_disk(
    tmp_path: Path,
) -> None:
    with Cluster(durability="fsync", data_dir=str(tmp_path), users={USER: PASSWORD}) as cluster:
        with Admin(**settings(cluster, None, "PLAIN")) as admin:
            admin.upsert_user("bob", "bobs-word")
        cluster.kill()
        cluster.config = cluster.config.replace(sasl_users=())
        cluster.start()
        with Admin(**settings(cluster, None, "SCRAM-SHA-512")) as admin:
            assert set(admin.describe_users()) == {USER, "bob"}
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert PASSWORD.encode() not in data
            assert b"bobs-word" not in data
    assert (tmp_path / USERS_FILE).stat().st_mode & 0o077 == 0


def test_a_given_user_that_is_there_is_not_written_again() -> None:
    files = MemoryFiles()
    first = opened(files, "a:x")
    before = files.read_all(USERS_FILE)
    second = opened(files, "a:x")
    assert files.read_all(USERS_FILE) == before
    assert second.decoy_key == first.decoy_key
    opened(files, "a:y")
    assert files.read_all(USERS_FILE) != before


def test_verifying_goes_by_the_present_password() -> None:
    users = opened(MemoryFiles(), "a:x")
    assert users.verify("a", "x")
    assert users.verify("a", "x")
    assert not users.verify("a", "y")
    assert not users.verify("b", "x")
    users.ensure(["a:y"])
    assert not users.verify("a", "x")
    assert users.verify("a", "y")
    users.alter("a", "SCRAM-SHA-256", None)
    assert users.verify("a", "y")
    users.alter("a", "SCRAM-SHA-512", None)
    assert not users.verify("a", "y")
    assert len(users) == 0


def test_a_change_that_cannot_be_written_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is durable before it is answered, or refused."""
    files = MemoryFiles()
    users = opened(files, "a:x")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "rename", full)
    with pytest.raises(BrokerError, match="KAFKA_STORAGE_ERROR"):
        users.alter("a", "SCRAM-SHA-256", None)
    assert set(users.of("a")) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1}', b'{"format": 1, "users": []}']
)
def test_a_damaged_file_is_named(data: bytes) -> None:
    files = MemoryFiles()
    opened(files, "a:x")
    files.remove(USERS_FILE)
    file = files.open(USERS_FILE, create=True)
    file.append([data])
    with pytest.raises(StorageError, match=r"users\.json"):
        opened(files)


def test_what_is_kept_lets_nobody_log_in() -> None:
    files = MemoryFiles()
    users = opened(files, "a:x")
    held = json.loads(files.read_all(USERS_FILE) or b"{}")["users"]["a"]
    assert set(held) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert set(held["SCRAM-SHA-256"]) == {"salt", "stored_key", "server_key", "iterations"}
    credential = users.of("a")["SCRAM-SHA-256"]
    assert isinstance(credential, ScramCredential)
    assert credential.iterations >= 4_096
