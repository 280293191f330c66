"""README.md is true: its code runs as it is shown, its commands work, its links lead somewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import pytest

from kohort import Admin, Producer, TopicPartition
from kohort.testing import Cluster
from tests.pages import Shell, blocks_of, replayed, same
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
TIMEOUT_S = PATIENCE_S
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
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


class Program:
    """A program of the README in a process of its own; only the address is another one."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        code = blocks_of(README, "python")[number].replace("localhost:9092", cluster.bootstrap)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CTRL_C + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(cluster),
        )
        self.lines: SimpleQueue[str] = SimpleQueue()
        self.warnings: SimpleQueue[str] = SimpleQueue()
        pipes = ((self.process.stdout, self.lines), (self.process.stderr, self.warnings))
        self._readers = [threading.Thread(target=self._read, args=pair) for pair in pipes]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(pipe: IO[str], lines: SimpleQueue[str]) -> None:
        for line in pipe:
            lines.put(line)

    def interrupt(self) -> list[str]:
        """Ctrl-C; what it wrote to its standard error from then on. It ends in peace."""
        while not self.warnings.empty():
            self.warnings.get()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(TIMEOUT_S) == 0
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return [self.warnings.get() for _ in range(self.warnings.qsize())]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_first_lines_of_code_consume_as_they_stand() -> None:
    """They print what is there and what comes; Ctrl-C ends them in peace, all is committed."""
    first = blocks_of(README, "python")[0]
    assert len([line for line in first.splitlines() if line]) <= 10
    with Cluster() as cluster:
        cluster.create_topic("orders")
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("orders", b"before", key=b"k").result(TIMEOUT_S)
            with Program(0, cluster) as program:
                assert program.lines.get(timeout=TIMEOUT_S) == "0 0 b'k' b'before'\n"
                producer.send("orders", b"after", key=b"k").result(TIMEOUT_S)
                assert program.lines.get(timeout=TIMEOUT_S) == "0 1 b'k' b'after'\n"
                assert program.interrupt() == []
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            committed = admin.list_group_offsets("billing")[TopicPartition("orders", 0)]
        assert committed.offset == 2


def test_the_first_lines_run_before_their_topic_is_there() -> None:
    with Cluster() as cluster, Program(0, cluster) as program:
        assert "'orders' does not exist" in program.warnings.get(timeout=TIMEOUT_S)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("orders", b"one", key=b"k").result(TIMEOUT_S)
        assert program.lines.get(timeout=TIMEOUT_S).endswith("b'k' b'one'\n")
        assert program.interrupt() == []


def test_the_app_runs_before_its_topic_is_there() -> None:
    """It says what is missing, begins when it comes, and ends in peace in either state."""
    with Cluster() as cluster:
        with Program(1, cluster) as program:
            assert "'payments', which does not exist" in program.warnings.get(timeout=TIMEOUT_S)
            assert program.interrupt() == []
        with Program(1, cluster) as program:
            assert "'payments', which does not exist" in program.warnings.get(timeout=TIMEOUT_S)
            with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                producer.send("payments", b'{"amount": 5}').result(TIMEOUT_S)
            assert program.lines.get(timeout=TIMEOUT_S) == "billed 5\n"
            assert program.interrupt() == []


def test_the_app_bills_and_fails_as_it_says() -> None:
    """The App of the README as it stands: what is bad fails, redrive would send it."""
    chosen = ["--topic", "payments", "--group", "billing-app"]
    with Cluster() as cluster:
        cluster.create_topic("payments")

        def kohort(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "kohort", *arguments],
                capture_output=True,
                text=True,
                env=environment(cluster),
                timeout=TIMEOUT_S,
            )

        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("payments", b'{"amount": -1}')
            producer.send("payments", b'{"amount": 5}')
        with Program(1, cluster) as program:
            assert program.lines.get(timeout=TIMEOUT_S) == "billed 5\n"
            warning = program.warnings.get(timeout=TIMEOUT_S)
            assert program.interrupt() == []
        assert "Permanent: negative_amount; it goes to the dead-letter topic" in warning
        assert "1 failed" in kohort("dlq", "list", *chosen).stdout
        redrive = kohort("dlq", "redrive", *chosen, "--reason", "negative_amount", "--dry-run")
        assert "1 would be sent" in redrive.stdout + redrive.stderr


def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    """In their order; `kohort broker run` is the test's cluster."""
    first, handlers = blocks_of(README, "console")
    broker, ready, shown = first.split("\n", 2)
    assert broker.startswith("$ kohort broker run ")
    assert ready.startswith("ready on ")
    code = blocks_of(README, "python")[0].replace("in consumer:", "in islice(consumer, 2):")
    with Cluster() as cluster:
        shell = Shell(tmp_path, cluster)
        bounded = f"from itertools import islice\n{shell.here(code)}"  # where a reader has Ctrl-C
        (tmp_path / "billing.py").write_text(bounded)
        (tmp_path / "payments.py").write_text(shell.here(blocks_of(README, "python")[1]))
        for block in (shown, handlers):
            printed = replayed(f"```console\n{block}```", shell, "console")
            assert same(printed) == same(f"```console\n{block}```")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of every page, and every `docs/…` path that a page names."""
    text = page.read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    wrong = [to for to in links if to and "://" not in to and not (page.parent / to).exists()]
    wrong += [to for to in links if to.startswith(SOURCE) and not _in_repository(to)]
    wrong += [to for to in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", text) if not _reaches(page, to)]
    named = re.findall(r"`((?:docs|examples|tools|benchmarks|tests)/[\w./-]*)`", text)
    wrong += [name for name in named if not (ROOT / name).exists()]
    assert not wrong


def _in_repository(link: str) -> bool:
    """Whether the file is there that an absolute link names: README's links work on PyPI, too."""
    return (ROOT / link.removeprefix(SOURCE).removeprefix("/blob/main/")).exists()


def test_the_readme_has_no_relative_links() -> None:
    """PyPI shows it without the repository."""
    links = re.findall(r"\]\(([^)\s]+)\)", README.read_text())
    assert [link for link in links if not link.startswith("https://")] == []
    picture = re.search(
        r"!\[[^\]]+\]\(https://raw.githubusercontent.com/[\w-]+/\w+/main/(.+)\)", README.read_text()
    )
    assert picture is not None
    assert (ROOT / picture[1]).exists()


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
