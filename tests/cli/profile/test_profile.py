"""`kohort profile` (spec 8.1): clusters by name; a file that other settings share stays whole."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from kohort.cli.profile.commands import _choosing
from tests.cli.conftest import Run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KOHORT_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "kohort" / "config.toml"


def test_a_profile_is_created_chosen_and_deleted(bare: Run, file: Path) -> None:
    file.parent.mkdir()
    file.write_text('# mine\nclient.id = "me"\n')
    assert bare("profile", "create", "prod", "-b", "k-1:9092", "-X", "client.rack=a").code == 0
    assert bare("profile", "create", "test", "-b", "k-2:9092").code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    servers = ("config", "show", "--role", "admin", "--given", "-o", "csv")
    assert bare(*servers).lines[1:] == ["client.id,me"]
    assert bare(*servers, "--profile", "prod").lines[1:] == [
        "bootstrap.servers,k-1:9092",
        "client.id,me",
        "client.rack,a",
    ]
    assert bare("profile", "use", "test").out == "commands use profile test\n"
    assert "bootstrap.servers,k-2:9092" in bare(*servers).lines
    assert bare("profile", "list", "-o", "csv").lines[1:] == [
        "prod,False,k-1:9092,client.rack=a",
        "test,True,k-2:9092,",
    ]
    assert bare("profile", "use", "prod").code == 0
    assert bare("profile", "delete", "prod").code == 0
    assert bare(*servers).lines[1:] == ["client.id,me"], "the choice goes with its profile"
    assert file.read_text().count("# mine") == 1


def test_what_cannot_be_a_profile_is_refused_and_nothing_written(bare: Run, file: Path) -> None:
    for args, message in (
        (("create", "a b", "-b", "k:1"), "use letters, digits"),
        (("create", "a", "-b", "k:1", "-X", "client.idd=x"), "did you mean 'client.id'"),
        (("create", "a", "-b", "k:1", "-X", "sasl.password=x"), "sasl.password.file=FILE"),
        (("use", "a"), "there is no profile 'a'"),
        (("delete", "a"), "there is no profile 'a'"),
    ):
        ran = bare("profile", *args)
        assert ran.code == 2
        assert message in ran.err
    assert not file.exists()
    bare("profile", "create", "prod", "-b", "k:1")
    assert "did you mean 'prod'?" in bare("profile", "use", "prd").err
    assert "already" in bare("profile", "create", "prod", "-b", "k:2").err
    assert "profile 'prd' is in none of" in bare("config", "show", "--profile", "prd").err


def test_brackets_and_keys_of_other_tables_stay(bare: Run, file: Path) -> None:
    """An IPv6 address holds the sign that begins a table; a key `profile` may be of any table."""
    assert bare("profile", "create", "six", "-b", "[::1]:9092", "--use").code == 0
    file.write_text(file.read_text() + '\n[profiles.other]\n"bootstrap.servers" = "b:1"\n')
    assert bare("profile", "use", "other").code == 0
    assert bare("profile", "delete", "six").code == 0
    assert tomllib.loads(file.read_text()) == {
        "profile": "other",
        "profiles": {"other": {"bootstrap.servers": "b:1"}},
    }
    held = '[profiles.other]\nprofile = "kept"\n'
    file.write_text(held)
    assert _choosing(held, "other") == f'profile = "other"\n{held}'


def test_a_file_of_another_form_is_left_to_its_owner(bare: Run, file: Path) -> None:
    """`delete` reported that it had, and `create` ended with a traceback."""
    file.parent.mkdir()
    text = 'profiles = {prod = {"bootstrap.servers" = "k:1"}}\n'
    file.write_text(text)
    for command in (("delete", "prod"), ("create", "test", "-b", "k:2")):
        ran = bare("profile", *command)
        assert (ran.code, file.read_text()) == (2, text)
        assert "change it by hand" in ran.err
