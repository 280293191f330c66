"""`cluster.faults` and `cluster.requests`: what goes wrong, and what a cluster was asked.

    cluster.faults.fail("OffsetCommit", ["NOT_COORDINATOR"] * 3, group="billing")
    cluster.faults.delay(200, "Fetch", node=2)
    with cluster.faults.cut("JoinGroup", handled=True) as cut:
        cut.wait()
    cluster.requests.wait("OffsetCommit", count=4)

Rules:
- Faults hold for every client and library alike, and outlive `restart`, `kill` and `stop` of the
  cluster. `clear` takes all of them away.
- Everything may be called from any thread, and has taken effect when it returns: the next request
  that the broker reads is met by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, TypeVar, Unpack

from kohort.broker.faults.faulty_files import DiskFault
from kohort.broker.faults.gate import FaultInjector
from kohort.broker.faults.notices import Notices
from kohort.broker.faults.request_log import LoggedRequest
from kohort.broker.faults.rules import Answerer, Armed, Fault, Then, api_name, error_code
from kohort.errors import KafkaTimeoutError

T = TypeVar("T")
Apis = str | Iterable[str] | None
Ask = Callable[[Callable[[], T]], T]


class Where(TypedDict, total=False):
    """Which requests a fault meets; what is left out does not matter."""

    node: int
    """The node that is asked."""
    topic: str
    """Other topics of the same request are served as usual."""
    partition: int
    """Of `topic`; other partitions are served as usual."""
    group: str
    transactional_id: str
    client_id: str
    times: int
    """How many requests are met, then it is over. Default: see each method."""
    skip: int
    """How many requests are let through first. Default 0."""


class SetFault:
    """A fault that was set. Used in `with`, it is removed at the end."""

    def __init__(self, armed: Armed, faults: ClusterFaults) -> None:
        self._armed = armed
        self._faults = faults

    @property
    def number(self) -> int:
        """Its number, as a `LoggedRequest.fault` names it."""
        return self._armed.number

    @property
    def hits(self) -> int:
        """How many requests it was carried out on so far."""
        return self._armed.hits

    def wait(self, hits: int = 1, timeout_s: float = 60.0) -> None:
        """Return when it has been carried out `hits` times. Raises KafkaTimeoutError."""
        met = self._faults.notices.until(
            lambda: True if self._armed.hits >= hits else None, timeout_s
        )
        if met is None:
            raise KafkaTimeoutError(
                f"the fault {self._armed.fault.as_json()} was met {self._armed.hits} times within "
                f"{timeout_s} s, not {hits}; cluster.requests shows what came"
            )

    def remove(self) -> None:
        """Meet no more requests; answers that it holds leave."""
        self._faults.remove(self.number)

    def __enter__(self) -> SetFault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"SetFault({self._armed.as_json()})"


class ClusterFaults:
    """Sets faults. An `api` is Kafka's name, several of them, or None for every one.

    Every method raises UsageError for names that Kafka does not know.
    """

    def __init__(self, gate: FaultInjector, notices: Notices, ask: Ask[Any]) -> None:
        self._gate = gate
        self.notices = notices
        self._ask = ask

    def fail(
        self,
        api: Apis,
        errors: str | int | Iterable[str | int],
        *,
        handled: bool = False,
        **where: Unpack[Where],
    ) -> SetFault:
        """Answer the next requests with these errors (names or codes), one each, then as usual.

        `NONE` in the list lets one pass; `times` (default: the list once) repeats the list. The
        request is not carried out; with `handled` it is, and its client gets the error.
        """
        listed = [errors] if isinstance(errors, str | int) else list(errors)
        codes = tuple(error_code(error) for error in listed)
        return self._add(Then.FAIL, api, where, errors=codes, handled=handled)

    def delay(self, ms: int, api: Apis = None, **where: Unpack[Where]) -> SetFault:
        """Let answers leave `ms` milliseconds late, as over a slow network; delays add up."""
        return self._add(Then.DELAY, api, where, delay_ms=ms)

    def hold(self, api: Apis = None, **where: Unpack[Where]) -> SetFault:
        """Carry requests out, and keep their answers back until this fault is removed."""
        return self._add(Then.HOLD, api, where)

    def silence(self, api: Apis = None, **where: Unpack[Where]) -> SetFault:
        """Carry the next request out (`times`: 1) and never answer it, nor what follows it on its
        connection: a broker that hangs."""
        return self._add(Then.SILENCE, api, where, times=1)

    def cut(self, api: Apis = None, *, handled: bool = False, **where: Unpack[Where]) -> SetFault:
        """Close the connection of the next request (`times`: 1), before it is carried out, or
        `handled`: after, so that its client does not know whether it was."""
        return self._add(Then.CUT, api, where, handled=handled, times=1)

    def answer(self, api: Apis, fn: Answerer, **where: Unpack[Where]) -> SetFault:
        """Let `fn(request, version)` answer, on the broker's thread; None lets a request pass.

        What `fn` raises is raised by the next `clear`.
        """
        return self._add(Then.ANSWER, api, where, answer=fn)

    def limit(self, api: str, max_version: int) -> None:
        """Offer an API up to a version only, until `clear`, as an older broker does; -1: not at
        all. Clients learn it with their next connection; a newer request ends its connection."""
        self._ask(lambda: self._gate.limit(api, max_version))

    def fail_disk(
        self,
        operation: str = "append",
        error: str = "EIO",
        *,
        path: str = "*",
        after: int = 0,
        times: int | None = 1,
    ) -> DiskFault:
        """Let the disk fail: an `append`, `sync` or `read` of a file that matches `path`, after as
        many that succeed, with EIO, ENOSPC or EROFS; `times` None: until `clear`.

        A partition's files are `TOPIC-PARTITION/*`.
        """
        return self._gate.disk.add(DiskFault(operation, error, path, after, times))

    def _add(self, then: Then, api: Apis, where: Where, **values: Any) -> SetFault:
        names = [] if api is None else [api] if isinstance(api, str) else list(api)
        apis = tuple(api_name(name) for name in names)
        fields: dict[str, Any] = {**values, **where}
        fault = Fault(then, apis, **fields)
        return SetFault(self._ask(lambda: self._gate.faults.add(fault)), self)

    def remove(self, number: int) -> None:
        """Take one away; nothing happens when it is gone already."""
        self._ask(lambda: self._gate.faults.remove(number))

    def clear(self) -> None:
        """Take all of them away, of the disk too; held answers leave."""

        def forget() -> Exception | None:
            self._gate.clear()
            error, self._gate.error = self._gate.error, None
            return error

        error = self._ask(forget)
        if error is not None:
            raise error

    def __iter__(self) -> Iterator[SetFault]:
        """Those that are set, used up or not, in the order in which they are asked."""
        armed: list[Armed] = self._ask(lambda: list(self._gate.faults.list()))
        return iter([SetFault(one, self) for one in armed])


class Requests:
    """The last requests of a cluster (`Cluster(request_log=1_000)`), to look at and to wait for."""

    def __init__(self, gate: FaultInjector, notices: Notices, ask: Ask[Any]) -> None:
        self._log = gate.requests
        self._notices = notices
        self._ask = ask

    def __iter__(self) -> Iterator[LoggedRequest]:
        """All that are kept, oldest first."""
        return iter(self.of())

    def of(
        self,
        api: Apis = None,
        *,
        node: int | None = None,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        error: str | int | None = None,
        matches: Callable[[LoggedRequest], bool] | None = None,
    ) -> list[LoggedRequest]:
        """Those that are kept and fit, oldest first. `error`: the answer has that code in it."""
        names = [] if api is None else [api] if isinstance(api, str) else list(api)
        apis = {api_name(name) for name in names}
        code = None if error is None else error_code(error)
        requests: list[LoggedRequest] = self._ask(
            lambda: [dataclasses.replace(entry) for entry in self._log.since()]
        )
        return [
            entry
            for entry in requests
            if (not apis or entry.api in apis)
            and node in (None, entry.node)
            and client_id in (None, entry.client_id)
            and (group is None or group in entry.groups)
            and (topic is None or topic in entry.topics)
            and (code is None or code in entry.errors)
            and (matches is None or matches(entry))
        ]

    def wait(
        self,
        api: Apis = None,
        *,
        count: int = 1,
        timeout_s: float = 60.0,
        answered: bool = True,
        node: int | None = None,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        error: str | int | None = None,
        matches: Callable[[LoggedRequest], bool] | None = None,
    ) -> list[LoggedRequest]:
        """The first `count` that fit, as soon as they have come (and been `answered`).

        Requests from before this call count, too: `clear` first if they should not. Raises
        KafkaTimeoutError, which tells what did come.
        """

        def look() -> list[LoggedRequest] | None:
            requests = self.of(
                api,
                node=node,
                client_id=client_id,
                group=group,
                topic=topic,
                error=error,
                matches=matches,
            )
            enough = [e for e in requests if not answered or e.answered_ms is not None][:count]
            return enough if len(enough) == count else None

        requests = self._notices.until(look, timeout_s)
        if requests is None:
            came = "\n  ".join(str(entry) for entry in self.of()[-20:]) or "nothing"
            raise KafkaTimeoutError(
                f"fewer than {count} such requests (api {api}) within {timeout_s} s; the last that "
                f"came:\n  {came}"
            )
        return requests

    def clear(self) -> None:
        """Forget what came so far."""
        self._ask(self._log.clear)
