"""The demonstration's broker is found again, whoever was killed when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kohort.demo.broker_process import BrokerProcess
from tests.patience import PATIENCE_S


def test_a_broker_is_found_again_and_stopped(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path)
    address = first.ensure()
    try:
        again = BrokerProcess(tmp_path)
        assert again.ensure() == address
        again.stop()
        assert first.running() is None
    finally:
        first.stop()


@pytest.mark.parametrize("note", [None, "not json", '{"pid": 1, "bootstrap": "127.0.0.1:1"}'])
def test_a_broker_that_nobody_noted_is_replaced(tmp_path: Path, note: str | None) -> None:
    """The driver was killed after it had started its broker, and before it wrote that down."""
    command = [
        sys.executable,
        "-m",
        "kohort",
        "broker",
        "run",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as orphan:
        try:
            assert orphan.stdout is not None
            assert orphan.stdout.readline().startswith(b"ready on ")
            if note is not None:
                (tmp_path / "broker.json").write_text(note)
            broker = BrokerProcess(tmp_path)
            broker.ensure()
            broker.stop()
            assert orphan.wait(PATIENCE_S) == 0
        finally:
            orphan.kill()
