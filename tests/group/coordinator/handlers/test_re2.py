"""Server-side regular expressions (spec 2.14): RE2's answers, in linear time for any pattern."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest

from kohort.group.coordinator.handlers.re2 import Regex, RegexError

GOOD = [
    "orders",
    "orders.*",
    "orders\\..*",
    "(a|b)c",
    "[a-c]+",
    "[^a-c]x",
    "a{2}",
    "a{2,}",
    "a{1,3}",
    "^a$",
    "^(foo|bar)-[0-9]{2,4}$",
    "(?i)OrDers",
    "(?:x|y)*z",
    "(?P<n>ab)+",
    "\\d+",
    "\\w*-\\D",
    "[\\d_]+",
    "[[:alpha:]]+",
    "a??b+?",
    "x|",
    "",
    "a.c",
    "\\x61b",
    "[]a]+",
    "[a-]+",
    "\\Aab\\z",
    "(?i:ab)C",
    "\\Qa.b\\E",
    "a{,3}",
    "(?s).*",
    "(((a)))",
    "$^",
    "a|^b",
]
BAD = [
    "(",
    ")",
    "a)",
    "[a",
    "*a",
    "a**",
    "a{3,2}",
    "a{1001}",
    "(?=a)",
    "(?!a)",
    "(?<=a)b",
    "\\1",
    "(a)\\1",
    "(?P=n)",
    "[z-a]",
    "\\",
    "\\y",
    "[[:nope:]]",
    "(?P<>a)",
    "((a{1000}){1000}){1000}",
    "a" * 5_000,
    "(" * 200 + ")" * 200,
    "\\pN",
    "[\\d-z]{2}(",
    "(?>a)",
    "\\b",
    "{2}",
    "a|{1,2}",
    "\\x0",
]


@pytest.mark.parametrize("pattern", GOOD)
def test_it_agrees_with_a_backtracking_matcher(pattern: str) -> None:
    chance = random.Random(pattern)
    theirs = pattern.replace("\\z", "\\Z").replace("[[:alpha:]]", "[a-zA-Z]")
    theirs = theirs.replace("\\Qa.b\\E", "a\\.b").replace("a{,3}", "a\\{,3\\}")
    oracle, mine = re.compile(theirs), Regex(pattern)
    names = ["", "a", "ab", "a.b", "orders", "ORDERS", "orders.x", "foo-12", "bar-12345", "a{,3}"]
    names += [
        "".join(chance.choices("abcxyz-._01AB", k=chance.randrange(1, 6))) for _ in range(300)
    ]
    for name in names:
        assert mine.matches(name) == bool(oracle.fullmatch(name)), name


@pytest.mark.parametrize("pattern", BAD)
def test_what_re2_refuses_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(RegexError) as raised:
        Regex(pattern)
    assert len(str(raised.value)) < 400


def test_no_pattern_stops_the_broker() -> None:
    began = time.thread_time()
    name = "a" * 248 + "!"
    for pattern in ("(a+)+$", "(a|a)*b", "(a|aa)+$", "(.*)*x", "a{0,20}" * 6 + "b", "(a*)*(b*)*c"):
        assert not Regex(pattern).matches(name)
        assert not Regex(pattern).matches("a" * 249 + "-")
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("seed", range(20))
def test_any_text_is_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        pattern = "".join(chance.choices("ab[]()*+?{}|\\^$.-:,0123iPdwx<>=!QE", k=12))
        with contextlib.suppress(RegexError):
            Regex(pattern).matches("ab-0")
