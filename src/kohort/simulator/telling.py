"""A run told in words: who, what, when, and which invariant broke."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kohort.simulator.journal import Line
from kohort.simulator.scenario import written
from kohort.simulator.world import Outcome

_HANDED = re.compile(r"(\w+ is handed \S+) (\d+)\.\.(\d+)")

INVARIANTS = {
    "G1": "a partition has at most one owner",
    "G2": "a plan gives each partition once, to a subscriber",
    "G3": "generations rise, and none is handed out twice",
    "G4": "a rebalance ends",
    "G5": "the group in memory is the group in the log",
    "G6": "only current members and generations are accepted",
    "G7": "all answers of a generation come from one plan",
    "G8": "one member an instance id; the one it replaced is fenced",
    "G9": "live state == replay(log) == replay(compacted log)",
    "G10": "nobody is told what is not durable",
    "G11": "one node accepts in an epoch",
    "G12": "groups and their pending ids are bounded",
    "G13": "nobody is expelled who was heard in time",
    "C1": "records are handed out between assigned and revoked only",
    "C2": "offsets follow one another without gap or repetition",
    "C3": "a position falls only by a seek or a reset",
    "C4": "a commit covers what was dealt with, no more",
    "C5": "commits arrive in the order in which they were made",
    "C6": "listeners are told exact differences",
    "C8": "a position is reset on a broker's confirmed word only",
    "CL1": "a poll ends in its time",
    "O2": "a confirmed commit survives",
    "O3": "a committed offset falls only when somebody goes back",
    "O4": "no offset expires before its time, or while a transaction holds it",
    "O5": "of a transaction's commit and a plain one the later record counts",
    "O7": "a commit is confirmed when it is on disk",
    "GL1": "the group settles",
    "GL2": "every living consumer is a member",
    "GL4": "no rebalance goes on for ever",
    "GL5": "every partition with data is read",
    "G14": "a cooperative plan leaves to an owner what it has not given up",
    "STORY": "the scenario goes as it was written",
    "CRASH": "nothing raises what nobody expects",
}


def told(outcome: Outcome, *, last: int = 60) -> Iterator[str]:
    """The story's lines: at most the `last` ones, then what was broken."""
    plan = outcome.plan
    who = ", ".join(
        f"{c.name} ({c.protocol}, {c.assignor}{', static' if c.instance else ''}, "
        f"commits {c.commit}{', in its listener too' if c.fence else ''})"
        for c in plan.consumers
    )
    topics = ", ".join(f"{name} x {count}" for name, count in sorted(plan.topics.items()))
    yield f"{plan.name}: {plan.nodes} nodes, {topics}; {who}"
    story = list(_joined(outcome.story))
    left_out = len(story) - last
    if left_out > 0:
        yield f"  … {left_out} lines before"
    for at_ms, text in story[-last:]:
        yield f"{at_ms:>9} ms  {text}"
    if outcome.failed:
        promise = INVARIANTS.get(outcome.code or "", "")
        yield f"{outcome.at_ms:>9} ms  BROKEN {outcome.code} ({promise}): {outcome.what.strip()}"
    else:
        yield f"{outcome.at_ms:>9} ms  all held; trace {outcome.digest}"


def _joined(story: list[Line]) -> Iterator[Line]:
    """Polls of one consumer that follow one another in a partition become one line."""
    held: tuple[Line, str, int] | None = None
    for line in story:
        match = _HANDED.fullmatch(line.text)
        if match is None:
            if held is not None:
                yield held[0]
            held = None
            yield line
            continue
        head, first, last = match[1], int(match[2]), int(match[3])
        if held is not None and held[1] == head and held[2] + 1 == first:
            began = _HANDED.fullmatch(held[0].text)
            assert began is not None, "only such lines are held"
            held = Line(held[0].at_ms, f"{head} {began[2]}..{last}"), head, last
            continue
        if held is not None:
            yield held[0]
        held = line, head, last
    if held is not None:
        yield held[0]


def as_scenario(outcome: Outcome) -> str:
    """The run's plan as a scenario file."""
    about = f"{outcome.code}: {outcome.what.strip().splitlines()[-1]}" if outcome.failed else ""
    return written(outcome.plan, about)
