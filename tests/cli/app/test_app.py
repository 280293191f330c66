"""`kohort app`: a module's handlers as a process, its end, and its retry topics looked at."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kohort import Admin, Producer
from kohort.cli.app.commands import ShownFailures
from kohort.processing.engine.failures import FailedAttempt
from kohort.testing import Cluster
from tests.cli.common.test_process import ended, start
from tests.cli.conftest import Run

PROGRAM = """
import threading
from kohort import App, Permanent

client = {"heartbeat_interval_ms": 100, "session_timeout_ms": 6_000}
app = App("billing", retries="5m 1h", client=client)

@app.handler("%s")
def bill(record):
    if record.value == b"bad":
        raise Permanent("bad")
    if record.value == b"slow":
        print("slow", flush=True)
        threading.Event().wait(600)
    else:
        print(record.value.decode(), flush=True)
"""


@pytest.fixture
def program(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    topic = request.node.name[:60].replace("[", "-").replace("]", "")
    cluster.create_topic(topic, 2)
    name = f"program_{topic}"
    (tmp_path / f"{name}.py").write_text(PROGRAM % topic)
    return topic, f"{tmp_path / name}.py:app"


def produce(cluster: Cluster, topic: str, *values: bytes) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, b"key")


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def test_runs_until_sigterm_and_tells_how_it_ended(cluster: Cluster, program) -> None:
    topic, where = program
    produce(cluster, topic, b"one", b"bad", b"two")
    process = start(cluster, "app", "run", where, "--workers", "3")
    assert lines(process, 2) == ["one", "two"]
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert (code, out) == (0, "succeeded 2, scheduled for retry 0, dead-lettered 1\n")
    assert f"app billing reads {topic} on {cluster.bootstrap}" in err


@pytest.mark.parametrize("command", ["run", "check"])
def test_an_app_without_handlers_is_refused(bare: Run, tmp_path: Path, command: str) -> None:
    """Before its cluster is asked for anything."""
    (tmp_path / "empty_app.py").write_text("from kohort import App\n\napp = App('billing')\n")
    where = f"{tmp_path / 'empty_app.py'}:app"
    ran = bare("app", command, where)
    assert (ran.code, ran.out) == (2, "")
    assert f"{where}: the app has no handler; register one with @app.handler(TOPIC)" in ran.err


def test_what_takes_longer_than_the_drain_is_given_up(cluster: Cluster, program) -> None:
    """Exit code 4, and the record is done again by whoever comes next."""
    topic, where = program
    produce(cluster, topic, b"one", b"slow")
    process = start(cluster, "app", "run", where, "--drain", "200ms")
    assert lines(process, 2) == ["one", "slow"]
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert (code, out) == (
        4,
        "succeeded 1, scheduled for retry 0, dead-lettered 0, abandoned 1\n",
    )
    assert "still in progress when --drain was over" in err
    again = start(cluster, "app", "run", where, "--drain", "0s")
    assert lines(again, 1) == ["slow"]
    again.kill()
    again.communicate()


def test_check_prints_the_commands(cluster: Cluster, kohort: Run, program) -> None:
    topic, where = program
    ran = kohort("app", "check", where)
    assert ran.code == 3
    assert [line.split("--topic ")[1].split()[0] for line in ran.lines] == [
        f"{topic}.billing.{end}" for end in ("retry.0s", "retry.5m", "retry.1h", "dlt")
    ]
    assert "--config message.timestamp.type=LogAppendTime" in ran.lines[0]
    assert "it does not exist" in ran.err
    for end in ("retry.0s", "retry.1h", "dlt"):
        cluster.create_topic(
            f"{topic}.billing.{end}", 2, {"message.timestamp.type": "LogAppendTime"}
        )
    cluster.create_topic(f"{topic}.billing.retry.5m", 2)
    ran = kohort("app", "check", where, "-o", "json")
    assert ran.code == 3
    assert {row["topic"].split(".", 2)[2]: row["state"] for row in ran.json["rows"]} == {
        "retry.0s": "fit",
        "retry.5m": "unfit",
        "retry.1h": "fit",
        "dlt": "fit",
    }
    unfit = next(row for row in ran.json["rows"] if row["state"] == "unfit")
    assert "message.timestamp.type=LogAppendTime" in unfit["command"]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics([f"{topic}.billing.retry.5m"])
    cluster.create_topic(
        f"{topic}.billing.retry.5m", 2, {"message.timestamp.type": "LogAppendTime"}
    )
    ran = kohort("app", "check", where)
    assert (ran.code, ran.out) == (0, "all 4 retry topics of app billing are fit\n")
    left = f"{topic}.billing.retry.30m"  # of a policy that this app once had
    cluster.create_topic(left, 2)
    assert kohort("app", "check", where).code == 0
    produce(cluster, left, b"waits")
    ran = kohort("app", "check", where)
    assert (ran.code, ran.out) == (3, "")
    assert f"{left}: about 1 record of '{topic}' wait in it, and retries='5m 1h'" in ran.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:app", "No module named 'no_such_module'"),
        ("missing.py:app", "there is no file missing.py"),
        ("json:app", "json has no App called 'app'. It has no App at all."),
    ],
)
def test_what_is_no_app(kohort: Run, name: str, message: str) -> None:
    ran = kohort("app", "run", name)
    assert ran.code in (1, 2)
    assert message in ran.err


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_program_that_runs_when_it_is_imported_is_refused(bare: Run, tmp_path, command) -> None:
    """`check` ran it, and `run` refused the second run after it."""
    (tmp_path / "eager_app.py").write_text(
        "from kohort import App\napp = App('billing')\napp.handler('payments')(print)\napp.run()\n"
    )
    ran = bare("app", command, f"{tmp_path / 'eager_app.py'}:app")
    assert (ran.code, ran.out) == (1, "")
    assert "eager_app.py calls app.run() when it is imported; put the call under" in ran.err


def test_a_name_nearby(kohort: Run, program) -> None:
    ran = kohort("app", "check", program[1].replace(":app", ":ap"))
    assert "Did you mean" in ran.err
    assert ":app?" in ran.err


def test_no_cluster_is_said_at_once(bare: Run, program) -> None:
    ran = bare("app", "run", program[1], "-b", "127.0.0.1:1")
    assert ran.code == 1
    assert "127.0.0.1:1" in ran.err


def test_failed_attempts_are_shown_as_many_as_somebody_may_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spec 5.7: topic, partition, offset, attempt, next try; --quiet leaves the retries out."""
    now_s = 100.0
    shown = ShownFailures(now_s=lambda: now_s)
    for offset in range(50):
        shown(attempt(offset, dead=False))
    first = capsys.readouterr().err.splitlines()
    assert len(first) == 20
    assert first[3] == (
        "orders-1 offset 3, attempt 2, failed: ValueError: bad\\x1b[2J; next try in 30m"
    )
    now_s = 101.0
    shown(attempt(50, dead=True))
    assert capsys.readouterr().err.splitlines() == [
        "30 more attempts failed, not shown",
        "orders-1 offset 50, attempt 2, failed: ValueError: bad\\x1b[2J; "
        "it goes to the dead-letter topic orders.g.dlt",
    ]
    quiet = ShownFailures(quiet=True)
    quiet(attempt(1, dead=False))
    assert capsys.readouterr().err == ""
    quiet(attempt(1, dead=True))
    assert "dead-letter topic" in capsys.readouterr().err


def test_a_stack_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stack = 'Traceback:\n  File "a.py"\nValueError: bad\x1b[2J\n'
    ShownFailures()(replace(attempt(1, dead=True), stack=stack))
    shown = capsys.readouterr().err.splitlines()
    assert shown[1:] == ["Traceback:", '  File "a.py"', "ValueError: bad\\x1b[2J"]


def attempt(offset: int, *, dead: bool) -> FailedAttempt:
    return FailedAttempt(
        "orders",
        1,
        offset,
        2,
        "ValueError",
        "ValueError",
        "bad\x1b[2J",
        "",
        "f",
        dead,
        1_000,
        None if dead else 1_801_000,
        "orders.g.dlt" if dead else "orders.g.retry.30m",
        dead,
    )


def test_run_shows_what_fails(cluster: Cluster, program) -> None:
    topic, where = program
    produce(cluster, topic, b"bad", b"one")
    process = start(cluster, "app", "run", where)
    assert lines(process, 1) == ["one"]
    process.send_signal(signal.SIGTERM)
    _, err = ended(process)[-2:]
    assert "Traceback" not in err, "it was raised on purpose"
    assert "attempt 0, failed: Permanent: bad; it goes to the dead-letter topic" in err
