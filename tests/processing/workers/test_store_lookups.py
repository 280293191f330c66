"""Handlers' own lines to the store end with their app, not when the collector comes upon them."""

from __future__ import annotations

import threading
from pathlib import Path

from kohort.processing.workers.store_lookups import ThreadLookups
from kohort.retry.handling import Lookup


def test_each_thread_has_its_own_and_all_are_closed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "rows.db").touch()
    lookups: list[Lookup] = []
    with ThreadLookups(f"sqlite:///{tmp_path}/rows.db") as here:

        def ask() -> None:
            assert here().one("SELECT 1") == (1,)
            assert here() is here()
            lookups.append(here())

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, second = (lookup._store for lookup in lookups)
        assert first is not second
        assert None not in (first._reader, second._reader)
    assert first._reader is second._reader is None
