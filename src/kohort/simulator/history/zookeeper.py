"""A ZooKeeper ensemble, as far as consumers used it: nodes, sessions, ephemerals, watches.

Rules:
- A watch fires once; a client that needs the next change sets it again with its next read.
- A session gets its notifications in order (the world's links ensure that).
- An ephemeral node goes when its session is closed, or when no message has come in the session for
  its timeout. A client hears that its session has expired when it reaches the ensemble again, and
  not before.
- A request that represents many (`Look`, `Create` and `Delete` of several paths) is counted as
  many: a consumer of that time read and wrote them one after the other.
- Sizes are those of ZooKeeper's own protocol (jute), without what a connection costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

HEAD_IN, HEAD_OUT, STAT, ACL = 12, 20, 68, 31
PING_BYTES = HEAD_IN + HEAD_OUT
RECONNECT_BYTES = 2 * 48
"""Asking for the old session on another server, and the answer."""


@dataclass(frozen=True, slots=True)
class Create:
    """Ephemeral nodes; the answer is the tuple of those paths that another session has."""

    paths: tuple[str, ...]
    data: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Nodes of one's own; the answer is the tuple of those paths that were not there."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The children of `parent`, each child's data, and the data of `also`; sets watches on
    `parent`'s children and on `also`. The answer is a `View`."""

    parent: str
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """End the session; its ephemerals go."""


Request = Create | Delete | Look | Close


@dataclass(frozen=True, slots=True)
class View:
    """What a `Look` saw: the children in order, and the data of each path of `also`."""

    children: tuple[str, ...]
    data: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request: its result, the requests it represents, and bytes both ways."""

    result: View | tuple[str, ...]
    requests: int
    writes: int
    size: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A watch of `session` has fired."""

    session: int
    path: str

    @property
    def size(self) -> int:
        """Bytes of the notification."""
        return HEAD_OUT + 12 + len(self.path)


