"""Draw the state diagrams of `docs/diagrams/` from the tables that the code goes by.

python tools/draw_diagrams.py            write them
python tools/draw_diagrams.py --check    fail when one is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kohort.client.consumer.plan import positions
from kohort.client.producer.plan import transaction_table
from kohort.errors import ErrorCode
from kohort.group.coordinator.state import classic_table as states
from kohort.group.coordinator.state import consumer_table as consumer_states
from kohort.group.member import classic_table as member_table
from kohort.group.member import consumer_table as consumer_member_table
from kohort.transactions import states as transaction_states

TARGET = ROOT / "docs" / "diagrams"
Arrow = tuple[Enum, Enum, Enum]
CROWDED, MANY = 30, 4


def diagram(start: Enum, arrows: Iterable[Arrow], title: str) -> list[str]:
    """A mermaid state diagram; arrows between the same two states share one line.

    In a crowded one, where an event leads from many states to the same one, its arrows would hide
    the others: they are rows of a table below.
    """
    every = list(arrows)
    many = MANY if len(every) > CROWDED else len(every) + 1
    sources: dict[tuple[Enum, Enum], list[Enum]] = {}
    for source, event, target in every:
        sources.setdefault((event, target), []).append(source)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    labels: dict[tuple[str, str], list[str]] = {}
    for source, event, target in every:
        if len(sources[event, target]) < many:
            labels.setdefault((source.name, target.name), []).append(event.name)
    lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in labels.items()]
    rows = [
        (f"`{event.name}`", [_named(found, type(start)), f"`{target.name}`"])
        for (event, target), found in sources.items()
        if len(found) >= many
    ]
    below = ["From many states:", "", *table("event", ["from", "to"], rows)] if rows else []
    return [f"## {title}", "", *lines, "```", "", *below]


def _named(states: list[Enum], kind: type[Enum]) -> str:
    """These states, or the others where those are fewer."""
    others = [state for state in kind if state not in states]
    if not others:
        return "any state"
    if len(others) < len(states):
        return f"any state but {', '.join(f'`{state.name}`' for state in others)}"
    return ", ".join(f"`{state.name}`" for state in states)


def legend(title: str, kind: type[Enum]) -> list[str]:
    """What each state or event is."""
    rows = [f"| `{e.name}` | {e.value} |" for e in kind]
    return [f"| {title} | |", "|---|---|", *rows, ""]


def table(head: str, columns: list[str], rows: Iterable[tuple[str, list[str]]]) -> list[str]:
    """A markdown table."""
    lines = [f"| {head} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return [*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows), ""]


def coordinator() -> str:
    """The classic group, seen by its coordinator."""
    arrows = [(s, e, t) for (s, e), t in states.TRANSITIONS.items()]
    columns = [s.value if s else "(missing)" for s in states.ANSWERS[states.RequestKind.HEARTBEAT]]
    answers = [
        (asked.value, [_shown(a) for a in row.values()]) for asked, row in states.ANSWERS.items()
    ]
    steps = [(f"*{s.name.lower().replace('_', ' ')}*", [_doc(s)]) for s in states.Step]
    return "\n".join(
        [
            "# A classic group, seen by its coordinator",
            "",
            "Drawn by `make diagrams` from `kohort/group/coordinator/state/classic_table.py`.",
            "",
            *diagram(states.GroupState.EMPTY, arrows, "States"),
            *legend("state", states.GroupState),
            *legend("event", states.GroupEvent),
            "## What each request is answered",
            "",
            "Once member id, instance id and generation are found good. In italics: what is done.",
            "",
            *table("request", columns, answers),
            *table("step", ["what it means"], steps),
        ]
    )


def _shown(answer: ErrorCode | Enum) -> str:
    if isinstance(answer, ErrorCode):
        return f"{answer.name} ({answer.value})" if answer else "ok"
    return f"*{answer.name.lower().replace('_', ' ')}*"


def _doc(step: Enum) -> str:
    """The sentence that follows a step in the source."""
    source = Path(sys.modules[type(step).__module__].__file__ or "").read_text()
    after = source[source.index(f"    {step.name} = auto()") :]
    return " ".join(after.split('"""')[1].split())


def member() -> str:
    """A member of a classic group, seen by itself."""
    arrows = [
        (state, event, target)
        for state, row in member_table.TRANSITIONS.items()
        for event, target in row.items()
    ]
    return "\n".join(
        [
            "# A member of a classic group",
            "",
            "Drawn by `make diagrams` from `kohort/group/member/classic_table.py`.",
            "",
            *diagram(member_table.State.DOWN, arrows, "States"),
            *legend("state", member_table.State),
            *legend("event", member_table.Event),
        ]
    )


