"""The command as a process: exit codes, what goes where, signals, and readers that leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kohort
from kohort.cli import main
from kohort.testing import Cluster
from tests.cli.conftest import Ran, Run
from tests.patience import PATIENCE_S

SRC = str(Path(kohort.__file__).parent.parent)


def start(cluster: Cluster | None, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": SRC}
    env.pop("KOHORT_BOOTSTRAP_SERVERS", None)
    if cluster is not None:
        env["KOHORT_BOOTSTRAP_SERVERS"] = cluster.bootstrap
    return subprocess.Popen(
        [sys.executable, "-m", "kohort", *args],
        text=True,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[str], stdin: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=PATIENCE_S)
    return process.returncode, out, err


@contextmanager
def broker(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker's process that is ready, and its address; killed at the end if still there."""
    process = start(None, "broker", "run", *args)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.match(r"ready on (127\.0\.0\.1:\d+) ", ready)
        assert found, ready
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def test_exit_codes_and_streams(cluster: Cluster, kohort: Run) -> None:
    """0 done, 1 failed, 2 wrong usage, 3 a check failed; data on stdout, the rest on stderr."""
    code, out, err = ended(start(cluster, "produce", "t"), "a\nb\n")
    assert (code, out) == (0, "")
    assert "2 records stored" in err
    code, out, err = ended(start(cluster, "topic", "describe", "tt"))
    assert (code, out) == (1, "")
    assert err.startswith("error: UNKNOWN_TOPIC_OR_PARTITION (3): topic 'tt' does not exist")
    assert "Traceback" not in err
    code, out, err = ended(start(None, "topic", "descrieb"))
    assert (code, out) == (2, "")
    consume = ("consume", "t", "-g", "g", "--from-beginning", "--max", "1", "-f", "value")
    assert kohort(*consume) == Ran(0, "a\n", "")
    code, out, err = ended(start(cluster, "group", "lag", "g", "--fail-above", "0"))
    assert code == 3
    assert out.startswith("GROUP ")
    assert "is 1, more than 0 is not allowed" in err


def test_a_traceback_is_shown_on_request(kohort: Run, monkeypatch) -> None:
    monkeypatch.setenv("KOHORT_DEBUG", "0")  # the option sets it; undone at the end
    ran = kohort("--debug", "topic", "describe", "tt")
    assert ran.code == 1
    assert "Traceback" in ran.err


def test_a_reader_that_leaves_is_no_error(cluster: Cluster, kohort: Run) -> None:
    """`kohort consume … | head -1`: exit code 0, no word on stderr; the group keeps the rest."""
    kohort("produce", "many", stdin=b"".join(b"%0100d\n" % n for n in range(20_000)))
    args = ("consume", "many", "-g", "left", "--from-beginning", "-f", "value")
    with start(cluster, *args) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"{0:0100d}\n"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""
    lag = kohort("group", "lag", "left", "-o", "csv")
    assert lag.code == 0
    assert int(lag.lines[1].split(",")[5]) > 15_000


