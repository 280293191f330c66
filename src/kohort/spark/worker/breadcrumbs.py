"""Records that kill the process that handles them: found, and failed as `worker_killed`.

Shell: files (mapped memory), processes (fork).

Rules (spec 6.5):
- Before each call of a handler the offset goes into a mapped file of this machine: it costs a tenth
  of a microsecond, and outlives the process. The file goes when its task has ended.
- A crumb that is found only raises suspicion: the process may have been killed for another reason.
  So what is suspected is tried in a child first. A record whose child dies too has killed three
  processes then, and never gets a fourth; the records that survive are handled as usual.
- Handlers compute and do not write, so that they may be called once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import select
import signal
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from kohort.records import Record
from kohort.retry.classify import Disposition, Failure, stated
from kohort.retry.copies import Attempt
from kohort.retry.handling import Handlers, HandlerSpec, Outcome
from kohort.retry.store import Store

log = logging.getLogger("kohort.spark")
DEATHS: Final = 3
PATIENCE_S: Final = 600.0
"""The longest time that a child may take; one that takes longer is not dead."""
WORKER_KILLED: Final = "worker_killed"
_RANGE: Final = struct.Struct("<qq")
_NOTHING: Final = (-1, -1)
Items = Sequence[Attempt] | Sequence[Record]
Place = tuple[str, int]


class Breadcrumb:
    """Which offsets of one partition are being handled on this machine, [low, high)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            if file.tell() < _RANGE.size:
                file.truncate(0)
                file.write(_RANGE.pack(*_NOTHING))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _RANGE.size)
        self.left: tuple[int, int] = _RANGE.unpack(self._map)
        """What a process that died has left: offsets that it was handling; (-1, -1) for none."""
        self.mark: Callable[[int, int], None] = partial(_RANGE.pack_into, self._map, 0)
        """`mark(low, high)`: from now on these offsets are being handled. Without a frame of its
        own, as it is called for every record."""

    def close(self) -> None:
        """Nothing is being handled any more."""
        self._map.close()
        self._path.unlink(missing_ok=True)


class GuardedHandlers:
    """The handlers of one task, as the `Handler` of `kohort.retry.fenced`, with breadcrumbs.

    Args:
        pipeline: the pipeline's name; crumbs are kept by it, topic and partition.
        directory: where the crumbs of this machine are.
    """

    def __init__(
        self, pipeline: str, specs: Sequence[HandlerSpec], directory: Path | None = None
    ) -> None:
        self._pipeline = pipeline
        self._handlers = Handlers(specs)
        self._directory = directory or Path(tempfile.gettempdir()) / f"kohort-crumbs-{os.getuid()}"
        self._crumbs: dict[Place, Breadcrumb] = {}

    def __call__(self, base: str, attempts: Items, store: Store) -> list[Outcome]:
        """As `Handlers`; a record that kills its process is a permanent failure."""
        if not attempts:
            return []
        offsets = [_offset(a) for a in attempts]
        crumb = self._crumb(_place(attempts[0]))
        killed = self._killers(base, attempts, store, crumb, offsets)
        if not killed:
            return self._handle(base, attempts, store, crumb, offsets)
        rest = [i for i in range(len(attempts)) if i not in killed]
        handled: Any = [attempts[i] for i in rest]
        outcomes = self._handle(base, handled, store, crumb, [offsets[i] for i in rest])
        by_index: dict[int, Outcome] = {**killed, **dict(zip(rest, outcomes, strict=True))}
        return [by_index[i] for i in range(len(attempts))]

    def _handle(
        self, base: str, attempts: Items, store: Store, crumb: Breadcrumb, offsets: list[int]
    ) -> list[Outcome]:
        if not attempts:
            return []
        mark = crumb.mark

        def handling(first: int, last: int) -> None:
            mark(offsets[first], offsets[last] + 1)

        handling(0, -1)  # while values are decoded
        outcomes = self._handlers(base, attempts, store, handling)
        mark(*_NOTHING)
        return outcomes

    def _killers(
        self, base: str, attempts: Items, store: Store, crumb: Breadcrumb, offsets: list[int]
    ) -> dict[int, Failure]:
        """Those of the suspected records that do kill a process, by index."""
        low, high = crumb.left
        suspects = [i for i, offset in enumerate(offsets) if low <= offset < high]
        if not suspects:
            return {}
        log.warning(
            "a process died while it handled %s/%d at %d; the record is tried in a child first",
            *_place(attempts[0]),
            low,
        )
        killed: dict[int, Failure] = {}

        def probe(indices: Sequence[int]) -> str:
            part: Any = [attempts[i] for i in indices]
            return self._death(base, part, store)

        _halve(suspects, probe, killed)
        crumb.left = _NOTHING
        return killed

    def _death(self, base: str, part: Items, store: Store) -> str:
        """Handle records in a child, into nothing: how it has died; "" when it has not."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with contextlib.suppress(Exception):  # an exception is the record's, and no death
                    self._handlers(base, part, store)
                os.write(writer, b".")
            finally:
                os._exit(0)
        os.close(writer)
        ready, _, _ = select.select([reader], [], [], PATIENCE_S)
        alive = not ready or os.read(reader, 1) == b"."
        os.close(reader)
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        return "" if alive else _cause(status, usage.ru_maxrss)

    def close(self) -> None:
        """The task has ended: no crumb of it is left."""
        while self._crumbs:
            self._crumbs.popitem()[1].close()

    def _crumb(self, place: Place) -> Breadcrumb:
        if place not in self._crumbs:
            name = "\0".join((self._pipeline, *map(str, place)))
            digest = hashlib.sha256(name.encode()).hexdigest()[:24]
            self._crumbs[place] = Breadcrumb(self._directory / digest)
        return self._crumbs[place]


def _halve(
    suspects: Sequence[int], probe: Callable[[Sequence[int]], str], killed: dict[int, Failure]
) -> None:
    """Halve what dies until its records are alone; what dies alone again is failed."""
    death = probe(suspects)
    if not death:
        return
    if len(suspects) > 1:
        half = len(suspects) // 2
        _halve(suspects[:half], probe, killed)
        _halve(suspects[half:], probe, killed)
        return
    for _ in range(DEATHS - 2):  # the first has left the crumb
        death = probe(suspects)
        if not death:
            return
    killed[suspects[0]] = stated(
        WORKER_KILLED,
        permanent=True,
        disposition=Disposition.CRASH,
        message=f"the process that handled it died {DEATHS} times, last by {death}",
    )


def _cause(status: int, memory_kib: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
    return f"{how}, with {memory_kib // 1024} MiB of memory"


def _offset(item: Attempt | Record) -> int:
    return item.position[2] if isinstance(item, Attempt) else item.offset


def _place(item: Attempt | Record) -> Place:
    return item.position[:2] if isinstance(item, Attempt) else (item.topic, item.partition)
