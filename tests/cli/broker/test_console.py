"""`kohort broker run --console`: a broker and its console in one process (spec 8.2)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kohort.cli.broker.commands import broker
from kohort.cli.console.commands import DEFAULT_LISTEN
from tests.cli.conftest import Run
from tests.patience import PATIENCE_S

RUN = (sys.executable, "-m", "kohort", "broker", "run", "--port", "0", "--console", "0")


def test_a_broker_with_its_console() -> None:
    with subprocess.Popen(RUN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        try:
            ready = run.stdout.readline()
            assert ready.startswith("ready on 127.0.0.1:")
            url = next(line for line in run.stderr if line.startswith("console on")).split()[2]
            with urllib.request.urlopen(f"{url}cluster?format=json", timeout=PATIENCE_S) as answer:
                assert len(json.load(answer)["brokers"]) == 1
        finally:
            run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE_S) == 0


def test_a_broker_with_passwords_has_none_for_its_console() -> None:
    done = subprocess.run(
        [*RUN, "--user", "alice:secret"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert "kohort console" in done.stderr


def test_without_a_port_it_is_the_one_of_kohort_console() -> None:
    run = broker.commands["run"]
    port = run.make_context("run", ["--console", "--nodes", "2"]).params["console_port"]
    assert DEFAULT_LISTEN.endswith(f":{port}")


def test_a_token_that_is_empty_is_no_console_without_a_login(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret that is not mounted yet would let every user of the machine in."""
    token = tmp_path / "token"
    for held, why in ((b"\n", f"the token file {token} is empty"), (b"\xff", "is not UTF-8")):
        token.write_bytes(held)
        ran = bare("console", "--listen", "0", "--token-file", str(token))
        assert ran.code == 2
        assert why in ran.err
    monkeypatch.setenv("KOHORT_CONSOLE_TOKEN", "")
    ran = bare("console", "--listen", "0")
    assert ran.code == 2
    assert "$KOHORT_CONSOLE_TOKEN is empty" in ran.err
