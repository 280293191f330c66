"""The circuit breaker: when a dependency is down, try one record at a time, retry none.

Rules (A2, W6):
- Every success gives back a part of a token, every record of the source that has to leave its topic
  takes one. With none left the circuit opens: its partition is not read on.
- After a while one record is let through. If it succeeds the circuit closes; if not, it stays open
  for longer. No record is lost meanwhile, and the program keeps running.
- Retry topics have no circuit: their records have waited already, and wait again in the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kohort.errors import ConfigError

LONGEST_PAUSE_MS: Final = 60_000


class CircuitState(StrEnum):
    """Closed: records begin. Open: none does. Half-open: one record is being tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class CircuitConfig:
    """When an `App` stops reading a source partition whose records keep failing.

    Each failure takes a token, and each success restores a part of one. Without a token left, the
    circuit opens: reading stops, and one record is tried after `pause_ms`.

    Args:
        tokens: how many failures in a row open the circuit; 0 switches it off. Default 100.
        credit: the part of a token that a success restores, in (0, 1]. With the default, 0.05, a
            rate of failures below 5 % never opens it.
        pause_ms: milliseconds until one record is tried. Default 5,000; it doubles with each
            failure, up to a minute.

    Raises:
        ConfigError: a value is out of its range.
    """

    tokens: int = 100
    credit: float = 0.05
    pause_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.tokens < 0 or not 0 < self.credit <= 1 or self.pause_ms <= 0:
            raise ConfigError(
                f"circuit: tokens={self.tokens}, credit={self.credit}, pause_ms={self.pause_ms}; "
                "tokens are at least 0, credit is in (0, 1], the pause is longer than 0"
            )


class Circuit:
    """The circuit of one source partition."""

    __slots__ = ("_config", "_pause_ms", "_tokens", "opened", "reopens_ms", "state")

    def __init__(self, config: CircuitConfig) -> None:
        self._config = config
        self._tokens = float(config.tokens)
        self._pause_ms = config.pause_ms
        self.state = CircuitState.CLOSED
        self.reopens_ms = 0
        """When one record may be tried, while it is open."""
        self.opened = 0
        """How often it has opened."""

    def succeeded(self, count: int = 1) -> bool:
        """Records were done in place. True when this closes the circuit."""
        if self.state is CircuitState.CLOSED:
            tokens = self._tokens + count * self._config.credit
            self._tokens = min(tokens, float(self._config.tokens))
            return False
        if self.state is CircuitState.OPEN:
            return False  # begun before it opened; says nothing about now
        self.state = CircuitState.CLOSED
        self._pause_ms = self._config.pause_ms
        self._tokens = self._config.tokens / 2
        return True

    def failed(self, now_ms: int) -> bool:
        """A record has to leave the source topic. True when this opens the circuit (again)."""
        if not self._config.tokens or self.state is CircuitState.OPEN:
            return False
        if self.state is CircuitState.HALF_OPEN:
            self._pause_ms = min(self._pause_ms * 2, max(LONGEST_PAUSE_MS, self._config.pause_ms))
        else:
            self._tokens -= 1
            if self._tokens > 0:
                return False
        self.state = CircuitState.OPEN
        self.reopens_ms = now_ms + self._pause_ms
        self.opened += 1
        return True

    def may_try(self, now_ms: int) -> bool:
        """True once, when the pause is over: let one record through."""
        if self.state is not CircuitState.OPEN or now_ms < self.reopens_ms:
            return False
        self.state = CircuitState.HALF_OPEN
        return True
