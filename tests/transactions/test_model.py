"""Many producers, random requests, crashes at every step: what was decided is never undecided.

Every event is followed by the check of the harness: live == replay == replay of the compacted log.
"""

from __future__ import annotations

import random

import pytest

from kohort.errors import ErrorCode
from kohort.transactions.states import ENDING, TransactionState
from tests.transactions.harness import BEFORE, KIP_890, Bench, ProducerIdentity

SEEDS = range(25)
STEPS = 130
NAMES = ("a", "b", "c")
RETRY = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}


class Client:
    """A producer that keeps to the protocol; it may be a zombie without knowing it."""

    def __init__(self, bench: Bench, name: str, version: int) -> None:
        self.bench, self.name, self.version = bench, name, version
        self.identity: ProducerIdentity | None = None
        self.wish: bool | None = None
        """The end that it has asked for and not heard of."""
        self.written = 0
        self.dead = False

    def step(self, chance: random.Random) -> None:
        bench = self.bench
        if self.identity is None:
            answer = bench.init(self.name, timeout_ms=20_000)
            if answer.error_code == 0:
                self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            else:
                assert answer.error_code in RETRY
        elif self.wish is not None or (self.written and chance.random() < 0.4):
            self.end(chance)
        else:
            partition = ("t", chance.randrange(4))
            code = bench.add(self.identity, partition, name=self.name, version=self.version)
            if code == 0:
                self.written += 1
            else:
                self.refused(code)

    def end(self, chance: random.Random) -> None:
        assert self.identity is not None
        if self.wish is None:
            self.wish = chance.random() < 0.6
        answer = self.bench.end(
            self.identity, commit=self.wish, name=self.name, version=self.version
        )
        if answer is None:
            token = self.bench.token
            if chance.random() < 0.5:
                self.bench.write_markers()
            answer = self.bench.answers.get(token)
            if answer is None:
                return  # it asks again later; the answer may be lost meanwhile
        if answer.error_code:
            self.refused(answer.error_code)
            return
        if self.version == KIP_890:
            ended = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            assert decision(self.bench, self.name, ended) is self.wish, "told what was not decided"
            self.identity = ended
        self.wish, self.written = None, 0

    def refused(self, code: int) -> None:
        if code in RETRY:
            return
        # A producer that was fenced, or whose transaction took too long; or, before KIP-890, one
        # that ends what its coordinator has ended itself.
        assert code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING), code
        self.dead = True


def decision(bench: Bench, name: str, ended: ProducerIdentity) -> bool:
    """What was decided in the transaction whose end gave this epoch; one thing, however often."""
    found = {m.committed for m in bench.decided if (m[0], m[1], m[2]) == (name, *ended)}
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_stand(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(transactional_id_expiration_ms=10**9)
    clients: list[Client] = []
    highest: dict[str, ProducerIdentity] = {}
    for _ in range(STEPS):
        what = chance.random()
        if what < 0.05 or not clients:
            clients.append(Client(bench, chance.choice(NAMES), chance.choice([BEFORE, KIP_890])))
        elif what < 0.10:
            bench.failover()
        elif what < 0.15:
            bench.advance(chance.choice([1, 500, 5_000, 30_000]))
        elif what < 0.30:
            bench.write_markers()
        else:
            chance.choice(clients).step(chance)
            clients = [client for client in clients if not client.dead]
        check(bench, highest)
    bench.failover()
    bench.write_markers()
    states = {t.state for t in bench.shard.durable.values()}
    assert not states & ENDING


def check(bench: Bench, highest: dict[str, ProducerIdentity]) -> None:
    """Epochs never fall, and a state has what belongs to it."""
    for name, t in bench.shard.durable.items():
        now = ProducerIdentity(t.producer_id, t.epoch)
        assert now >= highest.get(name, now), f"{name} fell from {highest[name]} to {now}"
        highest[name] = now
        if t.state is TransactionState.ONGOING:
            assert t.partitions
            assert t.started_ms >= 0
        elif t.state not in ENDING:
            assert not t.partitions
