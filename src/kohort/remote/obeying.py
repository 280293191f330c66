"""Which commands a process obeys: those for it, that are young, each once. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kohort.remote.messages import COMMAND_TTL_MS, RESULTS_MAX, Command, Result

SEEN_MAX: Final = 1_000


class Obedience:
    """Decides for one process.

    Args:
        group: its group.
        process: its own name.
    """

    def __init__(self, group: str, process: str) -> None:
        self._group, self._process = group, process
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._results: list[Result] = []

    @property
    def results(self) -> tuple[Result, ...]:
        """What became of the last commands, the latest last."""
        return tuple(self._results)

    def takes(self, command: Command) -> bool:
        """Whether this is for us, and was not seen before."""
        if command.group != self._group or command.process not in ("", self._process):
            return False
        if command.id in self._seen:
            return False
        self._seen[command.id] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return True

    def too_late(self, stored_ms: int, now_ms: int) -> str:
        """Why a command is too old to be obeyed; empty when it is not.

        Args:
            stored_ms: when the broker stored it.
            now_ms: this machine's time; clocks that differ by more than the limit stop commands.
        """
        age_ms = now_ms - stored_ms
        if age_ms <= COMMAND_TTL_MS:
            return ""
        return (
            f"it is {age_ms // 1000} s old by this machine's clock; commands are obeyed within "
            f"{COMMAND_TTL_MS // 1000} s"
        )

    def done(self, command: Command, *, ok: bool, text: str) -> None:
        """Keep what became of a command, for the next status."""
        self._results = [*self._results, Result(command.id, ok, text)][-RESULTS_MAX:]
