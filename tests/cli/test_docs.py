"""docs/cli.md is true: its commands are run in order and print what stands there.

With KOHORT_WRITE_DOCS set the page is written anew instead. Blocks marked `console spark` need a
Spark session and are run by a test of their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import kohort
from kohort import Consumer
from kohort.broker.control import Control
from kohort.testing import Cluster
from tests.java import skip_without

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
SRC = Path(kohort.__file__).parent.parent
TIMEOUT_S = 300
VARIES = [
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r'"timestamp": \d+'), '"timestamp": TIME'),
    (re.compile(r"127\.0\.0\.1:\d+"), "HOST:PORT"),
    (re.compile(r"\bid [\w-]{22}"), "id ID"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b\d+ ms\b"), "N ms"),
    (re.compile(r"  +"), "  "),
]


def same(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Shell:
    """Runs the page's commands in one directory, against one cluster."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.members = ExitStack()
        tools = directory / "bin"
        tools.mkdir()
        script = tools / "kohort"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m kohort "$@"\n')
        script.chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(SRC),
            "PYTHONWARNINGS": "ignore",
            "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap,
        }

    def run(self, command: str) -> str:
        """What a command prints, both streams, and its exit code when it is not 0."""
        if command.endswith(" &"):
            return self.ready_line(command.removesuffix(" &"))
        with subprocess.Popen(
            ["bash", "-c", command], cwd=self.directory, env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, _ = process.communicate(timeout=TIMEOUT_S)
            except BaseException:  # whatever it was, its processes must not stay behind
                os.killpg(process.pid, signal.SIGKILL)
                raise
        code = f"# exit code {process.returncode}\n" if process.returncode else ""
        out = out.replace(str(self.directory), "/home/me")
        return out.rstrip("\n") + "\n" * bool(out) + code

    def ready_line(self, command: str) -> str:
        """The first line of a command that goes on; it is ended then."""
        with subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.directory, env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        return line

    def directive(self, text: str) -> None:
        """What holds for the next blocks, until `after`.

        `not run: REASON` is for readers of this page's source; nothing is done.

        `before: member GROUP TOPIC [PROTOCOL]` joins, `before: control` opens the control port,
        `before: users` gives them another cluster, with a login and access control.
        """
        name, _, rest = text.partition(":")
        if name == "before":
            kind, *words = rest.split()
            context = {"member": self.member, "control": self.control, "users": self.users}[kind]
            self.members.enter_context(context(*words))
        elif name == "after":
            self.members.close()

    @contextmanager
    def control(self) -> Iterator[None]:
        control = Control(self.cluster.broker, self.cluster._gate, 0)
        self.env["KOHORT_CONTROL"] = str(control.port)
        yield
        del self.env["KOHORT_CONTROL"]
        control.close()

    @contextmanager
    def users(self) -> Iterator[None]:
        with Cluster(
            users={"admin": "admins-word"}, security_protocol="SASL_PLAINTEXT", acls=True,
            super_users=("User:admin",),
        ) as cluster:  # fmt: skip
            self.env["KOHORT_BOOTSTRAP_SERVERS"] = cluster.bootstrap
            yield
        self.env["KOHORT_BOOTSTRAP_SERVERS"] = self.cluster.bootstrap

    @contextmanager
    def member(self, group: str, topic: str, protocol: str = "classic") -> Iterator[None]:
        with Consumer(
            bootstrap_servers=self.cluster.bootstrap, group_id=group, client_id="audit-1",
            auto_offset_reset="earliest", enable_auto_commit=False, group_protocol=protocol,
        ) as consumer:  # fmt: skip
            consumer.subscribe([topic])
            while len(consumer.assignment()) < 3:
                consumer.poll(0.2)
            consumer.commit(dict.fromkeys(consumer.assignment(), 0))
            yield


def replayed(page: str, shell: Shell, kind: str) -> str:
    """The page with the outputs that its blocks of this kind print now."""
    out: list[str] = []
    lines = iter(page.splitlines())
    for line in lines:
        out.append(line)
        if note := re.fullmatch(r"<!-- (.*) -->", line):
            text = note[1]
            if text.startswith("file: "):
                out += _file(lines, shell.directory / text.removeprefix("file: "))
            elif kind == "console":
                shell.directive(text)
        elif line == f"```{kind}":
            out += _block(lines, shell.run)
    return "\n".join(out) + "\n"


def _file(lines: Iterator[str], path: Path) -> list[str]:
    block = [next(lines)]
    while block[-1] != "```":
        block.append(next(lines))
    path.write_text("\n".join(block[1:-1]) + "\n")
    return block


def _block(lines: Iterator[str], run: Callable[[str], str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        if line == "```":
            return [*out, line]
        if line.startswith("$ "):
            out.append(line)
            out += run(line.removeprefix("$ ")).splitlines()
    raise AssertionError("a block without an end")


def test_every_block_is_run_or_says_why_not() -> None:
    """A command that nobody runs is a command that may not work: `<!-- not run: REASON -->`."""
    kinds, note = [], ""
    inside = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("```"):
            inside = not inside
            if inside and not note.startswith(("file: ", "not run: ")):
                kinds.append(line.removeprefix("```"))
            note = ""
        elif not inside:
            found = re.fullmatch(r"<!-- (.*) -->", line)
            note = found[1] if found else note if not line else ""
    assert set(kinds) == {"console", "console spark"}


def check(tmp_path: Path, cluster: Cluster, kind: str) -> None:
    page = PAGE.read_text()
    found = replayed(page, Shell(tmp_path, cluster), kind)
    if os.environ.get("KOHORT_WRITE_DOCS"):
        PAGE.write_text(found)
    else:
        assert same(found) == same(page)


@pytest.mark.slow
def test_the_page_of_the_command_line_is_true(tmp_path: Path) -> None:
    with Cluster() as cluster:
        check(tmp_path, cluster, "console")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_page_of_the_pipeline_commands_is_true(tmp_path: Path) -> None:
    skip_without()
    with Cluster() as cluster:
        check(tmp_path, cluster, "console spark")
