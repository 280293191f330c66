"""Readiness of file descriptors: raw epoll where it is, else what `selectors` has (kqueue, poll).

Rules:
- Masks are epoll's: `READ` = 1, `WRITE` = 4; any other bit that `poll` returns means error or
  hang-up.
- Level-triggered: unread data is reported again.
- Raw epoll, not `selectors.EpollSelector`, because the latter looks a key object up for each event.

Shell: the kernel's readiness calls.
"""

from __future__ import annotations

import select
import selectors
from typing import Protocol

READ = 1
WRITE = 4


class Poller(Protocol):
    """What the loop needs of the operating system."""

    def register(self, fd: int, mask: int, /) -> None: ...
    def modify(self, fd: int, mask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class SelectorPoller:
    """`Poller` over `selectors.DefaultSelector`; used where there is no epoll (macOS, BSD)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._masks: dict[int, int] = {}

    def register(self, fd: int, mask: int, /) -> None:
        """Watch `fd`; a mask of 0 keeps it known without watching (selectors refuse mask 0)."""
        self._masks[fd] = mask
        if mask:
            self._selector.register(fd, _to_selectors(mask))

    def modify(self, fd: int, mask: int, /) -> None:
        before, self._masks[fd] = self._masks[fd], mask
        if before and mask:
            self._selector.modify(fd, _to_selectors(mask))
        elif mask:
            self._selector.register(fd, _to_selectors(mask))
        elif before:
            self._selector.unregister(fd)

    def unregister(self, fd: int, /) -> None:
        if self._masks.pop(fd):
            self._selector.unregister(fd)

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        timeout = None if timeout_s < 0 else timeout_s
        return [(key.fd, _to_epoll(mask)) for key, mask in self._selector.select(timeout)]

    def close(self) -> None:
        self._selector.close()


def _to_selectors(mask: int) -> int:
    return (selectors.EVENT_READ if mask & READ else 0) | (
        selectors.EVENT_WRITE if mask & WRITE else 0
    )


def _to_epoll(mask: int) -> int:
    return (READ if mask & selectors.EVENT_READ else 0) | (
        WRITE if mask & selectors.EVENT_WRITE else 0
    )


def new_poller() -> Poller:
    """The fastest poller that this system has."""
    if hasattr(select, "epoll"):
        return select.epoll()
    return SelectorPoller()
