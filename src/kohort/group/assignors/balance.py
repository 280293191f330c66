"""The sticky assignors' arithmetic: how many of which partitions each member gets.

Rules:
- Topics with the same subscribers form a bundle, whose partitions are interchangeable: only counts
  matter here. `own[b][m]` is what member m owned of bundle b, `got[b][m]` what it is to get; it
  keeps `min` of the two, so a move is a unit of `own` above `got`.
- First as balanced as possible: the sum of squared loads is minimal, so no chain of hand-overs
  leads from a member to one with at least two less. Then as few moves as possible (spec 3.4).
- Both are exact. One bundle: quotas. Several: start where nobody gives anything up and unowned
  units fill the lowest loads; then hand units over along cheapest chains. A cheapest chain keeps
  the moves minimal for the loads reached (successive shortest paths), and as the moves are an
  M-convex function of the loads, a state that no one chain improves is the best of all (Murota).
- Members that cannot be reached any more are taken out of the search, so what finds nothing costs
  one pass over the graph in total, not one a member (B35: no endless loop, no quadratic time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SMOOTHING_PASSES = 50
"""What is not level after so many passes is left to the exact search."""


@dataclass(slots=True)
class Bundle:
    """Topics with the same subscribers; `subscribers` are places in the order of members."""

    size: int
    subscribers: Sequence[int]
    own: dict[int, int]
    got: dict[int, int] = field(default_factory=dict[int, int])


def balance(bundles: Sequence[Bundle], members: int) -> None:
    """Fill in `got` of every bundle, for members 0 to `members - 1`."""
    for part in _components(bundles, members):
        if len(part) == 1:
            _quotas(part[0])
        else:
            _Chains(part).solve()


def fill(loads: dict[int, int], units: int) -> dict[int, int]:
    """Deal `units` to the lowest loads, first in order first on a tie: how many each gets."""
    order = sorted(loads, key=loads.__getitem__)
    taking, level, spent = 0, 0, 0
    for taking, member in enumerate(order, 1):
        level = loads[member]
        spent += level
        # All of the `taking` lowest can be raised to the next one's load, or the units end here.
        if taking == len(order) or loads[order[taking]] * taking - spent >= units:
            break
    if not taking:
        return {}
    height, extra = divmod(spent + units, taking)
    given = {member: height - loads[member] for member in order[:taking]}
    for member in sorted(order[:taking])[:extra] if extra else ():
        given[member] += 1
    return given


def _components(bundles: Sequence[Bundle], members: int) -> list[list[Bundle]]:
    """Bundles that share no member, directly or through others, do not concern each other."""
    root = list(range(members))

    def find(member: int) -> int:
        while root[member] != member:
            root[member] = member = root[root[member]]
        return member

    for bundle in bundles:
        first = find(bundle.subscribers[0])
        for member in bundle.subscribers:
            root[find(member)] = first
    parts: dict[int, list[Bundle]] = {}
    for bundle in bundles:
        parts.setdefault(find(bundle.subscribers[0]), []).append(bundle)
    return list(parts.values())


def _quotas(bundle: Bundle) -> None:
    """Everybody may read everything: floor or ceiling, the ceiling first to who owns that much."""
    each, extra = divmod(bundle.size, len(bundle.subscribers))
    own, got = bundle.own, bundle.got
    for member in bundle.subscribers:
        have = own.get(member, 0)
        if have > each and extra:
            got[member], extra = each + 1, extra - 1
        else:
            got[member] = each
    if extra:
        # Nobody owns more than `each` now; the first in order that owned the least go first, as a
        # deal to the lowest loads would have it.
        lacking = [member for member in bundle.subscribers if own.get(member, 0) <= each]
        for member in sorted(lacking, key=lambda m: own.get(m, 0) == each)[:extra]:
            got[member] += 1


class _Chains:
    """Bundles whose subscribers overlap: balanced by handing units over along chains."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self.bundles = sorted(bundles, key=lambda bundle: len(bundle.subscribers))
        self.reads: dict[int, list[int]] = {}
        for number, bundle in enumerate(self.bundles):
            for member in bundle.subscribers:
                self.reads.setdefault(member, []).append(number)
        self.loads = dict.fromkeys(sorted(self.reads), 0)
        self.closed: set[int] = set()
        self.via_bundle: dict[int, int] = {}
        self.via_member: dict[int, int] = {}

    def solve(self) -> None:
        """Start without moves, level, then mend moves that were not needed."""
        loads = self.loads
        for bundle in self.bundles:
            for member in bundle.subscribers:
                bundle.got[member] = owned = bundle.own.get(member, 0)
                loads[member] += owned
        for bundle in self.bundles:
            units = bundle.size - sum(bundle.own.values())
            for member, more in fill({m: loads[m] for m in bundle.subscribers}, units).items():
                bundle.got[member] += more
                loads[member] += more
        for _ in range(SMOOTHING_PASSES):
            levelled = [self._smooth(bundle) for bundle in self.bundles]
            if not any(levelled):
                break
        self._level()
        self._mend()

    def _smooth(self, bundle: Bundle) -> bool:
        """Level within one bundle what nobody owned: no move, so nothing to search for."""
        loads, got, own = self.loads, bundle.got, bundle.own
        lowest = min(loads[member] for member in bundle.subscribers)
        givers = [m for m in got if loads[m] >= lowest + 2 and got[m] > own.get(m, 0)]
        if not givers:
            return False
        givers.sort(key=loads.__getitem__, reverse=True)
        takers = sorted(bundle.subscribers, key=loads.__getitem__)
        levelled = False
        for giver, taker in zip(givers, takers, strict=False):
            units = min((loads[giver] - loads[taker]) // 2, got[giver] - own.get(giver, 0))
            if units <= 0:
                break
            got[giver] -= units
            got[taker] += units
            loads[giver] -= units
            loads[taker] += units
            levelled = True
        return levelled

    def _level(self) -> None:
        """Raise the lowest members from members with at least two more, until there are none."""
        loads = self.loads
        while len(self.closed) < len(loads):
            level = min(load for member, load in loads.items() if member not in self.closed)
            takers = [m for m, load in loads.items() if load == level and m not in self.closed]
            reached = self._search(takers)
            givers = [giver for giver in reached if loads[giver] >= level + 2]
            if givers:
                self._take(givers, reached)
            else:
                # Whoever can reach the lowest is at most one above them, and stays so: nothing
                # that is done for higher members can pass through here again.
                self.closed.update(reached)

    def _take(self, givers: list[int], reached: dict[int, int]) -> None:
        """Along the cheapest chains, the fullest givers first; one search serves many."""
        loads, cheapest = self.loads, min(reached[giver] for giver in givers)
        cheap = [giver for giver in givers if reached[giver] == cheapest]
        for giver in sorted(cheap, key=lambda each: (-loads[each], each)):
            chain = self._chain(giver)
            if chain is None or loads[giver] < loads[chain[-1][2]] + 2:
                continue
            if self._cost(chain) == cheapest:
                self._hand_over(chain)

    def _mend(self) -> None:
        """Equal balance with fewer moves: a unit from a load to one that is one lower."""
        if all(b.got[m] >= have for b in self.bundles for m, have in b.own.items()):
            return
        self.closed.clear()
        loads, mended = self.loads, True
        while mended:
            mended = False
            for level in sorted(set(loads.values())):
                takers = [member for member, load in loads.items() if load == level]
                reached = self._search(takers)
                givers = [m for m, cost in reached.items() if cost < 0 and loads[m] == level + 1]
                if givers:
                    chain = self._chain(min(givers, key=lambda m: (reached[m], m)))
                    assert chain is not None, "a search's own chain leads to where it began"
                    self._hand_over(chain)
                    mended = True

    def _search(self, takers: Iterable[int]) -> dict[int, int]:
        """What the cheapest chain from each member to one of `takers` costs in moves."""
        cost = dict.fromkeys(takers, 0)
        cost_of_bundle: dict[int, int] = {}
        self.via_bundle, self.via_member = {}, {}
        queue = deque(cost)
        waiting = set(cost)
        while queue:
            taker = queue.popleft()
            waiting.discard(taker)
            so_far = cost[taker]
            for number in self.reads[taker]:
                bundle = self.bundles[number]
                got, own = bundle.got, bundle.own
                to_bundle = so_far - (got[taker] < own.get(taker, 0))
                if cost_of_bundle.get(number, to_bundle + 1) <= to_bundle:
                    continue
                cost_of_bundle[number] = to_bundle
                self.via_member[number] = taker
                for giver, units in got.items():
                    if not units or giver in self.closed:
                        continue
                    total = to_bundle + (units <= own.get(giver, 0))
                    if giver not in cost or total < cost[giver]:
                        cost[giver] = total
                        self.via_bundle[giver] = number
                        if giver not in waiting:
                            waiting.add(giver)
                            queue.append(giver)
        return cost

    def _chain(self, giver: int) -> list[tuple[int, int, int]] | None:
        """The hand-overs (from, bundle, to) that the last search found; None if it broke since."""
        chain: list[tuple[int, int, int]] = []
        member = giver
        while member in self.via_bundle:
            number = self.via_bundle[member]
            taker = self.via_member[number]
            if not self.bundles[number].got[member]:
                return None
            chain.append((member, number, taker))
            assert len(chain) <= len(self.loads), "a cheapest chain does not cross itself"
            member = taker
        return chain

    def _cost(self, chain: list[tuple[int, int, int]]) -> int:
        cost = 0
        for giver, number, taker in chain:
            got, own = self.bundles[number].got, self.bundles[number].own
            cost += (got[giver] <= own.get(giver, 0)) - (got[taker] < own.get(taker, 0))
        return cost

    def _hand_over(self, chain: list[tuple[int, int, int]]) -> None:
        for giver, number, taker in chain:
            got = self.bundles[number].got
            got[giver] -= 1
            got[taker] += 1
        self.loads[chain[0][0]] -= 1
        self.loads[chain[-1][2]] += 1
