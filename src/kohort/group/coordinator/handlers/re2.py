"""Regular expressions of subscriptions, matched in linear time (KIP-848; the syntax is RE2's).

Rules:
- Clients choose the pattern, so matching must never depend on its shape: a pattern becomes an
  automaton of at most `STATES_MAX` states, which reads each character of a name once. Python's own
  `re` backtracks, and a pattern such as `(a+)+$` would stop the broker.
- Read: literals, `.`, classes with ranges, negation and `[:alpha:]`, `\\d \\w \\s` and their
  opposites, escapes, groups of every kind (what they capture is not kept), `|`,
  `* + ? {n} {n,} {n,m}` (lazy ones match the same), `^ $ \\A \\z`, and the flags `i` and `s`. As
  in RE2, there are no references back and no looking around; Unicode classes and `\\b` are left
  out: names of topics are ASCII.
- A pattern has to match the whole name, as in Kafka. Only ASCII's printable characters exist;
  any other character in a pattern is valid and matches nothing. Topics are named with fewer of
  them, transactional ids (KIP-1152) with these.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from kohort.errors import KohortError
from kohort.lean import dataclass

NAME_CHARS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")
"""The characters that there are."""
PATTERN_CHARS_MAX: Final = 4_096
STATES_MAX: Final = 1_000
REPEAT_MAX: Final = 1_000
"""RE2's limit of a counted repetition."""
DEPTH_MAX: Final = 100
_KEPT_STATES: Final = 2_000

_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_NONE: frozenset[str] = frozenset()
_SPACE = frozenset(" ")
_CLASSES: Final = {
    "d": _DIGITS,
    "D": NAME_CHARS - _DIGITS,
    "w": _WORD & NAME_CHARS,
    "W": NAME_CHARS - _WORD,
    "s": _SPACE,
    "S": NAME_CHARS - _SPACE,
}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": NAME_CHARS,
    "blank": _SPACE,
    "cntrl": _NONE,
    "digit": _DIGITS,
    "graph": NAME_CHARS - _SPACE,
    "lower": frozenset(string.ascii_lowercase),
    "print": NAME_CHARS,
    "punct": frozenset(string.punctuation),
    "space": _SPACE,
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class RegexError(KohortError):
    """A pattern that is not RE2's, or larger than is taken. The text says where and why."""


class _Fragment(NamedTuple):
    """A piece: where it begins, and the one state where it ends."""

    start: int
    end: int


class _Machine:
    """States: each has characters and where they lead, or branches that need none."""

    def __init__(self) -> None:
        self.chars: list[frozenset[str]] = []
        self.to: list[int] = []
        self.branches: list[list[int]] = []
        self.assertion: list[str] = []

    def state(self, chars: frozenset[str] = _NONE, to: int = -1, assertion: str = "") -> int:
        if len(self.chars) >= STATES_MAX:
            raise RegexError(f"it needs more than {STATES_MAX} states; repeat less, or fewer times")
        self.chars.append(chars)
        self.to.append(to)
        self.branches.append([])
        self.assertion.append(assertion)
        return len(self.chars) - 1

    def one_of(self, chars: frozenset[str]) -> _Fragment:
        end = self.state()
        return _Fragment(self.state(chars, end), end)

    def empty(self, assertion: str = "") -> _Fragment:
        """Nothing; or nothing, and only at the start (`^`) or the end (`$`) of the name."""
        end = self.state()
        start = self.state(assertion=assertion)
        self.branches[start].append(end)
        return _Fragment(start, end)

    def sequence(self, pieces: list[_Fragment]) -> _Fragment:
        if not pieces:
            return self.empty()
        for left, right in pairwise(pieces):
            self.branches[left.end].append(right.start)
        return _Fragment(pieces[0].start, pieces[-1].end)

    def either(self, pieces: list[_Fragment]) -> _Fragment:
        if len(pieces) == 1:
            return pieces[0]
        start, end = self.state(), self.state()
        for piece in pieces:
            self.branches[start].append(piece.start)
            self.branches[piece.end].append(end)
        return _Fragment(start, end)

    def many(self, piece: _Fragment) -> _Fragment:
        """Any number of times, none too."""
        start, end = self.state(), self.state()
        self.branches[start] += [piece.start, end]
        self.branches[piece.end] += [piece.start, end]
        return _Fragment(start, end)

    def maybe(self, piece: _Fragment) -> _Fragment:
        return self.either([piece, self.empty()])


@dataclass(frozen=True, slots=True)
class _Node:
    """A piece of the pattern that can be built any number of times (`x{3}` needs it thrice)."""

    build: Callable[[_Machine], _Fragment]
    size: int


