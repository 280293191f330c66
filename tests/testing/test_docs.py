"""docs/testing.md is true: its Python blocks are test files that pass, its commands work."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks_of
from tests.patience import PATIENCE_S
from tests.testing.verifiable_run import ENV, KOHORT

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"


@pytest.mark.extended
def test_its_python_blocks_are_tests_that_pass(tmp_path: Path):
    files = blocks_of(PAGE, "python")
    assert len(files) >= 9
    for number, code in enumerate(files):
        assert "def test_" in code
        (tmp_path / f"test_block_{number}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "kohort.testing.plugin", "-q", "--strict-markers"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        env={**os.environ, **ENV, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    tests = sum(code.count("def test_") for code in files)
    assert f"{tests} passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.extended
def test_its_commands_work_in_their_order(tmp_path: Path):
    """The broker takes free ports here; everything else is run as it stands."""
    commands = [line[2:] for block in blocks_of(PAGE, "console") for line in block.splitlines()]
    run, export, *rest = commands
    assert run.startswith("kohort broker run ")
    tool = tmp_path / "kohort"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m kohort "$@"\n')
    tool.chmod(0o755)
    started = [*KOHORT, *run.replace("--control 9690", "--control 0 --port 0").split()[1:]]
    broker = subprocess.Popen(
        started,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENV},
    )
    try:
        assert broker.stderr is not None
        assert broker.stdout is not None
        announcement = next(line for line in broker.stderr if line.startswith("control on"))
        port = announcement.strip().rpartition(":")[2]
        assert export == "export KOHORT_CONTROL=9690"
        env = {**os.environ, **ENV, "KOHORT_CONTROL": port}
        env["PATH"] = f"{tmp_path}:{env['PATH']}"
        servers = broker.stdout.readline().split()[2]
        made = ["topic", "create", "orders", "--bootstrap", servers]
        subprocess.run(
            [*KOHORT, *made], env=env, check=True, capture_output=True, timeout=PATIENCE_S
        )
        for command in rest:
            if command.startswith("curl") and shutil.which("curl") is None:
                continue
            ran = subprocess.run(
                command.replace("9690", port),
                shell=True,
                capture_output=True,
                text=True,
                env=env,
                timeout=PATIENCE_S,
            )
            assert ran.returncode == 0, f"{command}\n{ran.stderr}"
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=PATIENCE_S)
        assert broker.returncode == 0
    finally:
        broker.kill()
        broker.communicate()
