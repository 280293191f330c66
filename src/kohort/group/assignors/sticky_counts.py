"""The sticky assignors' arithmetic: how many of which partitions each member gets.

Rules:
- Topics with the same subscribers form a bundle, whose partitions are interchangeable: only counts
  matter here. `own[b][m]` is what member m owned of bundle b, `got[b][m]` what it is to get; it
  keeps `min` of the two, so a move is a unit of `own` above `got`. Where racks matter, a bundle has
  one set of racks as well, and `far[b][m]` is what each of its units costs at member m.
- First as balanced as possible: the sum of load²/weight is minimal, so no chain of hand-overs leads
  from a member to one that could do with it better. Then as near as possible, then as few moves as
  possible (spec 3.4; KIP-881): a unit's price is its `far`, and one for being moved.
- All are exact. One bundle and no racks: quotas. Otherwise: start with each unit where it is
  cheapest, owners and then the lowest loads first; then hand units over along cheapest chains. A
  cheapest chain keeps the price minimal for the loads reached (successive shortest paths), and as
  the price is an M-convex function of the loads, a state that no one chain improves is the best of
  all (Murota).
- Members that cannot be reached any more are taken out of the search, so what finds nothing costs
  one pass over the graph in total, not one a member (B35: no endless loop, no quadratic time).
- Weights are whole numbers and prices of loads quotients of small ones, which floats compare right.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from kohort.lean import dataclass, field

SMOOTHING_PASSES = 50
"""Any imbalance left after this many passes goes to the exact search."""


@dataclass(slots=True)
class Bundle:
    """Topics with the same subscribers; `subscribers` are places in the order of members."""

    size: int
    subscribers: Sequence[int]
    own: dict[int, int]
    far: Mapping[int, int] = field(default_factory=dict[int, int])
    got: dict[int, int] = field(default_factory=dict[int, int])
    near: Sequence[int] = ()
    """The subscribers for whom a unit is cheapest; filled in where it is asked for."""


def balance(bundles: Sequence[Bundle], members: int, weights: Sequence[int] | None = None) -> None:
    """Fill in `got` of every bundle, for members 0 to `members - 1`.

    A load should be in proportion to the member's weight (at least 1; all the same without).
    """
    for part in _components(bundles, members):
        if len(part) == 1 and not part[0].far:
            _quotas(part[0], weights)
        else:
            _Chains(part, weights).solve()


def fill(
    loads: Mapping[int, int], units: int, weights: Sequence[int] | None = None
) -> dict[int, int]:
    """Deal `units` to the lowest loads, first in order first on a tie: how many each gets."""
    if weights is not None:
        return _fill_by_weight(loads, units, weights)
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
    shares = {member: height - loads[member] for member in order[:taking]}
    for member in sorted(order[:taking])[:extra] if extra else ():
        shares[member] += 1
    return shares


def _fill_by_weight(loads: Mapping[int, int], units: int, weights: Sequence[int]) -> dict[int, int]:
    """The same by weight: the next unit goes where (2 load + 1) / weight is lowest."""
    shares = dict.fromkeys(loads, 0)
    active, rest = dict(loads), units
    while active:
        # All but about two units a member in one step; members above the level are left out.
        each = (2 * (rest + sum(active.values())) - 3 * len(active)) / (
            2 * sum(weights[member] for member in active)
        )
        above = [member for member, load in active.items() if load > each * weights[member]]
        if not above:
            for member, load in active.items():
                shares[member] = int(each * weights[member]) - load
            break
        for member in above:
            del active[member]
    rest -= sum(shares.values())
    heap = [((2 * (loads[m] + shares[m]) + 1) / weights[m], m) for m in loads]
    heapq.heapify(heap)
    for _ in range(rest if heap else 0):
        member = heap[0][1]
        shares[member] += 1
        heapq.heapreplace(
            heap, ((2 * (loads[member] + shares[member]) + 1) / weights[member], member)
        )
    return shares


def _components(bundles: Sequence[Bundle], members: int) -> list[list[Bundle]]:
    """Bundles that share no member, directly or through others, do not concern each other."""
    root = list(range(members))

    def find(member: int) -> int:
        while root[member] != member:
            root[member] = member = root[root[member]]
        return member

    known: set[int] = set()
    for bundle in bundles:
        if id(bundle.subscribers) in known:
            continue
        known.add(id(bundle.subscribers))
        first = find(bundle.subscribers[0])
        for member in bundle.subscribers:
            root[find(member)] = first
    parts: dict[int, list[Bundle]] = {}
    for bundle in bundles:
        parts.setdefault(find(bundle.subscribers[0]), []).append(bundle)
    return list(parts.values())


def _quotas(bundle: Bundle, weights: Sequence[int] | None) -> None:
    """Everybody may read everything: the last units of equal worth go first to who owns them."""
    own, got = bundle.own, bundle.got
    if weights is None:
        each, extra = divmod(bundle.size, len(bundle.subscribers))
        got.update(dict.fromkeys(bundle.subscribers, each))
        tied: Sequence[int] = bundle.subscribers
    else:
        loads = fill(dict.fromkeys(bundle.subscribers, 0), bundle.size, weights)
        got.update(loads)
        last = max((2 * load - 1) / weights[member] for member, load in loads.items())
        taken = [m for m, load in loads.items() if (2 * load - 1) / weights[m] == last]
        for member in taken:
            got[member] -= 1
        extra = len(taken)
        tied = [m for m in bundle.subscribers if (2 * got[m] + 1) / weights[m] == last]
    if not extra:
        return
    # Who owns more first, as that saves a move; then, in order, who owned less than it gets, as a
    # deal to the lowest loads would have it.
    before = {member: min(own.get(member, 0) - got[member], 1) for member in tied}
    for member in sorted(tied, key=lambda m: (before[m] < 1, before[m] == 0))[:extra]:
        got[member] += 1


class _Chains:
    """Bundles whose subscribers overlap: balanced by handing units over along chains."""

    def __init__(self, bundles: Sequence[Bundle], weights: Sequence[int] | None) -> None:
        self.bundles = sorted(bundles, key=lambda bundle: len(bundle.subscribers))
        self.reads: dict[int, list[int]] = {}
        for number, bundle in enumerate(self.bundles):
            bundle.near = _near(bundle)
            for member in bundle.subscribers:
                self.reads.setdefault(member, []).append(number)
        self.loads = dict.fromkeys(sorted(self.reads), 0)
        self.weights = weights
        self.closed: set[int] = set()
        self.via_bundle: dict[int, int] = {}
        self.via_member: dict[int, int] = {}
        self.ends: dict[int, list[int]] = {}
        self.price_of_bundle: dict[int, int] = {}

    def up(self, member: int) -> float:
        """What one more costs the balance."""
        price = 2 * self.loads[member] + 1
        return price if self.weights is None else price / self.weights[member]

    def down(self, member: int) -> float:
        """What one less saves the balance."""
        price = 2 * self.loads[member] - 1
        return price if self.weights is None else price / self.weights[member]

    def solve(self) -> None:
        """Start with every unit where it is cheapest, level, then mend what was not needed."""
        self._start()
        for _ in range(SMOOTHING_PASSES):
            levelled = [self._smooth(bundle) for bundle in self.bundles]
            if not any(levelled):
                break
        self._level_in_bulk()
        self._level()
        self._mend()

    def _start(self) -> None:
        loads = self.loads
        for bundle in self.bundles:
            bundle.got = dict.fromkeys(bundle.subscribers, 0)
            for member in bundle.near:
                bundle.got[member] = owned = bundle.own.get(member, 0)
                loads[member] += owned
        for bundle in self.bundles:
            units = bundle.size - sum(bundle.got.values())
            at = {member: loads[member] for member in bundle.near}
            for member, more in fill(at, units, self.weights).items():
                bundle.got[member] += more
                loads[member] += more

    def _smooth(self, bundle: Bundle) -> bool:
        """Level the partitions of a bundle that had no owner nearby: free, so no search."""
        loads, got, own, near = self.loads, bundle.got, bundle.own, bundle.near
        lowest = min(map(self.up, near))
        donors = [m for m in near if self.down(m) > lowest and got[m] > own.get(m, 0)]
        if not donors:
            return False
        donors.sort(key=self.down, reverse=True)
        recipients = sorted(near, key=self.up)
        levelled = False
        for donor, recipient in zip(donors, recipients, strict=False):
            units = min(self._between(donor, recipient), got[donor] - own.get(donor, 0))
            if units <= 0:
                break
            got[donor] -= units
            got[recipient] += units
            loads[donor] -= units
            loads[recipient] += units
            levelled = True
        return levelled

    def _between(self, donor: int, recipient: int) -> int:
        """How many units bring two members level."""
        high, low = self.loads[donor], self.loads[recipient]
        if self.weights is None:
            return (high - low) // 2
        give, take = self.weights[donor], self.weights[recipient]
        return (high * take - low * give) // (give + take)

    def _level_in_bulk(self) -> None:
        """From members above the mean to members below it, many units a search."""
        loads, total = self.loads, sum(self.loads.values())
        whole = sum(map(self._weight, loads))

        def room(member: int) -> int:
            return abs(loads[member] * whole - total * self._weight(member)) // whole

        while True:
            below = [m for m in loads if loads[m] * whole < total * self._weight(m) and room(m)]
            reached = self._search(below)
            above = [m for m in reached if loads[m] * whole > total * self._weight(m) and room(m)]
            if not above:
                return
            self._take(above, reached, room)

    def _weight(self, member: int) -> int:
        return 1 if self.weights is None else self.weights[member]

    def _level(self) -> None:
        """Raise the lowest members from members that have too much, until there are none."""
        loads = self.loads
        while len(self.closed) < len(loads):
            level = min(self.up(member) for member in loads if member not in self.closed)
            recipients = [m for m in loads if m not in self.closed and self.up(m) == level]
            reached = self._search(recipients)
            donors = [donor for donor in reached if self.down(donor) > level]
            if donors:
                self._take(donors, reached, None)
            else:
                # The members that can reach the lowest have nothing of more value there, and that
                # stays true:
                # nothing done for higher members can pass through here again.
                self.closed.update(reached)

    def _take(
        self, donors: list[int], reached: dict[int, int], room: Callable[[int], int] | None
    ) -> None:
        """Along the cheapest chains, the fullest donors first; one search serves many.

        Up to `room` units a member, or one.
        """
        cheapest = min(reached[donor] for donor in donors)
        cheap = [donor for donor in donors if reached[donor] == cheapest]
        raised: set[int] = set()
        for donor in sorted(cheap, key=lambda each: (-self.down(each), each)):
            chain = self._chain(donor)
            if chain is None:
                continue
            source, number, _ = chain[-1]
            ends = self.ends[number]
            while ends:
                recipient = ends[-1]
                chain[-1] = source, number, recipient
                full = recipient in raised if room is None else not room(recipient)
                if full or self._price_in(number, recipient) != self.price_of_bundle[number]:
                    ends.pop()
                    continue
                units = min(room(donor), room(recipient)) if room else 1
                units = min(units, self._equal_units(chain))
                worth = self.down(donor) > self.up(recipient) and self._cost(chain) == cheapest
                if not worth or not units:
                    break
                self._hand_over(chain, units)
                if room is None:
                    raised.add(recipient)
                    break

    def _mend(self) -> None:
        """Equal balance at a lower price: a unit to where it weighs the same."""
        if all(_is_cheapest(bundle) for bundle in self.bundles):
            return
        self.closed.clear()
        mended = True
        while mended:
            mended = False
            for level in sorted({self.up(member) for member in self.loads}):
                recipients = [member for member in self.loads if self.up(member) == level]
                reached = self._search(recipients)
                donors = [m for m, cost in reached.items() if cost < 0 and self.down(m) == level]
                mended |= bool(donors) and self._mend_at(level, donors, reached)

    def _mend_at(self, level: float, donors: list[int], reached: dict[int, int]) -> bool:
        cheapest = min(reached[donor] for donor in donors)
        for donor in sorted(donor for donor in donors if reached[donor] == cheapest):
            chain = self._chain(donor)
            if chain and self.up(chain[-1][2]) == level and self._cost(chain) == cheapest:
                self._hand_over(chain, 1)
        return True

    def _price_in(self, number: int, recipient: int) -> int:
        """What one more unit of a bundle costs at a member."""
        bundle = self.bundles[number]
        moved_back = bundle.got[recipient] < bundle.own.get(recipient, 0)
        return bundle.far.get(recipient, 0) - moved_back

    def _search(self, recipients: Iterable[int]) -> dict[int, int]:
        """What the cheapest chain from each member to one of `recipients` costs."""
        cost = dict.fromkeys(recipients, 0)
        best: dict[int, int] = {}
        self.price_of_bundle = best
        self.via_bundle, self.via_member, self.ends = {}, {}, {}
        queue = deque(cost)
        waiting = set(cost)
        while queue:
            recipient = queue.popleft()
            waiting.discard(recipient)
            so_far = cost[recipient]
            for number in self.reads[recipient]:
                to_bundle = so_far + self._price_in(number, recipient)
                known = best.get(number)
                if known is not None and known <= to_bundle:
                    if known == to_bundle and recipient not in self.via_bundle:
                        self.ends[number].append(recipient)
                    continue
                best[number] = to_bundle
                self.via_member[number] = recipient
                self.ends[number] = [] if recipient in self.via_bundle else [recipient]
                for donor in self._leave(number, to_bundle, cost):
                    if donor not in waiting:
                        waiting.add(donor)
                        queue.append(donor)
        return cost

    def _leave(self, number: int, to_bundle: int, cost: dict[int, int]) -> list[int]:
        """The members that can give a unit of the bundle at a lower cost than known so far."""
        bundle = self.bundles[number]
        own, far = bundle.own, bundle.far
        cheaper: list[int] = []
        for donor, units in bundle.got.items():
            if not units or donor in self.closed:
                continue
            total = to_bundle + (units <= own.get(donor, 0))
            if far:
                total -= far.get(donor, 0)
            if donor not in cost or total < cost[donor]:
                cost[donor] = total
                self.via_bundle[donor] = number
                cheaper.append(donor)
        return cheaper

    def _chain(self, donor: int) -> list[tuple[int, int, int]] | None:
        """The hand-overs (from, bundle, to) that the last search found; None if it broke since."""
        chain: list[tuple[int, int, int]] = []
        member = donor
        while member in self.via_bundle:
            number = self.via_bundle[member]
            recipient = self.via_member[number]
            if not self.bundles[number].got[member]:
                return None
            chain.append((member, number, recipient))
            assert len(chain) <= len(self.loads), "a cheapest chain does not cross itself"
            member = recipient
        return chain

    def _cost(self, chain: list[tuple[int, int, int]]) -> int:
        cost = 0
        for donor, number, recipient in chain:
            bundle = self.bundles[number]
            got, own, far = bundle.got, bundle.own, bundle.far
            cost += (got[donor] <= own.get(donor, 0)) - (got[recipient] < own.get(recipient, 0))
            cost += far.get(recipient, 0) - far.get(donor, 0)
        return cost

    def _equal_units(self, chain: list[tuple[int, int, int]]) -> int:
        """How many units the chain carries at the price of the first."""
        units: list[int] = []
        for donor, number, recipient in chain:
            got, own = self.bundles[number].got, self.bundles[number].own
            spare, lack = got[donor] - own.get(donor, 0), own.get(recipient, 0) - got[recipient]
            units.append(spare if spare > 0 else got[donor])
            if lack > 0:
                units.append(lack)
        return min(units)

    def _hand_over(self, chain: list[tuple[int, int, int]], units: int) -> None:
        for donor, number, recipient in chain:
            got = self.bundles[number].got
            got[donor] -= units
            got[recipient] += units
        self.loads[chain[0][0]] -= units
        self.loads[chain[-1][2]] += units


def _near(bundle: Bundle) -> Sequence[int]:
    """The subscribers for whom a unit of the bundle is cheapest."""
    if not bundle.far:
        return bundle.subscribers
    nearest = min(bundle.far.get(member, 0) for member in bundle.subscribers)
    return [member for member in bundle.subscribers if bundle.far.get(member, 0) == nearest]


def _is_cheapest(bundle: Bundle) -> bool:
    """Whether every unit is near, and no member nearby gave anything up: as `_start` had it."""
    near = bundle.near
    kept = all(bundle.got[member] >= bundle.own.get(member, 0) for member in near)
    return kept and (near is bundle.subscribers or sum(bundle.got[m] for m in near) == bundle.size)
