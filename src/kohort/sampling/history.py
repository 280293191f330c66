"""Some hours of groups' figures in a file, so that a trend outlives a restart of the console.

Rules: SQLite in WAL mode; the file is bounded by age (`hours`) and by a point a minute for each
group. A file that cannot be read or written is reported once, and the history is kept in memory
alone.

Shell: files.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kohort.errors import StorageError
from kohort.observe.trend import Sample, Series

log = logging.getLogger("kohort.console")

POINT_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS samples (
  cluster TEXT NOT NULL, grp TEXT NOT NULL, at_ms INTEGER NOT NULL,
  lag INTEGER, time_lag_ms INTEGER, written INTEGER, done INTEGER,
  PRIMARY KEY (cluster, grp, at_ms)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS samples_at ON samples (at_ms);
"""


class History:
    """The samples of groups, in memory and, where there is a path, in a file.

    Args:
        path: the file; None keeps them in memory alone.
        hours: how much of it is kept.

    Raises:
        StorageError: the file cannot be made, or is there and is not a history.
    """

    def __init__(self, path: Path | None, hours: float = 6.0) -> None:
        self.series: dict[str, Series] = {}
        self._keep_ms = round(hours * HOUR_MS)
        self._written_ms = 0
        self._cluster = ""
        self._file: sqlite3.Connection | None = None
        if path is not None:
            from kohort.retry.sqlite import use_write_ahead_log

            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(
                    f"the folder {path.parent} cannot be made: {error.strerror}; name another file "
                    "with --history"
                ) from error
            try:
                self._file = sqlite3.connect(path, check_same_thread=False)
                use_write_ahead_log(self._file)
                self._file.executescript(_SCHEMA)
            except sqlite3.Error as error:
                self.close()
                raise StorageError(
                    f"the history file {path} cannot be used: {error}; name another with --history"
                ) from error

    def load(self, cluster: str, now_ms: int) -> None:
        """Read what the file has of a cluster's last hours."""
        self._cluster = cluster
        if self._file is None:
            return
        try:
            rows = self._file.execute(
                "SELECT grp, at_ms, lag, time_lag_ms, written, done FROM samples "
                "WHERE cluster = ? AND at_ms > ? ORDER BY grp, at_ms",
                (cluster, now_ms - self._keep_ms),
            )
            for group, *values in rows:
                self.series.setdefault(group, Series()).add(Sample(*values))
        except sqlite3.Error as error:
            self._give_up(error)

    def add(self, samples: Mapping[str, Sample], now_ms: int) -> None:
        """Keep one sample for each group."""
        for group, sample in samples.items():
            self.series.setdefault(group, Series()).add(sample)
        if self._file is not None and now_ms >= self._written_ms + POINT_MS:
            self._written_ms = now_ms
            self._write(self._file, samples.items(), now_ms)

    def forget(self, groups: Iterable[str]) -> None:
        """Forget groups that are gone; the file keeps theirs until they are too old."""
        for group in groups:
            self.series.pop(group, None)

    def _write(
        self, file: sqlite3.Connection, samples: Iterable[tuple[str, Sample]], now_ms: int
    ) -> None:
        try:
            with file:
                file.executemany(
                    "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(self._cluster, group, *sample) for group, sample in samples],
                )
                file.execute("DELETE FROM samples WHERE at_ms <= ?", (now_ms - self._keep_ms,))
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: sqlite3.Error) -> None:
        log.warning("the history is kept in memory alone from now on: %s", error)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
