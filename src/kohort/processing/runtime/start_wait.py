"""What an app waits for before it starts: a store that is away, a topic that is not there yet.

Rules:
- It asks again, later and later, until it succeeds, the app is stopped, or the time is over: then
  the error says for how long it asked, and what the last answer was.
- Only the awaited error is a reason to wait. Any other one (a wrong statement) ends the app.

Shell: the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kohort.client.common.completion import pause, steady_s
from kohort.config import format_duration
from kohort.errors import BrokerError, ErrorCode, KohortError
from kohort.retry.store import StoreBusyError

log = logging.getLogger("kohort.processing")

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
STOP_POLL_S: Final = 0.1
FOREVER_MS: Final = 100 * 365 * 86_400_000


@dataclass(frozen=True)
class Awaited:
    """One reason to wait: which errors, what to say meanwhile, what to raise in the end."""

    waits_for: Callable[[KohortError], bool]
    says: Callable[[KohortError], str]
    ends: Callable[[KohortError, str], KohortError]
    """The last error and how long it was waited for, as text."""


def _topic_ends(error: KohortError, waited: str) -> KohortError:
    return BrokerError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{_text(error)} (topic_wait: {waited})"
    )


def _text(error: KohortError) -> str:
    """Without the code, which the message repeats."""
    return str(error).partition(": ")[2]


STORE: Final = Awaited(
    lambda error: isinstance(error, StoreBusyError),
    lambda error: f"the store cannot be used: {error}",
    lambda error, waited: StoreBusyError(
        f"the store was away for {waited} (store_wait), and nothing was begun: {error}"
    ),
)
TOPICS: Final = Awaited(
    lambda error: (
        isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ),
    _text,
    _topic_ends,
)


NO_TOPIC: Final = Awaited(
    lambda error: isinstance(error, NoTopicYetError),
    str,
    lambda error, _: error,
)


class NoTopicYetError(KohortError):
    """No topic matches a handler's pattern."""


def until_there(
    work: Callable[[], None],
    stopped: Callable[[], bool],
    patience_ms: int,
    report: Callable[[str], None],
    now_s: Callable[[], float] = steady_s,
    sleep: Callable[[float], None] = pause,
    *,
    awaited: Awaited = STORE,
) -> bool:
    """Do the work as soon as it succeeds. False when `stopped` says so first.

    Args:
        stopped: asked ten times a second; an event could be set by a signal while its lock is held.
        patience_ms: how long to wait; 0 asks once.
        report: called with the reason to wait, and with "" when that is over.
        awaited: the errors to wait on.

    Raises:
        KohortError: the time is over, or the error is none to wait on.
    """
    until_s, pause_s, logged = now_s() + patience_ms / 1_000, FIRST_PAUSE_S, ""
    while True:
        try:
            work()
        except KohortError as error:
            if not awaited.waits_for(error):
                raise
            left_s, reason = until_s - now_s(), awaited.says(error)
            if left_s <= 0:
                raise awaited.ends(error, format_duration(patience_ms)) from error
            report(reason)
            if logged != reason:  # once, not as often as it asks
                logged = reason
                log.warning("%s; asking again for %s", reason, format_duration(patience_ms))
            again_s = now_s() + min(pause_s, left_s)
            while (rest_s := again_s - now_s()) > 0:
                if stopped():
                    return False
                sleep(min(rest_s, STOP_POLL_S))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            report("")
            return True


class StartWait:
    """What one app waits for, and what it lacks meanwhile.

    Args:
        patience_ms: how long to wait for each.
        stopped: whether the app was stopped.
    """

    def __init__(self, patience_ms: Mapping[Awaited, int], stopped: Callable[[], bool]) -> None:
        self._patience_ms, self._stopped = patience_ms, stopped
        self._trouble = ""

    def troubles(self) -> list[str]:
        """Why the app cannot begin, as text. Any thread."""
        return [trouble] if (trouble := self._trouble) else []

    def wait(
        self,
        awaited: Awaited,
        work: Callable[[], None],
        on_trouble: Callable[[str], None] | None,
    ) -> bool:
        """Do the work as soon as it succeeds. False when the app was stopped first."""

        def report(trouble: str) -> None:
            changed, self._trouble = trouble != self._trouble, trouble
            if changed and on_trouble is not None:
                on_trouble(trouble)

        try:
            patience_ms = self._patience_ms[awaited]
            return until_there(work, self._stopped, patience_ms, report, awaited=awaited)
        finally:
            self._trouble = ""
