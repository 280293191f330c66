"""The reference model of what clients of a group may see of its committed offsets.

SY18 Committed offsets are linearizable: each commit takes effect whole, at one moment between its
     request and its answer, and each fetch shows what counts at one such moment. A commit that was
     refused, or that a newer generation has fenced, never takes effect.

Rules:
- A group is a register for each partition. A transaction is one commit of all its offsets between
  EndTxn and its answer: clients ask for stable offsets only (KIP-447), so that none shows before
  the marker and no fetch passes it.
- A commit without an answer takes effect at any later moment, or never.
- The search is Wing and Gong's, from answer to answer: all that the registers may hold by then,
  with the operations under way that have taken effect. Redundant possibilities are dropped
  (`_Frontier`). It goes partition by partition first, then
  over all partitions of a group at once. One that needs more than `BUDGET` steps ends with a
  Violation that says so: there is no verdict then, which is never taken for a good one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from kohort.client.common.types import TopicPartition
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system.history import Fate, History, Kind, Operation

CODE: Final = "SY18"
BUDGET = 50_000
"""Steps of one search."""
Offset = int | None
Held = tuple[Offset, ...]
"""What the registers hold, in the order of their partitions."""
Config = tuple[Held, frozenset[int]]
"""And which operations under way have taken effect."""


class GaveUpError(Exception):
    """The search would take too long."""


@dataclass(frozen=True)
class Unexplained:
    """No order explains an answer; `held` is what the registers could have held then."""

    operation: Operation
    held: frozenset[Held]


def check_offsets(
    history: History, last: Mapping[str, Mapping[TopicPartition, int | None]]
) -> None:
    """Raise the first Violation; `last` is what each group has committed at the end."""
    by_group: dict[str, list[Operation]] = defaultdict(list)
    for one in history.operations:
        by_group[one.group].append(one)
    end = 1 + max((max(o.asked, o.done or 0) for o in history.operations), default=0)
    for group, offsets in last.items():
        looked = Operation("the last look", group, Kind.FETCH, dict(offsets), end, done=end + 1)
        by_group[group].append(replace(looked, fate=Fate.DONE))
    deletes = by_group.pop("", [])
    for group, operations in by_group.items():
        places = {place for one in operations for place in one.offsets}
        operations += [_of(one, places) for one in deletes]
        check_group(group, operations, [(e, at) for g, e, at in history.stable if g == group])


def check_group(
    group: str, operations: Sequence[Operation], stable: Sequence[tuple[int, int]] = ()
) -> None:
    """Raise the first Violation of one group."""
    operations = [one for one in operations if one.offsets]
    places = sorted({place for one in operations for place in one.offsets})
    for place in places:
        own = [_of(one, {place}) for one in operations if place in one.offsets]
        _demand_order(group, own, [place])
        _demand_fences(group, place, own, stable)
    if len(places) > 1:
        _demand_order(group, operations, places)


def _of(one: Operation, places: set[TopicPartition]) -> Operation:
    """The part of an operation that is about these partitions."""
    return replace(one, offsets={p: o for p, o in one.offsets.items() if p in places})


def _demand_order(group: str, own: Sequence[Operation], places: Sequence[TopicPartition]) -> None:
    where = _name(places[0]) if len(places) == 1 else f"all {len(places)} partitions"
    try:
        wrong = unexplained(own)
    except GaveUpError:
        raise Violation(
            CODE, f"no verdict on group {group}, {where}: more than {BUDGET} steps of search"
        ) from None
    if wrong is None:
        return
    one = wrong.operation
    answer = ", ".join(f"{_name(p)}@{o}" for p, o in sorted(one.offsets.items()))
    could = " or ".join(sorted(", ".join(map(str, held)) for held in wrong.held))
    what = "fetched" if one.kind is Kind.FETCH else "committed"
    raise Violation(
        CODE,
        f"{one.who} {what} {answer} of group {group} from {one.asked_ms} to {one.done_ms} ms; by "
        f"the commits of {where} before and beside it, it could be {could}",
    )


# -- fences


def _demand_fences(
    group: str,
    place: TopicPartition,
    own: Sequence[Operation],
    stable: Sequence[tuple[int, int]],
) -> None:
    """A commit of an older generation than one that the group is known to have been in."""
    commits = [o for o in own if o.kind is Kind.COMMIT and o.fate is Fate.DONE and o.epoch >= 0]
    for late in commits:
        for before in commits:
            is_before = before.done is not None and before.done < late.asked
            if is_before and before.epoch > late.epoch and before.member != late.member:
                raise Violation(
                    CODE,
                    f"{late.who} committed {_name(place)}@{late.offsets[place]} of group {group} "
                    f"in generation {late.epoch} at {late.asked_ms} ms, after {before.who} had "
                    f"done so in generation {before.epoch}",
                )
        newest = max((epoch for epoch, at in stable if at < late.asked), default=-1)
        if newest > late.epoch:
            raise Violation(
                CODE,
                f"{late.who} committed {_name(place)}@{late.offsets[place]} of group {group} in "
                f"generation {late.epoch} at {late.asked_ms} ms; generation {newest} was stable",
            )


# -- the search


def unexplained(operations: Iterable[Operation]) -> Unexplained | None:
    """The first answer that no order of the operations explains; None when one explains all.

    GaveUpError beyond `BUDGET` steps.
    """
    return _Search(operations).run()


class _Frontier:
    """Configs without the redundant ones.

    A config makes another one redundant when both hold the same, the same commits with an answer
    have taken effect, it has used up no further commit without an answer, and it explains every
    fetch that the other one explains.
    """

    def __init__(self, unknown: frozenset[int], fetches: frozenset[int]) -> None:
        self._unknown, self._fetches = unknown, fetches
        self._kept: dict[Config, list[frozenset[int]]] = defaultdict(list)

    def add(self, config: Config) -> bool:
        """False, and nothing is changed, when the config is redundant."""
        state, taken = config
        kept = self._kept[state, taken - self._unknown - self._fetches]
        if any(self._covers(one, taken) for one in kept):
            return False
        kept[:] = [one for one in kept if not self._covers(taken, one)]
        kept.append(taken)
        return True

    def configs(self) -> list[Config]:
        """All that are kept."""
        return [(state, taken) for (state, _), kept in self._kept.items() for taken in kept]

    def _covers(self, one: frozenset[int], other: frozenset[int]) -> bool:
        used, explained = one & self._unknown, other & self._fetches
        return used <= other and explained <= one


class _Search:
    def __init__(self, operations: Iterable[Operation]) -> None:
        self._all = _that_matter(operations)
        self._places = sorted({place for one in self._all for place in one.offsets})
        index = {place: at for at, place in enumerate(self._places)}
        self._effects = [
            tuple(sorted((index[place], offset) for place, offset in one.offsets.items()))
            for one in self._all
        ]
        self._reads = [one.kind is Kind.FETCH for one in self._all]
        self._fetches = frozenset(i for i, is_read in enumerate(self._reads) if is_read)
        self._unknown = frozenset(i for i, one in enumerate(self._all) if one.done is None)
        last_shown = _last_shown(self._all)
        self._shown_until = [
            max(last_shown.get(shown, -1) for shown in one.offsets.items()) for one in self._all
        ]
        """Up to when a fetch may show something of each."""
        self._now = 0
        self._open: list[int] = []
        self._left = BUDGET
        self._entries = 0

    def run(self) -> Unexplained | None:
        configs: Iterable[Config] = [((None,) * len(self._places), frozenset())]
        events = [(one.asked, False, i) for i, one in enumerate(self._all)]
        events += [(one.done, True, i) for i, one in enumerate(self._all) if one.done is not None]
        for self._now, is_answer, number in sorted(events):
            if not is_answer:
                self._open.append(number)
                configs = [self._with_reads(config) for config in configs]
                continue
            after, seen = self._answered(number, configs)
            configs = after.configs()
            if not configs:
                held = frozenset(
                    tuple(state[place] for place, _ in self._effects[number])
                    for state, _ in seen.configs()
                )
                return Unexplained(self._all[number], held)
            self._open.remove(number)
        return None

    def _answered(self, number: int, configs: Iterable[Config]) -> tuple[_Frontier, _Frontier]:
        """What may be once an operation has taken effect, and all that was looked at."""
        after, seen = self._frontier(), self._frontier()
        # Those that have used up least come first: they make most others redundant.
        to_do = [self._entry(config) for config in configs if seen.add(config)]
        heapify(to_do)
        while to_do:
            self._left -= 1
            if self._left < 0:
                raise GaveUpError
            state, taken = heappop(to_do)[-1]
            if number in taken:
                after.add((state, taken - {number}))
                continue
            for other in self._next(taken):
                config = self._with_reads((self._applied(state, other), taken | {other}))
                is_of_use = other == number or self._is_of_use(other, taken, config)
                if is_of_use and seen.add(config):
                    heappush(to_do, self._entry(config))
        return after, seen

    def _entry(self, config: Config) -> tuple[int, int, Config]:
        self._entries += 1
        return len(config[1] & self._unknown), self._entries, config

    def _frontier(self) -> _Frontier:
        return _Frontier(self._unknown, self._fetches)

    def _next(self, taken: frozenset[int]) -> Iterable[int]:
        """The commits under way that may take effect next. Of those without an answer that do the
        same, one is enough: the earliest may do all that the others may."""
        alike: set[tuple[tuple[int, Offset], ...]] = set()
        for number in self._open:
            if self._reads[number] or number in taken:
                continue
            if number in self._unknown:
                if self._effects[number] in alike or self._shown_until[number] < self._now:
                    continue
                alike.add(self._effects[number])
            yield number

    def _is_of_use(self, number: int, before: frozenset[int], config: Config) -> bool:
        """With one register, a commit without an answer has taken effect just before a fetch that
        shows it, or might as well have had none."""
        many = len(self._places) > 1
        return many or self._all[number].done is not None or len(config[1]) > len(before) + 1

    def _with_reads(self, config: Config) -> Config:
        """A fetch under way that shows what counts now may take effect now: it changes nothing."""
        state, taken = config
        shown = {
            number
            for number in self._open
            if self._reads[number]
            and number not in taken
            and all(state[place] == offset for place, offset in self._effects[number])
        }
        return (state, taken | shown) if shown else config

    def _applied(self, state: Held, number: int) -> Held:
        changed = list(state)
        for place, offset in self._effects[number]:
            changed[place] = offset
        return tuple(changed)


def _that_matter(operations: Iterable[Operation]) -> list[Operation]:
    """Without refused commits, and without those of unknown fate of which no later fetch shows
    anything: they might as well have had no effect."""
    kept = [one for one in operations if one.fate is not Fate.REFUSED]
    last_shown = _last_shown(kept)
    return [
        one if one.fate is Fate.DONE else replace(one, done=None)
        for one in kept
        if one.fate is Fate.DONE
        or any(last_shown.get(shown, -1) >= one.asked for shown in one.offsets.items())
    ]


def _last_shown(operations: Iterable[Operation]) -> dict[tuple[TopicPartition, Offset], int]:
    """When the last fetch of each offset was answered."""
    last: dict[tuple[TopicPartition, Offset], int] = {}
    for one in operations:
        if one.kind is Kind.FETCH and one.done is not None:
            for shown in one.offsets.items():
                last[shown] = max(last.get(shown, -1), one.done)
    return last


def _name(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"
