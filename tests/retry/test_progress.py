"""What an app's transaction finds in the ledger about copies that it passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.errors import DataLossError
from kohort.processing.runtime.store_transactor import done_at
from kohort.retry.ledger import Place
from kohort.retry.progress import NOWHERE, Advance, ProgressMove
from kohort.retry.stores import open_store
from tests.retry.test_postgres import scheduled


def test_a_retry_topic_that_has_lost_records_ends_the_program(tmp_path: Path) -> None:
    """Another record's copy is where the ledger has one: passing it was tried without end."""
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    store.prepare()
    place = Place("retry_topic", 0, 0)
    source = store.take_over("p", "in", "", 0, 1)
    move = ProgressMove("in", 0, source.epoch, (NOWHERE, ""), 1, "")
    assert store.advance(Advance("p", 1, [move], rows=[scheduled(place)]), done_at).committed
    retry_topic = store.take_over("p", "retry_topic", "", 0, 1)
    passing = ProgressMove("retry_topic", 0, retry_topic.epoch, (NOWHERE, ""), 1, "")
    own = scheduled(place).retry_id
    found = store.advance(Advance("p", 1, [passing], inert={place: own}), done_at)
    assert found.revived == [place]
    with pytest.raises(
        DataLossError, match=f"holds a copy of in/0/9, .* names that place for {own}"
    ):
        store.advance(Advance("p", 1, [passing], inert={place: "in/0/9"}), done_at)
    store.close()
