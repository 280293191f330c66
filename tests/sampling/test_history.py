"""The file of the console's samples."""

from __future__ import annotations

import threading
from pathlib import Path

from kohort.sampling.history import History


def test_two_consoles_that_begin_a_file_at_once_both_get_it(tmp_path: Path) -> None:
    """SQLite refuses one of two switches to a write-ahead log at once, about every tenth time."""
    failures: list[BaseException] = []
    for number in range(60):
        both = threading.Barrier(2)

        def begin(path: Path = tmp_path / f"{number}.db", both: threading.Barrier = both) -> None:
            both.wait()
            try:
                History(path).close()
            except BaseException as error:  # a thread's own: shown by the test
                failures.append(error)

        threads = [threading.Thread(target=begin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