class _Parser:
    """Reads a pattern, by descent, into nodes."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0
        self.ignore_case = False
        self.depth = 0

    def fail(self, why: str, at: int | None = None) -> RegexError:
        where = self.at if at is None else at
        return RegexError(f"{self.pattern[:200]!r} is not a regular expression: {why} at {where}")

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def next_char(self, what: str) -> str:
        if self.at >= len(self.pattern):
            raise self.fail(f"{what} is not finished")
        self.at += 1
        return self.pattern[self.at - 1]

    def alternatives(self) -> _Node:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.fail(f"groups are nested more than {DEPTH_MAX} deep")
        outer = self.ignore_case
        choices = [self.sequence()]
        while self.take("|"):
            choices.append(self.sequence())
        self.ignore_case = outer
        self.depth -= 1
        return _Node(
            lambda m: m.either([choice.build(m) for choice in choices]),
            sum(choice.size for choice in choices) + 2,
        )

    def sequence(self) -> _Node:
        pieces: list[_Node] = []
        while self.at < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            piece = self.repeated()
            if piece is not None:
                pieces.append(piece)
        return _Node(
            lambda m: m.sequence([piece.build(m) for piece in pieces]),
            sum(piece.size for piece in pieces) + 2,
        )

    def repeated(self) -> _Node | None:
        began = self.at
        if self.counts() is not None:
            raise self.fail("nothing to repeat", began)
        piece = self.atom()
        again = 0
        while self.at < len(self.pattern):
            counts = self.counts()
            if counts is None:
                break
            if piece is None:
                raise self.fail("nothing to repeat", began)
            again += 1
            if again > 1:
                raise self.fail("one repetition follows another", began)
            self.take("?")  # a lazy one matches the same names
            piece = self.repeat(piece, *counts)
        return piece

    def counts(self) -> tuple[int, int | None] | None:
        """How often the piece before is repeated, or None when it is not."""
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return counts
        if not self.peek("{"):
            return None
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low) or not (_is_number(high) or not high):
            return None  # RE2 reads such a brace as itself
        least = int(low)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self.fail(f"a repetition of {low}{comma}{high} (at most {REPEAT_MAX})")
        self.at = end + 1
        return least, most

    def repeat(self, piece: _Node, least: int, most: int | None) -> _Node:
        size = (piece.size + 4) * max(1, least + 1 if most is None else most)
        if size > STATES_MAX:
            raise self.fail(f"it needs more than {STATES_MAX} states; repeat fewer times")

        def build(m: _Machine) -> _Fragment:
            built = [piece.build(m) for _ in range(least)]
            if most is None:
                built.append(m.many(piece.build(m)))
                return m.sequence(built)
            rest: _Fragment | None = None
            for _ in range(most - least):
                once = piece.build(m)
                rest = m.maybe(once if rest is None else m.sequence([once, rest]))
            return m.sequence(built if rest is None else [*built, rest])

        return _Node(build, size)

    def atom(self) -> _Node | None:
        char = self.next_char("the pattern")
        match char:
            case "(":
                return self.group()
            case "[":
                return self.chars(self.char_class())
            case ".":
                return self.chars(NAME_CHARS)
            case "^" | "$":
                return _Node(lambda m: m.empty(char), 2)
            case "\\":
                return self.escaped()
            case _:
                return self.chars(frozenset(char))

    def chars(self, chars: Collection[str]) -> _Node:
        if self.ignore_case:
            chars = {c for char in chars for c in (char.lower(), char.upper())}
        kept = NAME_CHARS.intersection(chars)
        return _Node(lambda m: m.one_of(kept), 2)

    def group(self) -> _Node | None:
        began = self.at - 1
        outer = self.ignore_case
        if self.take("?"):
            if self.take("P<") or (self.peek("<") and self.pattern[self.at + 1 :][:1] not in "=!"):
                self.take("<")
                self.group_name()
            elif not self.take(":") and self.flags():
                return None  # `(?i)`: for what follows in this group
        inner = self.alternatives()
        if not self.take(")"):
            raise self.fail("a group that is not closed", began)
        self.ignore_case = outer
        return inner

    def group_name(self) -> None:
        end = self.pattern.find(">", self.at)
        name = self.pattern[self.at : max(end, 0)]
        if end < 0 or not name.isascii() or not name.replace("_", "a").isalnum():
            raise self.fail("a group's name")
        self.at = end + 1

    def flags(self) -> bool:
        """`(?i)` gives True, `(?i:` False: the group follows."""
        value = True
        while True:
            flag = self.next_char("a group's flags")
            match flag:
                case "i":
                    self.ignore_case = value
                case "s" | "m" | "U":
                    pass  # they concern lines, which names have not, and what is captured
                case "-":
                    value = False
                case ")":
                    return True
                case ":":
                    return False
                case _:
                    raise self.fail(f"(?{flag}: looking around and references are not taken")

    def escaped(self) -> _Node | None:
        char = self.next_char("an escape")
        if char in _CLASSES:
            return self.chars(_CLASSES[char])
        if char in "Az":
            return _Node(lambda m: m.empty("^" if char == "A" else "$"), 2)
        if char == "Q":
            end = self.pattern.find("\\E", self.at)
            text = self.pattern[self.at :] if end < 0 else self.pattern[self.at : end]
            self.at = len(self.pattern) if end < 0 else end + 2
            pieces = [self.chars(frozenset(c)) for c in text]
            size = 2 * len(pieces) + 2
            return _Node(lambda m: m.sequence([piece.build(m) for piece in pieces]), size)
        return self.chars(frozenset(self.literal(char)))

    def literal(self, char: str) -> str:
        """The character that an escape names."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            braced = self.take("{")
            end = self.pattern.find("}", self.at) if braced else self.at + 2
            digits = self.pattern[self.at : max(end, 0)]
            sizes = range(1, 7) if braced else (2,)
            if len(digits) not in sizes or not set(digits) <= set(string.hexdigits):
                raise self.fail("a hexadecimal escape")
            self.at = end + braced
            code = int(digits, 16)
            return chr(code) if code < 0x110000 else ""
        if char.isalnum():
            raise self.fail(f"\\{char} is not taken", self.at - 2)
        return char

    def char_class(self) -> set[str]:
        began = self.at - 1
        negated = self.take("^")
        members: set[str] = set()
        first = True
        while first or not self.peek("]"):
            first = False
            if self.at >= len(self.pattern):
                raise self.fail("a class that is not closed", began)
            if self.take("[:"):
                members |= self.posix_class()
                continue
            low = self.class_char()
            if isinstance(low, frozenset):
                members |= low
                continue
            if self.peek("-") and not self.pattern.startswith("-]", self.at):
                self.at += 1
                high = self.class_char()
                if isinstance(high, frozenset) or high < low:
                    raise self.fail("a range of a class")
                members |= {c for c in NAME_CHARS if low <= c <= high}
            else:
                members.add(low)
        self.at += 1
        if self.ignore_case:
            members = {c for char in members for c in (char.lower(), char.upper())}
        return set(NAME_CHARS) - members if negated else members

    def class_char(self) -> str | frozenset[str]:
        char = self.next_char("a class")
        if char != "\\":
            return char
        char = self.next_char("an escape")
        return _CLASSES[char] if char in _CLASSES else self.literal(char)

    def posix_class(self) -> frozenset[str]:
        end = self.pattern.find(":]", self.at)
        name = self.pattern[self.at : max(end, 0)]
        chars = _POSIX.get(name.removeprefix("^"))
        if chars is None:
            raise self.fail("an unknown class of characters")
        self.at = end + 2
        return NAME_CHARS - chars if name.startswith("^") else chars


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


class Regex:
    """A compiled pattern."""

    __slots__ = ("_accepting", "_first", "_kept", "_machine", "pattern")

    def __init__(self, pattern: str) -> None:
        """Raises RegexError."""
        if len(pattern) > PATTERN_CHARS_MAX:
            raise RegexError(f"it has {len(pattern)} characters; at most {PATTERN_CHARS_MAX}")
        parser = _Parser(pattern)
        node = parser.alternatives()
        if parser.at < len(pattern):
            raise parser.fail("a group that was not opened")
        self.pattern = pattern
        self._machine = _Machine()
        built = node.build(self._machine)
        self._accepting = built.end
        self._first = self._closure([built.start], at_start=True, at_end=False)
        self._kept: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def _closure(self, states: Iterable[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """Every state that is reached from these without reading a character.

        States of `$` stay in the set until the end: then they are gone through.
        """
        machine = self._machine
        closure: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state in closure:
                continue
            closure.add(state)
            assertion = machine.assertion[state]
            if (assertion == "^" and not at_start) or (assertion == "$" and not at_end):
                continue
            todo += machine.branches[state]
        return frozenset(closure)

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` matches."""
        machine, states, kept = self._machine, self._first, self._kept
        if not name:
            return self._accepting in self._closure(states, at_start=True, at_end=True)
        for char in name:
            step = (states, char)
            reached = kept.get(step)
            if reached is None:
                read = [machine.to[state] for state in states if char in machine.chars[state]]
                reached = self._closure(read, at_start=False, at_end=False)
                if len(kept) >= _KEPT_STATES:
                    kept.clear()
                kept[step] = reached
            states = reached
            if not states:
                return False
        return self._accepting in self._closure(states, at_start=False, at_end=True)


@lru_cache(256)
def compiled(pattern: str) -> Regex:
    """The compiled pattern, from a small store of those in use. Raises RegexError."""
    return Regex(pattern)
