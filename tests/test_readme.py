"""README.md is true: its code runs as it is shown, its commands work, its links lead somewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kohort import Producer
from kohort.testing import Cluster
from tests.pages import blocks_of
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
TIMEOUT_S = PATIENCE_S
CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""As in a terminal: what a script starts in its background (`make test &`) ignores Ctrl-C, and so
would all that it starts."""


def environment(cluster: Cluster) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUNBUFFERED": "1",
        "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap,
    }


def test_the_first_lines_of_code_consume_as_they_stand() -> None:
    """Only the address is another one. The group has then committed what was printed."""
    first = blocks_of(README, "python")[0]
    assert len(first.splitlines()) <= 10
    with Cluster() as cluster:
        cluster.create_topic("orders")
        code = CTRL_C + first.replace("localhost:9092", cluster.bootstrap)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(cluster),
        )  # fmt: skip
        printed: list[str] = []
        seen = threading.Event()

        def watch() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                seen.set()

        reader = threading.Thread(target=watch)
        reader.start()
        try:
            with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                deadline = time.monotonic() + TIMEOUT_S
                while not seen.wait(0.2):  # a new group starts at the end: produce until it reads
                    assert time.monotonic() < deadline
                    assert process.poll() is None
                    producer.send("orders", b"one", key=b"k").result(TIMEOUT_S)
            process.send_signal(signal.SIGINT)
            reader.join(TIMEOUT_S)
            _, said = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        assert re.fullmatch(r"0 \d+ b'k' b'one'\n", printed[0])
        assert "KeyboardInterrupt" in said
        lag = subprocess.run(
            [sys.executable, "-m", "kohort", "group", "lag", "billing"],
            capture_output=True, text=True, env=environment(cluster), timeout=TIMEOUT_S,
        )  # fmt: skip
        assert lag.returncode == 0, lag.stderr


def test_the_app_bills_and_fails_as_it_says() -> None:
    """The App of the README as it stands: what is bad fails, redrive would send it."""
    chosen = ["--topic", "payments", "--group", "billing-app"]
    with Cluster() as cluster:
        cluster.create_topic("payments")

        def kohort(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "kohort", *arguments],
                capture_output=True, text=True, env=environment(cluster), timeout=TIMEOUT_S,
            )  # fmt: skip

        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("payments", b'{"amount": -1}')
            producer.send("payments", b'{"amount": 5}')
        code = blocks_of(README, "python")[1].replace("localhost:9092", cluster.bootstrap)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(cluster),
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "billed 5\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        assert (process.returncode, said) == (0, "")
        assert "1 failed" in kohort("failed", "list", *chosen).stdout
        redrive = kohort("failed", "redrive", *chosen, "--reason", "negative_amount", "--dry-run")
        assert "1 would be sent" in redrive.stdout + redrive.stderr


def test_its_commands_work_in_their_order(tmp_path: Path) -> None:
    """`kohort broker run` is the cluster here; the others are run as they stand."""
    commands = [line[2:] for block in blocks_of(README, "console") for line in block.splitlines()]
    assert commands[0].startswith("kohort broker run ")
    tool = tmp_path / "kohort"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m kohort "$@"\n')
    tool.chmod(0o755)
    with Cluster() as cluster:
        env = environment(cluster)
        env["PATH"] = f"{tmp_path}:{env['PATH']}"
        for command in commands[1:]:
            ran = subprocess.run(
                command, shell=True, capture_output=True, text=True, env=env, timeout=TIMEOUT_S
            )
            assert ran.returncode == 0, f"{command}\n{ran.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of every page, and every `docs/…` path that a page names."""
    text = page.read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    wrong = [to for to in links if to and "://" not in to and not (page.parent / to).exists()]
    wrong += [to for to in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", text) if not _reaches(page, to)]
    named = re.findall(r"`((?:docs|examples|tools|benchmarks|tests)/[\w./-]*)`", text)
    wrong += [name for name in named if not (ROOT / name).exists()]
    assert not wrong


def _reaches(page: Path, link: str) -> bool:
    """Whether the place in a page that a link names is there: a heading, or an `id`."""
    name, _, place = link.partition("#")
    if "://" in name or (name and not name.endswith(".md")):
        return True
    text = (page.parent / name if name else page).read_text()
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}
    return place in slugs | set(re.findall(r'id="([^"]+)"', text))


def test_the_makes_targets_that_it_names_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README.read_text()))
    assert named - {"says"} <= targets