class Ensemble:
    """The tree and its sessions. Times are the caller's, in milliseconds."""

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._data: dict[str, str] = {}
        self._owner: dict[str, int] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._sorted: dict[str, tuple[str, ...]] = {}
        self._child_watches: dict[str, dict[int, None]] = {}
        self._data_watches: dict[str, dict[int, None]] = {}
        self._renewed_ms: dict[int, int] = {}
        self._ephemerals: dict[int, dict[str, None]] = {}
        self._due: list[tuple[int, int]] = []
        self._serial = 0

    # -- sessions ------------------------------------------------------------------------------

    def connect(self, now_ms: int) -> int:
        """A new session."""
        self._serial += 1
        self._renewed_ms[self._serial] = now_ms
        self._ephemerals[self._serial] = {}
        heappush(self._due, (now_ms + self._session_ms, self._serial))
        return self._serial

    def alive(self, session: int) -> bool:
        """Whether the session has neither expired nor been closed."""
        return session in self._renewed_ms

    def renew(self, session: int, now_ms: int) -> bool:
        """Something came from `session`; False when it has expired."""
        if session not in self._renewed_ms:
            return False
        self._renewed_ms[session] = now_ms
        return True

    def renew_all(self, now_ms: int) -> None:
        """A new leader gives every session its whole timeout again."""
        for session in self._renewed_ms:
            self._renewed_ms[session] = now_ms

    def next_deadline(self) -> int | None:
        """When a session may expire next."""
        return self._due[0][0] if self._due else None

    def tick(self, now_ms: int) -> list[Notice]:
        """Expire the sessions that were not renewed within their timeout."""
        notices: list[Notice] = []
        while self._due and self._due[0][0] <= now_ms:
            _, session = heappop(self._due)
            renewed_ms = self._renewed_ms.get(session)
            if renewed_ms is None:
                continue
            if renewed_ms + self._session_ms > now_ms:
                heappush(self._due, (renewed_ms + self._session_ms, session))
            else:
                notices += self._end(session)
        return notices

    def _end(self, session: int) -> list[Notice]:
        del self._renewed_ms[session]
        notices = self._remove(list(self._ephemerals.pop(session)))
        return [notice for notice in notices if notice.session != session]

    # -- requests ------------------------------------------------------------------------------

    def request(
        self, session: int, request: Request, now_ms: int
    ) -> tuple[Answer, list[Notice]] | None:
        """Carry out a request; None when the session has expired."""
        if not self.renew(session, now_ms):
            return None
        if isinstance(request, Look):
            return self._look(session, request), []
        if isinstance(request, Create):
            return self._create(session, request)
        if isinstance(request, Delete):
            return self._delete(session, request)
        return Answer((), 1, 1, HEAD_IN + HEAD_OUT), self._end(session)

    def set_data(self, path: str, data: str) -> list[Notice]:
        """What an administrator writes: a persistent node, made when it is not there."""
        self._data[path] = data
        return self._fired(self._data_watches, path)

    def _look(self, session: int, request: Look) -> Answer:
        self._child_watches.setdefault(request.parent, {})[session] = None
        for path in request.also:
            self._data_watches.setdefault(path, {})[session] = None
        children = self._sorted.get(request.parent)
        if children is None:
            children = tuple(sorted(self._children.get(request.parent, ())))
            self._sorted[request.parent] = children
        data = tuple(self._data.get(path, "") for path in request.also)
        named = sum(map(len, children))
        read = len(children) * (len(request.parent) + 1) + named
        size = (
            HEAD_IN
            + 5
            + len(request.parent)
            + HEAD_OUT
            + 4
            + 4 * len(children)
            + named
            + len(children) * (HEAD_IN + 5 + HEAD_OUT + STAT + 4)
            + read
            + sum(self._data_size(request.parent, child) for child in children[:1]) * len(children)
            + sum(
                HEAD_IN + 5 + len(p) + HEAD_OUT + STAT + 4 + len(d)
                for p, d in zip(request.also, data, strict=True)
            )
        )
        return Answer(View(children, data), 1 + len(children) + len(data), 0, size)

    def _data_size(self, parent: str, child: str) -> int:
        return len(self._data.get(f"{parent}/{child}", ""))

    def _create(self, session: int, request: Create) -> tuple[Answer, list[Notice]]:
        failed: list[str] = []
        notices: list[Notice] = []
        for path in request.paths:
            if path in self._data:
                failed.append(path)
                continue
            self._data[path], self._owner[path] = request.data, session
            self._ephemerals[session][path] = None
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent, {})[name] = None
            self._sorted.pop(parent, None)
            notices += self._fired(self._child_watches, parent)
        named = sum(map(len, request.paths))
        each = HEAD_IN + 4 + 4 + len(request.data) + ACL + HEAD_OUT + 4
        count = len(request.paths)
        return Answer(tuple(failed), count, count, 2 * named + count * each), notices

    def _delete(self, session: int, request: Delete) -> tuple[Answer, list[Notice]]:
        mine = [path for path in request.paths if self._owner.get(path) == session]
        missing = tuple(path for path in request.paths if path not in set(mine))
        for path in mine:
            del self._ephemerals[session][path]
        count = len(request.paths)
        size = sum(map(len, request.paths)) + count * (HEAD_IN + 8 + HEAD_OUT)
        return Answer(missing, count, count, size), self._remove(mine)

    def _remove(self, paths: Sequence[str]) -> list[Notice]:
        notices: list[Notice] = []
        for path in paths:
            del self._data[path], self._owner[path]
            parent, _, name = path.rpartition("/")
            del self._children[parent][name]
            self._sorted.pop(parent, None)
            notices += self._fired(self._child_watches, parent)
        return notices

    @staticmethod
    def _fired(watches: dict[str, dict[int, None]], path: str) -> list[Notice]:
        sessions: Iterable[int] = watches.pop(path, ())
        return [Notice(session, path) for session in sessions]
