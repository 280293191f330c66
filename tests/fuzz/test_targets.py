"""Spec 9.3: each entry point takes its corpus and some hundred changed inputs.

`make sanitize` runs many more, on modules that count coverage and check every access.
"""

from __future__ import annotations

import random

import pytest

from kohort.errors import KohortError
from tests.fuzz.corpus_files import corpus, seeds
from tests.fuzz.mutations import changed
from tests.fuzz.targets import TARGETS, resealed

CHANGED = 60


@pytest.mark.parametrize("name", TARGETS)
def test_an_entry_point_takes_whatever_comes(name: str) -> None:
    """Bytes are taken, or refused by an error of Kohort's tree; nothing else is raised."""
    target, pick = TARGETS[name], random.Random(name)
    pool = [*corpus(name), *seeds(name)]
    for data in pool[:: max(1, len(pool) // 100)]:
        target(data)
    for _ in range(CHANGED):
        target(changed(pick.choice(pool), pick, pool)[: 1 << 16])


def test_a_resealed_batch_is_read_behind_its_checksum() -> None:
    """Else every change would end at the CRC, and nothing behind it would be reached."""
    from kohort.records import BatchHeader, check_batch

    (whole, *_) = seeds("resealed")
    broken = bytearray(whole)
    broken[-1] ^= 1
    with pytest.raises(KohortError, match="CRC"):
        check_batch(broken, BatchHeader(broken, 0))
    check_batch(resealed(bytes(broken)), BatchHeader(resealed(bytes(broken)), 0))
