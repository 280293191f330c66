"""Plays pages of the documentation: files are written, commands are run, outputs are compared.

Rules:
- A block behind `<!-- file: NAME -->` is written into the page's directory. `localhost:9092` in it,
  and in commands, is the test's cluster.
- In a `console` block each line behind `$ ` is run, in the order of the page; what it prints stands
  below it. With KOHORT_WRITE_DOCS set the page is written anew instead of being compared.
- `kohort app run NAME  # Ctrl-C when all is done` gets its Ctrl-C when the group has committed all
  that stands in the app's topics; `when all is handled` also leaves alone what waits in retry
  topics.
- `COMMAND &` is run until its first line, and ended.
- A command that is `kohort` and words alone is run in this process, which saves its start; one with
  a pipe or variables, and one that goes on or imports programs, has processes of its own.
- `<!-- not run: REASON -->` before a block leaves it out.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import kohort
from kohort import Admin, Consumer
from kohort.broker.control.port import Control
from kohort.cli.common.root import app, invoke
from kohort.testing import Cluster

ROOT = Path(__file__).parent.parent
SRC = Path(kohort.__file__).parent.parent
SERVERS = "localhost:9092"
TIMEOUT_S = 600
PAUSE_S = 0.1
VARIES = [
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r'"timestamp": \d+'), '"timestamp": TIME'),
    (re.compile(r"\b(127\.0\.0\.1|localhost):\d+"), "HOST:PORT"),
    (re.compile(r"\b(id|cluster) [\w-]{22}"), r"\1 ID"),
    (re.compile(r"\bredrive \d{8}-\d{6}\b"), "redrive ID"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b\d+ ms\b"), "N ms"),
    (re.compile(r"^trouble: .*\n(?:warning: .*\n)*the trouble is over\n", re.MULTILINE), ""),
    (re.compile(r"  +"), "  "),
]
_IN_PROCESS = re.compile(
    r"kohort (?:group|topic|produce|consume|user|acl|config|cluster|faults|doctor|transaction)"
    r"[^|&;$`<>()*~#]*"
)
_UNTIL = re.compile(r"(kohort app run .*?) +# Ctrl-C when all is (done|handled)")


_FAILURE = re.compile(r"\S+-\d+ offset \d+, attempt \d+, failed: ")


def failures_last(out: str) -> str:
    """What an app prints, with failures of one line before the sum at the end: a handler of
    another partition prints before or after them."""
    lines = out.splitlines(keepends=True)
    short = {
        n
        for n, line in enumerate(lines)
        if _FAILURE.match(line) and not "".join(lines[n + 1 : n + 2]).startswith("Traceback")
    }
    failures = [line for n, line in enumerate(lines) if n in short]
    others = [line for n, line in enumerate(lines) if n not in short]
    at = next((n for n, line in enumerate(others) if line.startswith("succeeded ")), len(others))
    return "".join([*others[:at], *failures, *others[at:]])


def same(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Shell:
    """Runs a page's commands in one directory, against one cluster."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.members = ExitStack()
        tools = directory / "bin"
        tools.mkdir()
        for name, words in (("kohort", "-m kohort "), ("python", "")):
            script = tools / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            script.chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(SRC),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
            "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap,
        }

    def here(self, text: str) -> str:
        """A page's text with this cluster's address."""
        return text.replace(SERVERS, self.cluster.bootstrap)

    def run(self, command: str) -> str:
        """What a command prints, both streams, and its exit code when it is not 0."""
        command = self.here(command)
        if command.endswith(" &"):
            return self.ready_line(command.removesuffix(" &"))
        if _IN_PROCESS.fullmatch(command):
            return self.run_here(shlex.split(command)[1:])
        ends = _UNTIL.fullmatch(command)
        with subprocess.Popen(
            ["bash", "-c", f"exec {ends[1]}" if ends else command],
            cwd=self.directory,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                printed = (
                    self.until_committed(process, retry_topics=ends[2] == "done") if ends else ""
                )
                out, _ = process.communicate(timeout=TIMEOUT_S)
                if ends:
                    out = failures_last(out)
            except BaseException:  # whatever it was, its processes must not stay behind
                os.killpg(process.pid, signal.SIGKILL)
                raise
        code = f"# exit code {process.returncode}\n" if process.returncode else ""
        out = (printed + out).replace(str(self.directory), "/home/me")
        return out.rstrip("\n") + "\n" * bool(out) + code

    def run_here(self, words: list[str]) -> str:
        """As `run`, of a command of ours without a shell's doing."""
        out = io.TextIOWrapper(io.BytesIO(), write_through=True)
        handlers = list(logging.getLogger().handlers)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("KOHORT_")}
        environ |= {k: v for k, v in self.env.items() if k.startswith("KOHORT_")}
        with (
            contextlib.chdir(self.directory),
            mock.patch.dict(os.environ, environ, clear=True),
            mock.patch.multiple(sys, stdout=out, stderr=out, stdin=io.TextIOWrapper(io.BytesIO())),
        ):
            code = invoke(app, words)
        for handler in set(logging.getLogger().handlers) - set(handlers):
            logging.getLogger().removeHandler(handler)  # it writes to what is closed by then
        out.seek(0)
        text = out.read().replace(str(self.directory), "/home/me")
        ending = f"# exit code {code}\n" if code else ""
        return text.rstrip("\n") + "\n" * bool(text) + ending

    def until_committed(self, process: subprocess.Popen[str], *, retry_topics: bool) -> str:
        """Ctrl-C for an app that has nothing left to do; its first line, which names its topics."""
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"app (\S+) reads (.+) on ", line)
        if found is None:
            return line  # it has something to say against its start
        group, topics = found[1], tuple(found[2].split(", "))
        deadline, pause = time.monotonic() + TIMEOUT_S, threading.Event()
        while process.poll() is None and self.lag(group, topics, retry_topics=retry_topics):
            assert time.monotonic() < deadline, f"{group} does not come to an end"
            pause.wait(PAUSE_S)
        process.send_signal(signal.SIGINT)
        return line

    def lag(self, group: str, topics: tuple[str, ...], *, retry_topics: bool) -> int:
        """Records of the topics and their retry topics not committed yet; 1 when not begun."""
        prefixes = tuple(f"{topic}.{group}.retry." for topic in topics)
        with Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
            names = {t.name: t.partition_count for t in admin.list_topics()}
            at = {tuple(tp): o.offset for tp, o in admin.list_group_offsets(group).items()}
        wanted = [
            (name, number)
            for name, count in names.items()
            if name in topics or (retry_topics and name.startswith(prefixes))
            for number in range(count)
        ]
        with Consumer(bootstrap_servers=self.cluster.bootstrap) as consumer:
            ends = consumer.end_offsets(wanted)
        return sum(end - at.get(tuple(tp), 0) for tp, end in ends.items())

    def ready_line(self, command: str) -> str:
        """The first line of a command that goes on; it is ended then."""
        with subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        return line

    def directive(self, text: str) -> None:
        """What holds for the next blocks, until `after`.

        `not run: REASON` is for readers of the page's source; nothing is done.

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
            users={"admin": "admins-word"},
            security_protocol="SASL_PLAINTEXT",
            acls=True,
            super_users=("User:admin",),
        ) as cluster:
            self.env["KOHORT_BOOTSTRAP_SERVERS"] = cluster.bootstrap
            yield
        self.env["KOHORT_BOOTSTRAP_SERVERS"] = self.cluster.bootstrap

    @contextmanager
    def member(self, group: str, topic: str, protocol: str = "classic") -> Iterator[None]:
        with Consumer(
            bootstrap_servers=self.cluster.bootstrap,
            group_id=group,
            client_id="audit-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_protocol=protocol,
        ) as consumer:
            consumer.subscribe([topic])
            while len(consumer.assignment()) < 3:
                consumer.poll(0.2)
            consumer.commit(dict.fromkeys(consumer.assignment(), 0))
            yield


def replayed(page: str, shell: Shell, kind: str) -> str:
    """The page with the outputs that its blocks of this kind print now."""
    out: list[str] = []
    lines = iter(page.splitlines())
    left_out = False
    for line in lines:
        out.append(line)
        if note := re.fullmatch(r"<!-- (.*) -->", line):
            text = note[1]
            if text.startswith("file: "):
                out += _file(lines, shell, text.removeprefix("file: "))
            elif text.startswith("not run: "):
                left_out = True
            elif kind == "console":
                shell.directive(text)
        elif line == f"```{kind}" and not left_out:
            out += _block(lines, shell.run)
        elif line.startswith("```"):
            left_out = False
    return "\n".join(out) + "\n"


def _file(lines: Iterator[str], shell: Shell, name: str) -> list[str]:
    block = [next(lines)]
    while block[-1] != "```":
        block.append(next(lines))
    (shell.directory / name).write_text(shell.here("\n".join(block[1:-1]) + "\n"))
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


def blocks_of(page: Path, language: str) -> list[str]:
    """What stands in the page's blocks of a language, in order."""
    found = rf"^```{language}\n(.*?)^```$"
    return re.findall(found, page.read_text(), re.MULTILINE | re.DOTALL)


def kinds_of_blocks(page: Path) -> set[str]:
    """The languages of the blocks that neither make a file nor say why they are not run."""
    kinds, note = set[str](), ""
    inside = False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            inside = not inside
            if inside and not note.startswith(("file: ", "not run: ")):
                kinds.add(line.removeprefix("```"))
            note = ""
        elif not inside:
            found = re.fullmatch(r"<!-- (.*) -->", line)
            note = found[1] if found else note if not line else ""
    return kinds


def check(page: Path, directory: Path, cluster: Cluster, kind: str = "console") -> None:
    """Play the page's blocks of a kind, and compare; or write the page anew."""
    compare(page, Shell(directory, cluster), kind)


def compare(page: Path, shell: Shell, kind: str) -> None:
    """As `check`, in a shell that is there."""
    text = page.read_text()
    found = replayed(text, shell, kind)
    if os.environ.get("KOHORT_WRITE_DOCS"):
        page.write_text(found)
    else:
        wanted, got = same(text).splitlines(), same(found).splitlines()
        differs = difflib.unified_diff(wanted, got, "the page", "what was printed", lineterm="")
        assert wanted == got, "\n".join(differs)


def tool(name: str) -> ModuleType:
    """A program of `tools/`, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module
