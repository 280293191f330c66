"""What `make compat` and `make compat-go` share: a broker for every test, results, allow-lists.

A test of an allow-list (tests/compat/allowed-NAME.txt) that does not pass, nor when it is run once
more (many go by the clock), fails the whole; a test that skips itself did not pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "compat"
FINDINGS = ROOT / "docs" / "compat-findings.md"
NODES = 3
RACKS = "RACK1,RACK2,RACK3"
"""RACK and the node's id, as librdkafka's suite names them."""
INITIAL_DELAY_MS = 1_000
"""The tests expect two members that come together to be in one first generation, as with Kafka's
default of 3000; ours is 0."""


@dataclass(frozen=True)
class Result:
    """How one test ended."""

    name: str
    state: str
    """PASSED, FAILED, SKIPPED, or CRASHED (no summary: killed, or out of time)."""
    seconds: float
    why: str


@contextmanager
def running_broker(settings: tuple[str, ...], log: Path) -> Iterator[str]:
    """`kohort broker run` in an empty directory; gives its bootstrap addresses.

    Without access control, which is asked for where a test wants it: where rights are asked for,
    usual requests do not go by the broker's lane (ADR 0014), and most brokers have none.
    """
    with tempfile.TemporaryDirectory(prefix="kohort-compat-") as directory:
        words = [
            sys.executable,
            "-m",
            "kohort",
            "broker",
            "run",
            "--port",
            "0",
            "--nodes",
            str(NODES),
            "--racks",
            RACKS,
            "--partitions",
            "4",
            "--data-dir",
            directory,
            "-X",
            "replica.selector.class=RackAwareReplicaSelector",
            "-X",
            f"group.initial.rebalance.delay.ms={INITIAL_DELAY_MS}",
        ]
        for setting in settings:
            words += ["-X", setting]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        with log.open("w") as errors:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                ready = re.match(r"ready on (\S+)", line)
                if ready is None:
                    raise RuntimeError(f"the broker did not start: {line!r}; see {log}")
                yield ready[1]
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def read_list(listed_as: str) -> list[str]:
    """The names of an allow-list, in its order."""
    path = LISTS / f"allowed-{listed_as}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def add_to_list(listed_as: str, names: list[str]) -> None:
    """The list only grows: nothing is ever taken from it here. Its head is kept."""
    path = LISTS / f"allowed-{listed_as}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    head = [line for line in lines if line.startswith("#")]
    every = sorted({*read_list(listed_as), *names})
    path.write_text("".join(f"{line}\n" for line in [*head, *every]))


def twice(listed_as: str, run: Callable[[], list[Result]]) -> list[Result]:
    """Run and show; once more when something that is on the list did not pass."""
    ended = run()
    show(listed_as, ended)
    allowed = set(read_list(listed_as))
    if any(result.state != "PASSED" and result.name in allowed for result in ended):
        print("         once more, because it is on the list:")
        ended = run()
        show(listed_as, ended)
    return ended


def show(listed_as: str, results: list[Result]) -> None:
    """A line each, at once."""
    for result in results:
        why = "" if result.state == "PASSED" else f"  {result.why[:300]}"
        print(f"{listed_as:9}{result.name:48}{result.state:8}{result.seconds:7.1f} s{why}")
    sys.stdout.flush()


def judge(listed_as: str, results: list[Result], update: bool) -> bool:
    """Compare with the allow-list; say what is new, what is gone. True when nothing is lost."""
    allowed = set(read_list(listed_as))
    passed = [r.name for r in results if r.state == "PASSED"]
    lost = [r for r in results if r.state != "PASSED" and r.name in allowed]
    new = [name for name in passed if name not in allowed]
    print(f"==> {listed_as}: {len(passed)} of {len(results)} broker tests pass")
    if new and update:
        add_to_list(listed_as, new)
        print(f"    added to allowed-{listed_as}.txt: {' '.join(new)}")
    elif new:
        print(f"    may be added (--update): {' '.join(new)}")
    known = FINDINGS.read_text()
    for result in results:
        if result.state != "PASSED" and result.name not in known:
            print(f"    no cause in {FINDINGS.name}: {result.name}: {result.why[:200]}")
    for result in lost:
        print(f"    LOST: {result.name} is on the list and {result.state}: {result.why}")
    return not lost
