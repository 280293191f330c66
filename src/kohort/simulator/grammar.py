"""The sentences of plans and scenarios: patterns with named places, and what they mean.

Rules:
- A pattern is the sentence itself with places in braces (`cut {who} from {node}`); the kind of a
  place is its name up to a digit. What fits no pattern is refused with the nearest one.
- Every pattern is declared beside the function that does or asks it (`actions`, `conditions`), and
  the documentation's list is checked against them by a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from kohort.client.common.types import TopicPartition
from kohort.errors import ConfigError, ErrorCode

F = TypeVar("F", bound=Callable[..., Any])


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _nth(text: str) -> int:
    return 1 if text == "next" else int(text[:-2])


def _node(text: str) -> int | None:
    return None if text == "the coordinator" else int(text.removeprefix("node "))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "who": (r"[a-z][a-z0-9]*", str),
    "topic": (r"[a-z][a-z0-9]*", str),
    "topics": (r"[a-z][a-z0-9]*(?: [a-z][a-z0-9]*)*", _words),
    "tp": (r"[a-z][a-z0-9]*-\d+", _partition),
    "tps": (
        r"[a-z][a-z0-9]*-\d+(?: [a-z][a-z0-9]*-\d+)*",
        lambda text: tuple(_partition(each) for each in text.split()),
    ),
    "node": (r"node \d+|the coordinator", _node),
    "ms": (r"\d+", int),
    "n": (r"\d+", int),
    "nth": (r"next|\d+(?:st|nd|rd|th)", _nth),
    "api": (r"[A-Z][A-Za-z]+", str),
    "code": (r"[A-Z][A-Z_]+", lambda text: int(ErrorCode[text])),
    "state": (r"[a-z]+", str),
}
_PLACE = re.compile(r"\{([a-z]+)\}")


@dataclass(frozen=True)
class Sentence:
    """A sentence that fits: what it calls, and with what."""

    text: str
    call: Callable[..., Any]
    args: tuple[Any, ...]


class Grammar(Generic[F]):
    """Patterns of one kind of sentence."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.patterns: dict[str, tuple[re.Pattern[str], tuple[str, ...], F]] = {}

    def means(self, *patterns: str) -> Callable[[F], F]:
        """The decorated function is what these patterns mean; places are its arguments."""

        def declare(fn: F) -> F:
            for pattern in patterns:
                kinds = tuple(_PLACE.findall(pattern))
                parts = _PLACE.split(pattern)
                regex = "".join(
                    f"({_KINDS[part][0]})" if at % 2 else re.escape(part)
                    for at, part in enumerate(parts)
                )
                self.patterns[pattern] = re.compile(regex), kinds, fn
            return fn

        return declare

    def parse(self, text: str) -> Sentence:
        """What a sentence means. Raises ConfigError for one that fits nothing."""
        plainest_first = sorted(self.patterns.values(), key=lambda pattern: len(pattern[1]))
        for regex, kinds, fn in plainest_first:
            match = regex.fullmatch(text)
            if match is not None:
                values = zip(kinds, match.groups(), strict=True)
                args = tuple(_KINDS[kind][1](value) for kind, value in values)
                return Sentence(text, fn, args)
        near = get_close_matches(text, self.patterns, n=1, cutoff=0.3)
        hint = f"; nearest is {near[0]!r}" if near else ""
        raise ConfigError(f"{text!r} is no {self.kind} that the simulator knows{hint}")
