"""What has to be published before a record counts as done: its outputs, or its copy.

Rules (A2):
- A record is done when everything of its publication is acknowledged, and not before.
- A copy that is too large is tried smaller, step by step, until only the place of its value is
  left; every other refusal is tried again, later and later. Nothing is ever given up or passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import Item
from kohort.retry.classify import Failure
from kohort.retry.copies import Copy, ladder
from kohort.retry.ledger import Place
from kohort.retry.policy import Step
from kohort.retry.sql_statements import Effect

FIRST_PAUSE_MS: Final = 500
LONGEST_PAUSE_MS: Final = 30_000


class Publication:
    """What one item waits for, and what goes into the transaction of its offset, if it has one.

    Args:
        effects: rows for the store; exactly once only.
        copy, failure, step: of a failed record; a copy without a failure is a held one's.
        inert: a copy that the ledger does not back: nothing is done for it, and it is passed.
    """

    __slots__ = (
        "_rungs",
        "copy",
        "effects",
        "failure",
        "inert",
        "item",
        "outputs",
        "place",
        "refusals",
        "step",
        "wait_until_ms",
    )

    def __init__(
        self,
        item: Item,
        outputs: Sequence[Output] = (),
        copy: Copy | None = None,
        *,
        effects: Sequence[Effect] = (),
        failure: Failure | None = None,
        step: Step | None = None,
        inert: bool = False,
    ):
        self.item = item
        self.outputs: Sequence[Output] = outputs
        self.effects: Sequence[Effect] = effects
        self.copy = copy
        self.failure = failure
        self.step = step
        self.inert = inert
        self.place: Place | None = None
        """The copy's position, when it is acknowledged before the transaction (a store's)."""
        self.wait_until_ms = 0
        self.refusals = 0
        self._rungs: Iterator[Copy] = iter(())
        if copy is not None:
            self._rungs = ladder(copy)
            self.smaller()

    def smaller(self) -> bool:
        """Take the next smaller form of the copy; False when there is none."""
        for copy in self._rungs:
            self.copy = copy
            self.outputs = (
                Output(copy.topic, copy.value, copy.key, copy.partition_hint, copy.headers),
            )
            return True
        return False

    def pause_ms(self) -> int:
        """How long to wait before the next try; longer each time."""
        self.refusals += 1
        return min(FIRST_PAUSE_MS * 2 ** min(self.refusals - 1, 10), LONGEST_PAUSE_MS)
