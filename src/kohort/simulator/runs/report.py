"""A run as text: who, what, when, and which invariant broke."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kohort.simulator.event_log import Line
from kohort.simulator.invariants import PROMISES
from kohort.simulator.runs.simulation import Outcome
from kohort.simulator.scenario import written

_HANDED = re.compile(r"(\w+ is handed \S+) (\d+)\.\.(\d+)")


def story_of(outcome: Outcome, *, last: int = 60) -> Iterator[str]:
    """The story's lines: at most the `last` ones, then what was broken."""
    plan = outcome.plan
    who = ", ".join(
        f"{c.name} ({c.protocol}, {c.assignor}{', static' if c.instance else ''}, "
        f"commits {c.commit}{', in its listener too' if c.fence else ''})"
        for c in plan.consumers
    )
    topics = ", ".join(f"{name} x {count}" for name, count in sorted(plan.topics.items()))
    yield f"{plan.name}: {plan.nodes} nodes, {topics}; {who}"
    story = list(joined(outcome.story))
    left_out = len(story) - last
    if left_out > 0:
        yield f"  … {left_out} lines before"
    for at_ms, text in story[-last:]:
        yield f"{at_ms:>9} ms  {text}"
    if outcome.failed:
        assert outcome.code is not None, "a failed run names what was broken"
        promise = PROMISES[outcome.code]
        yield f"{outcome.at_ms:>9} ms  BROKEN {outcome.code} ({promise}): {outcome.what.strip()}"
    else:
        yield f"{outcome.at_ms:>9} ms  all held; trace {outcome.digest}"


def joined(story: list[Line]) -> Iterator[Line]:
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