def test_a_reader_that_leaves_is_noticed_though_no_record_comes(
    cluster: Cluster, kohort: Run
) -> None:
    """`kohort consume quiet --from-beginning | head -1` ends when `head` has ended."""
    kohort("produce", "quiet", stdin=b"a\n")
    with start(cluster, "consume", "quiet", "--from-beginning", "-f", "value") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "a\n"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    "closed",
    [
        "<&- >&- 2>&-",
        *(pytest.param(one, marks=pytest.mark.extended) for one in ("<&-", ">&-", "2>&-")),
    ],
)
def test_a_closed_stream_takes_nothing_and_gives_nothing(
    cluster: Cluster, kohort: Run, closed: str
) -> None:
    """Begun without standard streams, as by some supervisors: no traceback, no socket in theirs."""
    kohort("produce", "streams", stdin=b"a\n")
    env = {**os.environ, "PYTHONPATH": SRC, "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap}
    for command in ("topic list", "produce streams", "consume streams -e", "user set bob"):
        ran = subprocess.run(
            f"{sys.executable} -m kohort {command} {closed}",
            shell=True,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == (2 if "user" in command else 0), ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_told(cluster: Cluster, kohort: Run) -> None:
    """A full disk behind `>`: one line, exit code 1, and the group commits nothing of it."""
    kohort("produce", "unwritten", stdin=b"a\nb\n")
    env = {**os.environ, "PYTHONPATH": SRC, "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap}
    read = ("consume", "unwritten", "-g", "unwritten", "--from-beginning", "-e")
    with open("/dev/full", "w") as full:
        for args in (("--help",), ("group", "list", "-o", "json"), read):
            done = subprocess.run(
                [sys.executable, "-m", "kohort", *args],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                timeout=PATIENCE_S,
            )
            assert done.returncode == 1
            message = "error: the output could not be written: No space left on device\n"
            assert done.stderr == message
    lag = kohort("group", "lag", "unwritten", "-o", "csv")
    assert sum(int(line.split(",")[5]) for line in lag.lines[1:]) == 2


@pytest.mark.rows(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_a_consumer_cleanly(
    cluster: Cluster, kohort: Run, number: signal.Signals, code: int
) -> None:
    """What was written is committed, and the group knows at once that the member has left."""
    topic = group = f"sig-{code}"
    kohort("produce", topic, stdin=b"a\nb\nc\n")
    args = ("consume", topic, "-g", group, "--from-beginning", "-f", "value")
    with start(cluster, *args) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(3)] == ["a\n", "b\n", "c\n"]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
        printed = process.stderr.read()
    assert printed == f"interrupted: read 3 records, committed to group {group}\n"
    lines = kohort("group", "describe", group).lines
    assert lines[1].split()[-2:] == ["Empty", "0"]
    assert lines[4].split()[:6] == [group, topic, "0", "3", "3", "0"]


def test_a_broker_says_when_it_is_ready_and_stops_on_a_signal(tmp_path: Path, bare: Run) -> None:
    """And what was stored is there again after a restart."""
    where = ("--port", "0", "--data-dir", str(tmp_path / "data"))
    with broker(*where) as (process, address):
        assert bare("produce", "kept", "-b", address, stdin=b"a\n").code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    with broker(*where) as (process, address):
        args = ("consume", "kept", "-b", address, "--from-beginning", "--until-end", "-f", "value")
        assert bare(*args) == Ran(0, "a\n", "")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_a_port_or_data_directory_in_use_is_named(tmp_path: Path) -> None:
    """The second broker changes nothing and says who is in the way and what to do."""
    data = str(tmp_path / "data")
    with broker("--port", "0", "--data-dir", data) as (first, address):
        port = address.rpartition(":")[2]
        code, out, err = ended(start(None, "broker", "run", "--port", port))
        assert code != 0
        assert out == ""
        assert f"127.0.0.1:{port}" in err
        assert "choose another, or 0" in err
        code, out, err = ended(start(None, "broker", "run", "--port", "0", "--data-dir", data))
        assert (code, out) == (1, "")
        assert f"{data} is in use by process {first.pid}" in err
        assert "Traceback" not in err
        assert first.poll() is None


def test_an_unknown_broker_setting_is_named_as_it_was_written(tmp_path: Path, bare: Run) -> None:
    """With the nearest name, and before the data directory is made."""
    data = tmp_path / "data"
    args = ("broker", "run", "--data-dir", str(data), "-X", "mesage.max.bytes=3")
    ran = bare(*args)
    assert (ran.code, ran.out) == (2, "")
    assert "'mesage.max.bytes'; did you mean 'message.max.bytes'?" in ran.err
    assert not data.exists()


def test_a_missing_extra_is_named_with_the_way_to_get_it(bare: Run, monkeypatch) -> None:
    """No traceback of an import; another module that is missing is a fault and shows one."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.cloudpickle", None)
    file = Path(__file__).parents[3] / "examples" / "flights_pipeline.py"
    ran = bare("pipeline", "run", str(file))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "error: `kohort pipeline` needs pyspark, which is not installed; "
        "install it with: pip install 'kohort[spark]'\n"
    )


class Without:
    """A finder that finds all but one package."""

    def __init__(self, package: str, finder: Any) -> None:
        self.package, self.finder = package, finder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name == self.package else self.finder.find_spec(name, path, target)


@pytest.mark.parametrize(
    ("command", "part"),
    [("demo flights", "kohort.demo"), ("simulate compare", "kohort.simulator.history")],
)
def test_without_the_demo_its_commands_name_what_to_install(
    bare: Run, monkeypatch, command: str, part: str
) -> None:
    """The distribution kohort-demo has these packages, a client's wheel has not."""
    for name in [n for n in sys.modules if f"{n}.".startswith(f"{part}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Without(part, finder) for finder in sys.meta_path])
    ran = bare(*command.split())
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"error: `kohort {command.split()[0]}` needs {part}, which is not installed; "
        "install it with: pip install 'kohort[demo]'\n"
    )


def test_a_record_that_the_topic_refuses_is_named(kohort: Run) -> None:
    """Smaller than the producer's limit, larger than the topic's."""
    assert kohort("topic", "create", "small", "-c", "max.message.bytes=1000").code == 0
    ran = kohort("produce", "small", stdin=b"x" * 2_000 + b"\n")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(
        "error: 0 of 1 record stored: the broker refused 1 record for small-0 as too large (a batch"
    )
    assert (
        "the topic accepts 1000 (max.message.bytes)); raise max.message.bytes on the topic"
        in ran.err
    )
    assert ran.err.count("\n") == 1


def test_a_verifiable_producer_that_reaches_nobody_ends_when_it_is_asked() -> None:
    """It waited out its minute, deaf to SIGTERM; that nobody listens is said at once."""
    command = [sys.executable, "-m", "kohort", "verifiable-producer", "--topic", "t"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", "127.0.0.1:1", "--max-messages", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "startup_complete" in process.stdout.readline()
        assert "is the broker running there?" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        events = [json.loads(line)["name"] for line in process.stdout]
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert events == ["producer_send_error", "shutdown_complete", "tool_data"]


def test_an_interrupt_before_the_command_begins_shows_no_traceback(monkeypatch, capsys) -> None:
    """Ctrl-C while modules are still imported: as later, one word and exit code 130."""

    def interrupted(command: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kohort.cli.common.root.run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
