"""docs/security.md names settings that there are, and its example for tests runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from kohort import Admin, Consumer
from kohort.broker.base.config import BrokerConfig
from kohort.client.common.config import ConsumerConfig
from kohort.spark.options import parse_source
from kohort.testing import Cluster
from tests.pages import blocks_of
from tests.patience import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
JAVAS = {
    "ssl_truststore_location",
    "ssl_truststore_type",
    "ssl_keystore_location",
    "sasl_jaas_config",
    "sasl_password_file",
}


SRC = Path(__file__).parents[2] / "src"
RUN, COMMANDS, RUN_TLS = blocks_of(PAGE, "sh")
(PROPERTIES,) = blocks_of(PAGE, "properties")
CLIENTS = blocks_of(PAGE, "python")
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
TIMEOUT_S = PATIENCE_S


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A directory with the `kohort` command, and no settings of ours."""
    tool = tmp_path / "kohort"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m kohort "$@"\n')
    tool.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOHORT_")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(SRC), "TERM": "dumb"}


@contextmanager
def broker(command: str, env: dict[str, str], directory: Path) -> Iterator[str]:
    """The page's broker on a free port; its address."""
    log_path = directory / "broker.log"
    with (
        log_path.open("w") as log,
        subprocess.Popen(
            ["bash", "-c", command.replace("kohort broker", "exec kohort broker") + " --port 0"],
            env=env,
            cwd=directory,
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0, log_path.read_text()


def settings_of(block: str, **around: Any) -> dict[str, Any]:
    """What a block gives to `Consumer`."""
    client_settings: dict[str, Any] = {}
    names = {"Consumer": lambda **settings: client_settings.update(settings), **around}
    exec(block.replace("from kohort import Consumer", ""), names)
    return client_settings


def typed(command: str, answer: str, env: dict[str, str], directory: Path) -> None:
    """Run a command at a terminal, and type an answer behind each of its two questions."""
    with subprocess.Popen(
        [sys.executable, "-c", TERMINAL, "bash", "-c", command],
        env=env,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        printed = b""
        for _ in range(2):
            asked = printed.count(b": ")
            while printed.count(b": ") == asked:
                more = process.stdout.read(1)
                assert more, printed
                printed += more
            process.stdin.write(answer.encode() + b"\n")
        printed += process.stdout.read()
        assert process.wait(TIMEOUT_S) == 0, printed
    assert answer.encode() not in printed


def test_a_broker_with_users_in_five_minutes(tmp_path: Path, env: dict[str, str]) -> None:
    word = tmp_path / "alice"
    word.write_text("alices-word\n")
    with broker(RUN.strip(), env, tmp_path) as address:
        with Consumer(settings_of(CLIENTS[0]), bootstrap_servers=address) as consumer:
            assert consumer.end_offsets([]) == {}
        text = PROPERTIES.replace("localhost:9092", address)
        (tmp_path / "client.properties").write_text(text.replace("/run/secrets/alice", str(word)))
        listed, made, shown = COMMANDS.strip().splitlines()
        typed(made, "bobs-word", env, tmp_path)
        for command, wanted in ((listed, "TOPIC"), (shown, "bob ")):
            ran = subprocess.run(
                command,
                shell=True,
                env=env,
                cwd=tmp_path,
                text=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
            assert ran.returncode == 0, ran.stderr
            assert wanted in ran.stdout
    assert "alices-word" not in (tmp_path / "data" / "users.json").read_text()


def test_a_broker_for_other_machines(tmp_path: Path, env: dict[str, str]) -> None:
    """Only that it listens on this one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(str(tmp_path / "broker.key"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "broker.pem"))
    (tmp_path / "users").write_text("alice:alices-word\n")
    command = RUN_TLS.replace("\\\n", " ").strip().replace("0.0.0.0", "127.0.0.1")
    command = command.replace("broker.example", "localhost")
    with broker(command, env, tmp_path) as address:
        settings = settings_of(CLIENTS[1])
        settings |= {"bootstrap_servers": address, "ssl_ca_location": str(tmp_path / "ca.pem")}
        with Admin(**settings) as admin:
            assert {node.host for node in admin.describe_cluster().nodes} == {"localhost"}


def test_the_settings_for_tokens_are_settings() -> None:
    """`...` stands for those above it, `my_function` for the user's own."""
    lines = CLIENTS[2].replace("...,", "").replace('="..."', '="secret"')
    for call in re.split(r"^(?=Consumer\()", lines, flags=re.MULTILINE)[1:]:
        settings = settings_of(call, my_function=lambda: ("token", 0))
        ConsumerConfig(security_protocol="SASL_SSL", **settings)


def test_every_setting_exists() -> None:
    known = {*BrokerConfig.field_names(), *ConsumerConfig.field_names(), *JAVAS}
    named = re.findall(
        r"\b(?:ssl|sasl|connections|max|security|authentication)[._][a-z_.]+[a-z]\b",
        PAGE.read_text(),
    )
    names = {name.replace(".", "_") for name in named}
    assert len(names) > 20
    assert names - known == set()


def test_the_example_for_tests(tmp_path: Path) -> None:
    block = next(b for b in PAGE.read_text().split("```") if "from kohort.testing import" in b)
    code = block.removeprefix("python\n").replace("    Consumer(", "    made = Consumer(")
    names = {"tmp_path": tmp_path, "Consumer": Consumer, "Cluster": Cluster}
    exec(code + "\n    made.close()\n", names)


def test_a_password_file_in_spark(tmp_path: Path) -> None:
    """The plan has the file's name, the client its content."""
    word = tmp_path / "word"
    word.write_text("hidden")
    options = parse_source(
        {
            "kafka.bootstrap.servers": "b:1",
            "subscribe": "t",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password.file": str(word),
        },
        streaming=False,
    )
    assert "hidden" not in str(dict(options.client))
    assert ConsumerConfig.from_mapping(options.client).sasl_password == "hidden"
