"""One driver for each checkpoint: a lock, and a wait for the JVM of a killed driver.

Shell: files, processes, sleep.

Rules (invariant X6):
- The Python process holds the lock; it ends with the process, also by kill -9.
- The JVM of a killed driver runs for a few more seconds. The lock file has its pid; the next
  driver waits until it has ended. The fence refuses what it still writes.
- After a kill in a container the driver's own JVM may have that pid: it is not waited for.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from kohort.errors import ConfigError
from kohort.spark.checkpoint_files import CheckpointFiles

LOCK_NAME: Final = "driver.lock"
QUERIES: Final = "queries"
"""The note of the queries of the last run."""
JVM_WAIT_S: Final = 30.0
POLL_S: Final = 0.1
_PROC: Final = Path("/proc")


class CheckpointLock:
    """A context manager around one run of a pipeline.

    Args:
        directory: where the lock file is.
        jvm_wait_s: how long to wait for the JVM of a killed driver, in seconds.
        own_jvm: returns the pid of this driver's JVM, if it runs already; None without one.

    Raises ConfigError when another driver holds the checkpoint.
    """

    def __init__(
        self,
        directory: Path,
        *,
        jvm_wait_s: float = JVM_WAIT_S,
        own_jvm: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._path = directory / LOCK_NAME
        self._jvm_wait_s = jvm_wait_s
        self._own_jvm = own_jvm
        self._fd = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        holder = self._read()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise ConfigError(
                f"the checkpoint {self._path.parent} is in use by process {holder.get('pid')}; "
                "one pipeline runs in one driver"
            ) from None
        try:
            self._await_jvm(holder)
        except BaseException:  # release the lock after any error
            os.close(self._fd)
            raise
        self._write({"pid": os.getpid()})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write({})
        os.close(self._fd)

    def note_jvm(self, pid: int | None) -> None:
        """Remember the JVM that works for this driver."""
        self._write({"pid": os.getpid(), "jvm": pid})

    def _await_jvm(self, holder: dict[str, Any]) -> None:
        pid = holder.get("jvm")
        if not isinstance(pid, int) or not _is_java(pid):
            return
        if pid in (os.getppid(), self._own_jvm()):  # spark-submit's JVM is the parent
            return
        deadline = time.monotonic() + self._jvm_wait_s
        while _is_java(pid):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the Spark process {pid} of an earlier run of {self._path.parent} is still "
                    "running; end it first"
                )
            time.sleep(POLL_S)

    def _read(self) -> dict[str, Any]:
        raw = os.pread(self._fd, 4096, 0)
        try:
            value: Any = json.loads(raw or b"{}")
        except ValueError:
            return {}
        return cast(dict[str, Any], value) if isinstance(value, dict) else {}

    def _write(self, value: dict[str, Any]) -> None:
        raw = json.dumps(value).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, raw, 0)


def topics_of(files: CheckpointFiles, name: str) -> list[str] | None:
    """The topics that a query's checkpoint was made for; None without a checkpoint."""
    topics = _topics(files, name)
    return topics if topics is not None and files.exists(name) else None


def begin_anew_for_other_topics(files: CheckpointFiles, name: str, topics: Iterable[str]) -> bool:
    """Remove the checkpoint of a query that read other topics; True when there was one.

    It would replay a batch of topics that have no handler any more. The store's fences know better
    where the query is.
    """
    names, before = sorted(topics), _topics(files, name)
    stale = before != names and files.exists(name)
    if stale:
        files.remove(name)
    if before != names:
        files.write(f"{name}.topics", json.dumps(names))
    return stale


def check_topics(files: CheckpointFiles, name: str, step: str, topics: Iterable[str]) -> None:
    """Note what a step that keeps state reads; its state is of those topics.

    Raises ConfigError when its checkpoint is of others.
    """
    names, before = sorted(topics), _topics(files, name)
    if before is not None and before != names and files.exists(name):
        raise ConfigError(
            f"step {step} has kept state of {', '.join(before)} and would read {', '.join(names)} "
            "now: its inputs were changed, or a step that reads the same rows was put before it. "
            "Nothing was read. Put the steps back (a further reader goes below), or rebuild the "
            "tables with a pipeline of another name (kohort pipeline replay)"
        )
    if before != names:
        files.write(f"{name}.topics", json.dumps(names))


def begin_anew_after_absence(files: CheckpointFiles, names: Iterable[str]) -> list[str]:
    """Remove the checkpoints of queries that were not among those of the last run; returns them.

    Others may have read their topics since, so that the store's fences are ahead. Asked before
    `note_queries`, and not of queries that keep state.
    """
    last = _listed(files, QUERIES)
    stale = [] if last is None else [n for n in names if n not in last and files.exists(n)]
    for name in stale:
        files.remove(name)
    return stale


def note_queries(files: CheckpointFiles, names: Iterable[str]) -> None:
    """Note the queries of a run, before the first of them reads anything."""
    present = sorted(names)
    if _listed(files, QUERIES) != present:
        files.write(QUERIES, json.dumps(present))


def check_state(
    files: CheckpointFiles, name: str, step: str, topics: Iterable[str], read: Collection[str]
) -> None:
    """Raise ConfigError when the state of a step is not of all earlier rows: it is not there, or
    the step was not among those of the last run.

    Args:
        topics: what it reads.
        read: the topics of which the pipeline has read something.
    """
    begun = [topic for topic in topics if topic in read]
    if begun and not files.exists(name):
        raise ConfigError(
            f"step {step} would begin without state, and rows of {', '.join(begun)} were read "
            f"before: the step has another name, or its checkpoint {files.location(name)} was "
            "deleted. Nothing was started. Put back its name or the checkpoint, or rebuild the "
            "tables with a pipeline of another name (kohort pipeline replay)"
        )
    last = _listed(files, QUERIES)
    if last is not None and name not in last and files.exists(name):
        raise ConfigError(
            f"step {step} was taken out for a run, so the rows of that run are not in its state. "
            "Nothing was started. Leave it out, or rebuild the tables with a pipeline of another "
            "name (kohort pipeline replay)"
        )


def _topics(files: CheckpointFiles, name: str) -> list[str] | None:
    return _listed(files, f"{name}.topics")


def _listed(files: CheckpointFiles, note: str) -> list[str] | None:
    """The names in a note; None where it is not there, or is no list."""
    try:
        value: Any = json.loads(files.read(note) or "null")
    except ValueError:
        return None
    return cast(list[str], value) if isinstance(value, list) else None


def _is_java(pid: int) -> bool:
    """True while the process lives and is a JVM (a pid may have been given to another)."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return any(b"java" in word for word in command_of(pid))


def command_of(pid: int) -> list[bytes]:
    """The words of a live process's command line; empty when there is no such process."""
    if (_PROC / "self" / "cmdline").exists():
        try:
            return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return []
    # macOS has no /proc; there `ps` tells, with words that are only as apart as spaces make them.
    command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, check=False).stdout.split()
