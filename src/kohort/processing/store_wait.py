"""A store that is away when its app starts.

Rules:
- It is asked again, later and later, until it is there, the app is stopped, or the time is over:
  then the error says for how long it was asked, and what the last answer was.
- What the store answers is no reason to wait (a statement that is wrong): it ends the app at once.

Shell: the clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from kohort.config import format_duration
from kohort.retry.store import StoreBusyError

log = logging.getLogger("kohort.processing")

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
STOP_HEARD_S: Final = 0.1


def until_there(
    work: Callable[[], None],
    stopped: Callable[[], bool],
    patience_ms: int,
    tell: Callable[[str], None],
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Do what needs the store as soon as it is there. False when `stopped` says so first.

    Args:
        stopped: asked ten times a second; an event could be set by a signal while its lock is held.
        patience_ms: how long to wait for it; 0 asks once.
        tell: hears why it has to wait, and "" when that is over.

    Raises StoreBusyError when the time is over.
    """
    until_s, pause_s, said = now_s() + patience_ms / 1_000, FIRST_PAUSE_S, ""
    while True:
        try:
            work()
        except StoreBusyError as error:
            left_s = until_s - now_s()
            if left_s <= 0:
                raise StoreBusyError(
                    f"the store was away for {format_duration(patience_ms)} (store_wait), and "
                    f"nothing was begun: {error}"
                ) from error
            tell(f"the store cannot be used: {error}")
            if said != str(error):  # once, not as often as it is asked
                said = str(error)
                log.warning("the store cannot be used: %s; it is asked again and again", error)
            again_s = now_s() + min(pause_s, left_s)
            while (rest_s := again_s - now_s()) > 0:
                if stopped():
                    return False
                sleep(min(rest_s, STOP_HEARD_S))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            tell("")
            return True