def consumer_member() -> str:
    """A member of a group of the consumer protocol, seen by itself."""
    arrows = [
        (state, event, target)
        for state, row in consumer_member_table.TRANSITIONS.items()
        for event, target in row.items()
    ]
    return "\n".join(
        [
            "# A member under the consumer protocol (KIP-848)",
            "",
            "Drawn by `make diagrams` from `kohort/group/member/consumer_table.py`.",
            "",
            *diagram(consumer_member_table.State.DOWN, arrows, "States"),
            *legend("state", consumer_member_table.State),
            *legend("event", consumer_member_table.Event),
        ]
    )


def consumer_group() -> str:
    """A consumer group (KIP-848) and its members, seen by the coordinator."""
    members = [(s, e, t) for (s, e), t in consumer_states.MEMBER_TRANSITIONS.items()]
    groups = [(s, e, t) for (s, e), t in consumer_states.GROUP_TRANSITIONS.items()]
    words = [(f"`{s.name}`", [w]) for s, w in consumer_states.MEMBER_STATE_WORDS.items()]
    answers = [
        (asked.value, [_shown(a) for a in row.values()])
        for asked, row in consumer_states.ANSWERS.items()
    ]
    steps = [(f"*{s.name.lower().replace('_', ' ')}*", [_doc(s)]) for s in consumer_states.Step]
    return "\n".join(
        [
            "# A consumer group (KIP-848), seen by its coordinator",
            "",
            "Drawn by `make diagrams` from `kohort/group/coordinator/state/consumer_table.py`.",
            "",
            *diagram(consumer_states.MemberState.STABLE, members, "A member"),
            *table("state", ["what it means"], words),
            *legend("event", consumer_states.MemberEvent),
            *diagram(consumer_states.ConsumerState.EMPTY, groups, "The group"),
            *legend("event", consumer_states.ConsumerEvent),
            "## What each request is answered",
            "",
            "By what the group id refers to. In italics: the action.",
            "",
            *table("request", [h.value for h in consumer_states.Holder], answers),
            *table("step", ["what it means"], steps),
        ]
    )


def partition() -> str:
    """A partition, seen by its consumer."""
    arrows = [(s, e, t) for (s, e), t in positions.TRANSITIONS.items()]
    return "\n".join(
        [
            "# A partition that a consumer reads",
            "",
            "Drawn by `make diagrams` from `kohort/client/consumer/plan/positions.py`.",
            "",
            *diagram(positions.Phase.AWAITING_OFFSET, arrows, "States"),
            *legend("state", positions.Phase),
            *legend("event", positions.Event),
        ]
    )


def producer() -> str:
    """A transactional producer."""
    arrows = [(s, e, t) for (s, e), t in transaction_table.TRANSITIONS.items()]
    return "\n".join(
        [
            "# A transactional producer",
            "",
            "Drawn by `make diagrams` from `kohort/client/producer/plan/transaction_table.py`.",
            "",
            *diagram(transaction_table.TxState.NEW, arrows, "States"),
            *legend("state", transaction_table.TxState),
            *legend("event", transaction_table.TxEvent),
        ]
    )


def transaction() -> str:
    """A transaction, seen by its coordinator."""
    arrows = [(s, e, t) for (s, e), t in transaction_states.TRANSITIONS.items()]
    columns = [s.value for s in transaction_states.TransactionState]
    answers = [
        (asked.value, [_shown(a) for a in row.values()])
        for asked, row in transaction_states.ANSWERS.items()
    ]
    steps = [(f"*{s.name.lower().replace('_', ' ')}*", [_doc(s)]) for s in transaction_states.Step]
    return "\n".join(
        [
            "# A transaction, seen by its coordinator",
            "",
            "Drawn by `make diagrams` from `kohort/transactions/states.py`.",
            "",
            *diagram(transaction_states.TransactionState.EMPTY, arrows, "States"),
            *legend("state", transaction_states.TransactionState),
            *legend("event", transaction_states.TransactionEvent),
            "## What each request is answered",
            "",
            "Once producer id and epoch are found good. In italics: what is done. Dead: not known.",
            "",
            *table("request", columns, answers),
            *table("step", ["what it means"], steps),
        ]
    )


PAGES = {
    "coordinator.md": coordinator,
    "consumer-group.md": consumer_group,
    "member.md": member,
    "consumer-member.md": consumer_member,
    "partition.md": partition,
    "producer.md": producer,
    "transaction.md": transaction,
}


def stale() -> list[str]:
    """The pages that are not what the tables say."""
    return [
        name
        for name, draw in PAGES.items()
        if not (TARGET / name).exists() or (TARGET / name).read_text() != draw()
    ]


def main() -> int:
    if "--check" in sys.argv:
        if names := stale():
            print(f"not up to date: {', '.join(names)}; run `make diagrams`", file=sys.stderr)
        return 1 if stale() else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, draw in PAGES.items():
        (TARGET / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
