"""Retrying in place: the record keeps its lane, and all later records of the lane wait (spec 5.2).

    Blocking.parse("200ms 1s")       two more tries, then the retry topics or the dead-letter topic
    Blocking.parse("1s 5s ...")      1 s, then every 5 s for ever

Rules:
- Only the lane waits: the partition with order `partition`, the key with order `key`. Polling and
  heartbeats continue.
- An endless retry ends when the record is done, taken away by a rebalance, or the program ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kohort.config import format_duration, parse_duration_ms
from kohort.errors import ConfigError

MAX_STEPS: Final = 100
MAX_DELAY_MS: Final = 24 * 3_600_000
_FOR_EVER: Final = "..."


@dataclass(frozen=True, slots=True)
class Blocking:
    """Delays of the tries in place, in order; `for_ever` repeats the last one.

    Raises ConfigError for more than 100 delays, one over a day, or `...` after nothing.
    """

    delays_ms: tuple[int, ...] = ()
    for_ever: bool = False

    def __post_init__(self) -> None:
        if len(self.delays_ms) > MAX_STEPS:
            raise ConfigError(f"{len(self.delays_ms)} tries in place; at most {MAX_STEPS}")
        if self.for_ever and not self.delays_ms:
            raise ConfigError("`...` repeats the delay before it; write for example `5s ...`")
        for delay in self.delays_ms:
            if not 0 < delay <= MAX_DELAY_MS:
                raise ConfigError(
                    f"a delay of {delay} ms in place: more than 0 and at most a day; longer ones "
                    "belong into a retry topic (`retries`), which blocks no other records"
                )

    @classmethod
    def parse(cls, text: str) -> Blocking:
        """Delays parted by spaces or commas; `""` and `none` try nothing in place."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"blocking={text!r}: write the delays as a text, such as '200ms 1s'")
        words = text.replace(",", " ").split()
        if words in ([], ["none"]):
            return cls()
        for_ever = words[-1] == _FOR_EVER
        if for_ever:
            words.pop()
        return cls(tuple(parse_duration_ms(word) for word in words), for_ever)

    def __str__(self) -> str:
        words = [format_duration(delay) for delay in self.delays_ms]
        return " ".join([*words, _FOR_EVER] if self.for_ever else words) or "none"

    def delay_ms(self, tries: int) -> int | None:
        """How long to wait after `tries` tries in place (0: only the first); None: no more."""
        if tries < len(self.delays_ms):
            return self.delays_ms[tries]
        return self.delays_ms[-1] if self.for_ever else None
