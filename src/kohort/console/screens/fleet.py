"""Remote processes as the console reaches them: one reader for all requests, made when needed.

Shell: threads (a lock).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.remote import Action, Process, RemoteControl
    from kohort.remote.control import Answer


class Fleet:
    """The processes that publish their status under one prefix.

    Args:
        prefix: of the topics PREFIX.status and PREFIX.commands.
        settings: of clients, in Kafka's names.
    """

    def __init__(self, prefix: str, settings: Mapping[str, Any]) -> None:
        self.prefix = prefix
        self._settings = settings
        self._control: RemoteControl | None = None
        self._lock = threading.Lock()

    def processes(self) -> list[Process]:
        """Every process by group and name. Raises UsageError before the first status."""
        with self._lock:
            return self._reader().processes()

    def send(
        self, group: str, action: Action, process: str = "", *, at: str = "", by: str = ""
    ) -> Sequence[Answer]:
        """Command a group, or one process of it. Raises UsageError when no process would obey."""
        with self._lock:
            return self._reader().send(group, action, process=process, at=at, by=by)

    def close(self) -> None:
        """Close the reader's clients."""
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None

    def _reader(self) -> RemoteControl:
        from kohort.remote import RemoteControl

        if self._control is None:
            self._control = RemoteControl(self.prefix, self._settings)
        return self._control


def as_text(answers: Iterable[Answer]) -> str:
    """The answers of processes to a command, in one line."""
    return "; ".join(
        f"{one.process}: {'no answer' if one.result is None else one.result.text}"
        for one in answers
    )
