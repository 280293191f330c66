"""Which batches go to which broker when, and what an answer means for them. Pure.

Rules (KIP-98, KIP-360, KIP-679):
- At most `max_in_flight_requests_per_connection` requests a broker; one batch a partition in each.
- A batch keeps its sequence over all tries, so the broker drops what it has already.
- After a failure a partition sends nothing new until all that was in flight has come back; what
  failed then goes first, in the old order. So retries never reorder.
- Sequences belong to a partition. When the broker does not expect the oldest batch's sequence, or
  refused a batch permanently, this partition continues under the next epoch, with sequences from 0.
  That cannot store anything twice: a batch behind one that was not stored was not stored either.
  A batch may be stored although its last try was refused, and those behind it, too: an earlier
  answer was lost, or the leader resigned. They keep epoch and sequences, so that the broker
  recognizes them.
- Of a transactional producer, identities come from the coordinator alone: what is refused fails,
  and its transaction with it.
- A batch of several records that is too large for the broker is split in two, with its sequences. A
  batch that was packed larger than a request may be is split before it leaves.
- Nothing leaves behind a batch of its partition that is back in line (it was split, or is tried
  again): it goes back to its place there. So not even without idempotence does that reorder.
- The first batch of a producer id in a partition goes alone until it is stored. A log that does not
  know the id takes any sequence as its first, also that of the second batch, when the first is lost
  on its way to a leader that died.
- While batches for a topic that was deleted are in flight, nothing leaves for the topic that was
  created again under its name: those come back, and the new log knows no sequence that would keep
  what is behind them waiting.
- Every batch gets exactly one outcome, but one that was split has its halves'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from kohort.client.cluster.refusal_log import Refusals
from kohort.client.common.config import ProducerConfig
from kohort.client.producer.plan.accumulator import NO_SEQUENCE, Accumulator, Batch, PartitionQueue
from kohort.client.producer.plan.batch_split import split
from kohort.errors import (
    BrokerError,
    ErrorCode,
    FencedError,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
)

SEQUENCE_MASK: Final = 0x7FFFFFFF
_KNOWN_BATCHES: Final = 5
"""Of one producer and partition a broker knows so many again: one that was stored and is sent again
behind more of them would count as out of order."""
_JITTER: Final = 0.2
PRODUCER_ID: Final = "the producer id"
"""What is refused (`refusals`) where no broker gives one."""


class Outcome(NamedTuple):
    """The end of a batch: stored at `base_offset`, or failed."""

    batch: Batch
    error: KohortError | None
    base_offset: int = -1
    append_time_ms: int = -1


class Answer(NamedTuple):
    """A broker's result for one batch."""

    code: int
    message: str
    base_offset: int
    append_time_ms: int


class ProducePlan(NamedTuple):
    """One request: the broker and its batches, each of another partition."""

    node_id: int
    batches: list[Batch]
    deadline_ms: int


class IdState(Enum):
    """Whether batches may carry a producer id."""

    UNUSED = "not idempotent"
    WANTED = "to be asked for"
    ASKED = "asked for"
    HELD = "held"


class Sender:
    """The sending half of a producer; works on the accumulator's queues."""

    def __init__(
        self, accumulator: Accumulator, config: ProducerConfig, uniform: Callable[[], float]
    ) -> None:
        self._accumulator = accumulator
        self._requests_max = config.max_in_flight_requests_per_connection
        self._request_bytes_max = config.max_request_size
        self._retries = config.retries
        self._first_ms = config.retry_backoff_ms
        self._backoff_max_ms = config.retry_backoff_max_ms
        self._uniform = uniform
        self._requests: dict[int, int] = {}
        """Requests in flight by node."""
        self.id_state = IdState.WANTED if config.enable_idempotence else IdState.UNUSED
        self.producer_id = -1
        self.producer_epoch = -1
        self._next_ms: int | None = None
        self._gate: Callable[[str, int], bool] | None = None
        self.refusals = Refusals()
        self.leader_missing = False
        """True when the last `plan` held batches back because their partition has no leader."""

    def become_transactional(self, gate: Callable[[str, int], bool]) -> None:
        """Identities come from `take_identity` alone; `gate(topic, partition)` lets batches out."""
        self._gate = gate
        self.id_state = IdState.ASKED

    @property
    def in_flight(self) -> int:
        """Requests that are not answered."""
        return sum(self._requests.values())

    # -- going out

    def drain(
        self, now_ms: int, leader: Callable[[str, int], int], *, everything: bool = False
    ) -> tuple[list[ProducePlan], list[PartitionQueue]]:
        """Close what is due and can leave (or all): the requests to send, and whose was closed."""
        plans: list[ProducePlan] = []
        closed: list[PartitionQueue] = []
        while True:
            closed += self._accumulator.close_due(
                now_ms, lambda queue: self._in_line(queue, leader), everything=everything
            )
            more = self.plan(now_ms, leader)
            plans += more
            if not more or not self._accumulator.holds:
                return plans, closed
            # What was held back perhaps only waited for these.

    def _in_line(self, queue: PartitionQueue, leader: Callable[[str, int], int]) -> bool:
        """Whether another batch of a partition, closed now, could only queue."""
        if queue.closed or _first_is_under_way(queue):
            return True
        return self._requests.get(leader(queue.topic, queue.partition), 0) >= self._requests_max

    def plan(self, now_ms: int, leader: Callable[[str, int], int]) -> list[ProducePlan]:
        """The requests to send now; their batches count as in flight from here on."""
        self._next_ms = None
        self.leader_missing = False
        if self.id_state not in (IdState.UNUSED, IdState.HELD):
            self._note_deadlines()
            return []
        by_node: dict[int, list[PartitionQueue]] = {}
        earliest_ms: int | None = None
        requests, requests_max = self._requests, self._requests_max
        for queue in self._accumulator.ready:  # there may be hundreds, at every answer
            deadline_ms = queue.closed[0].deadline_ms
            if earliest_ms is None or deadline_ms < earliest_ms:
                earliest_ms = deadline_ms
            node_id = leader(queue.topic, queue.partition)
            if requests.get(node_id, 0) >= requests_max or not self._may_send(queue, now_ms):
                continue
            if node_id < 0:
                self.leader_missing = True
            else:
                by_node.setdefault(node_id, []).append(queue)
        if earliest_ms is not None:
            self._note(earliest_ms)
        plans: list[ProducePlan] = []
        for node_id, queues in by_node.items():
            while queues and self._requests.get(node_id, 0) < self._requests_max:
                plans.append(self._one_request(node_id, queues))
                queues = [q for q in queues if q.closed and self._may_send(q, now_ms)]
        return plans

    def _may_send(self, queue: PartitionQueue, now_ms: int) -> bool:
        if queue.closed[0].leased:
            return False
        if (queue.bump or queue.recreated) and queue.in_flight:
            return False
        if queue.recreated:
            queue.recreated, queue.stored_id = False, -1
        if queue.identity is None or queue.bump:
            self._identify(queue)
            if self.id_state is IdState.WANTED:
                return False
        head = queue.closed[0]
        if head.retry_at_ms > now_ms:
            self._note(head.retry_at_ms)
            return False
        if queue.in_flight:
            # A retry goes alone, so that what follows it cannot be stored before it is.
            oldest = queue.in_flight[0]
            if head.attempts or oldest.attempts > 1 or _first_is_under_way(queue):
                return False
            # After a leader has moved, more than a connection's may be under way.
            if queue.identity is not None and head.ordinal - oldest.ordinal >= _KNOWN_BATCHES:
                return False
        return self._gate is None or self._gate(queue.topic, queue.partition)

    def _one_request(self, node_id: int, queues: list[PartitionQueue]) -> ProducePlan:
        batches: list[Batch] = []
        room = self._request_bytes_max
        for queue in queues:
            batch = queue.closed[0]
            size = batch.builder.size if batch.builder is not None else len(batch.payload)
            if batches and size > room:
                break
            room -= size
            queue.closed.popleft()
            queue.in_flight.append(batch)
            batch.attempts += 1
            if queue.identity is not None and batch.sequence == NO_SEQUENCE:
                batch.sequence = queue.next_sequence
                queue.next_sequence = (queue.next_sequence + batch.count) & SEQUENCE_MASK
            batches.append(batch)
        # Round robin: served partitions queue behind the others.
        for batch in batches:
            self._accumulator.ready.pop(batch.queue, None)
            if batch.queue.closed:
                self._accumulator.ready[batch.queue] = None
        self._requests[node_id] = self._requests.get(node_id, 0) + 1
        return ProducePlan(node_id, batches, min(batch.deadline_ms for batch in batches))

    def hold_back(self, plan: ProducePlan, now_ms: int) -> bool:
        """Take out of a request whose turn has come what must not leave in it; True if any did."""
        planned = len(plan.batches)
        for batch in list(plan.batches):
            queue = batch.queue
            if batch not in queue.in_flight:
                continue  # given up meanwhile: its futures have the error already
            if batch.count > 1 and len(batch.payload) > self._request_bytes_max:
                plan.batches.remove(batch)
                self._split(batch, now_ms)
            elif _is_behind(batch):
                plan.batches.remove(batch)
                queue.in_flight.remove(batch)
                batch.attempts -= 1
                self._line_up(batch)
        if not plan.batches:
            self._requests[plan.node_id] -= 1
        return len(plan.batches) < planned

    def next_deadline(self) -> int | None:
        """When `plan` or `expire` may have something new to do, as of the last `plan`."""
        return self._next_ms

    def _note(self, when_ms: int) -> None:
        if self._next_ms is None or when_ms < self._next_ms:
            self._next_ms = when_ms

    def _note_deadlines(self) -> None:
        for queue in self._accumulator.ready:
            self._note(queue.closed[0].deadline_ms)

    # -- coming back

    def answered(
        self, plan: ProducePlan, answers: Iterable[Answer | None], now_ms: int
    ) -> list[Outcome]:
        """The broker's result for each batch of a request (None: the answer has none)."""
        self._requests[plan.node_id] -= 1
        outcomes: list[Outcome] = []
        for batch, answer in zip(plan.batches, answers, strict=True):
            if batch not in batch.queue.in_flight:
                continue  # given up meanwhile (`abort`)
            if answer is None:
                error = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer{_about(batch)}")
                self._came_back(batch, error, now_ms, outcomes)
            elif answer.code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._stored(batch, answer, outcomes)
            else:
                self._refused(batch, answer, now_ms, outcomes)
        return outcomes

    def failed(self, plan: ProducePlan, error: KohortError, now_ms: int) -> list[Outcome]:
        """The request came to nothing; whether its batches were stored is not known."""
        self._requests[plan.node_id] -= 1
        outcomes: list[Outcome] = []
        for batch in plan.batches:
            if batch in batch.queue.in_flight:
                self._came_back(batch, error, now_ms, outcomes)
        return outcomes

    def unanswered(self, plan: ProducePlan) -> list[Outcome]:
        """The request was sent with `acks=0`: there is no answer."""
        self._requests[plan.node_id] -= 1
        outcomes: list[Outcome] = []
        for batch in plan.batches:
            if batch in batch.queue.in_flight:
                self._stored(batch, Answer(0, "", -1, -1), outcomes)
        return outcomes

    def _stored(self, batch: Batch, answer: Answer, outcomes: list[Outcome]) -> None:
        queue = batch.queue
        queue.in_flight.remove(batch)
        if queue.identity is not None:
            queue.stored_id = queue.identity[0]
        self.refusals.served((queue.topic, queue.partition))
        outcomes.append(Outcome(batch, None, answer.base_offset, answer.append_time_ms))

    def _refused(self, batch: Batch, answer: Answer, now_ms: int, outcomes: list[Outcome]) -> None:
        code, queue = answer.code, batch.queue
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and _has_predecessor(batch):
            self._retry(batch, now_ms)  # its predecessor failed and will go first
        elif code in _UNEXPECTED and queue.identity is not None and self._gate is None:
            queue.bump = True
            self._retry(batch, now_ms)
        elif code == ErrorCode.PRODUCER_FENCED:
            what = f"a newer producer of the same name has begun; nothing was stored{_about(batch)}"
            self._give_up(batch, FencedError(code, what), outcomes, refused=True)
        elif code in _TOO_LARGE and batch.count > 1:
            self._accumulator.grow_no_more()
            self._split(batch, now_ms)
        elif code in _TOO_LARGE:
            detail = f" ({answer.message})" if answer.message else ""
            error = RecordTooLargeError(
                f"the broker refused {_records(batch)}{_about(batch)} as too large{detail}; raise "
                f"max.message.bytes on the topic, or send less"
            )
            self._give_up(batch, error, outcomes, refused=True)
        else:
            detail = answer.message
            if code == ErrorCode.INVALID_PRODUCER_EPOCH and self._gate is not None:
                detail = "its transaction has ended: it was open for longer than " + _ENDED
            error = BrokerError(code, f"{detail}{_about(batch)}")
            refused = code not in _MAYBE_STORED
            self._came_back(batch, error, now_ms, outcomes, refused=refused)

    def _came_back(
        self,
        batch: Batch,
        error: KohortError,
        now_ms: int,
        outcomes: list[Outcome],
        *,
        refused: bool = False,
    ) -> None:
        batch.error = error
        batch.in_doubt |= not refused
        if not error.retriable or batch.attempts > self._retries:
            self._give_up(batch, error, outcomes, refused=refused)
        elif now_ms >= batch.deadline_ms:
            self._give_up(batch, _too_late(batch, error), outcomes, refused=refused)
        else:
            if isinstance(error, BrokerError):
                where = (batch.queue.topic, batch.queue.partition)
                self.refusals.note(where, error.code, now_ms)
            self._retry(batch, now_ms)

    def _retry(self, batch: Batch, now_ms: int) -> None:
        batch.queue.in_flight.remove(batch)
        wait_ms = min(self._backoff_max_ms, self._first_ms << min(batch.attempts - 1, 20))
        batch.retry_at_ms = now_ms + round(wait_ms * (1 - _JITTER + 2 * _JITTER * self._uniform()))
        self._line_up(batch)

    def _split(self, batch: Batch, now_ms: int) -> None:
        """A batch is too large: its halves go at once, as retries do."""
        batch.queue.in_flight.remove(batch)
        for half in split(self._accumulator, batch, SEQUENCE_MASK):
            half.retry_at_ms = now_ms
            self._line_up(half)

    def _line_up(self, batch: Batch) -> None:
        """Back into the line, at its place."""
        queue = batch.queue
        at = 0
        while at < len(queue.closed) and queue.closed[at].ordinal < batch.ordinal:
            at += 1
        queue.closed.insert(at, batch)
        self._accumulator.ready[queue] = None

    def _give_up(
        self, batch: Batch, error: KohortError, outcomes: list[Outcome], *, refused: bool
    ) -> None:
        """The end of a batch; `refused`: its last try did not store it."""
        queue = batch.queue
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        not_stored = refused and not batch.in_doubt
        if not_stored and batch.sequence != NO_SEQUENCE and self._gate is None:
            queue.bump = True
        outcomes.append(Outcome(batch, error))

    # -- time and identity

    @property
    def _held_back(self) -> str:
        """Why a batch was never sent."""
        if self.id_state in (IdState.UNUSED, IdState.HELD):
            return "its partition has no leader, or its leader is behind with what came before"
        refusal = self.refusals.get(PRODUCER_ID)
        detail = f": {ErrorCode.name_of(refusal.code)}" if refusal is not None else ""
        return f"no broker has given the producer its id{detail}"

    def expire(self, now_ms: int) -> list[Outcome]:
        """Give up what has waited longer than `delivery_timeout_ms`."""
        self._accumulator.close_overdue(now_ms)
        outcomes: list[Outcome] = []
        for queue in list(self._accumulator.ready):
            while queue.closed and queue.closed[0].deadline_ms <= now_ms:
                batch = queue.closed.popleft()
                cause = batch.error or self._held_back
                self._give_up(batch, _too_late(batch, cause), outcomes, refused=False)
            if not queue.closed:
                del self._accumulator.ready[queue]
        return outcomes

    def abort(self, error: KohortError) -> list[Outcome]:
        """Give up everything that is not done, because the producer is closed."""
        outcomes: list[Outcome] = []
        for queue in self._accumulator.queues.values():
            outcomes.extend(Outcome(batch, error) for batch in queue.in_flight)
            queue.in_flight.clear()
        return outcomes + self.drop_unsent(error)

    def drop_unsent(self, error: KohortError) -> list[Outcome]:
        """Give up everything that is not under way just now."""
        outcomes: list[Outcome] = []
        for queue in self._accumulator.queues.values():
            if queue.open is not None:
                self._accumulator.close_batch(queue.open)
            outcomes.extend(Outcome(batch, error) for batch in queue.closed)
            queue.closed.clear()
        self._accumulator.ready.clear()
        return outcomes

    def take_identity(self, producer_id: int, epoch: int) -> None:
        """The coordinator has given another identity; nothing is under way."""
        self.producer_id_assigned(producer_id, epoch)
        for queue in self._accumulator.queues.values():
            queue.identity, queue.next_sequence, queue.bump = None, 0, False

    def producer_id_assigned(self, producer_id: int, epoch: int) -> None:
        """InitProducerId was answered."""
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.id_state = IdState.HELD
        self.refusals.served(PRODUCER_ID)

    def producer_id_missing(self, code: int, now_ms: int) -> None:
        """InitProducerId was refused with `code`, or (0) had no answer."""
        self.id_state = IdState.WANTED
        if code:
            self.refusals.note(PRODUCER_ID, code, now_ms)

    def _identify(self, queue: PartitionQueue) -> None:
        """Give a partition at rest its identity, or the next epoch of it (KIP-360)."""
        if self.id_state is IdState.UNUSED:
            return
        held = (self.producer_id, self.producer_epoch)
        if queue.bump and queue.identity is not None:
            producer_id, epoch = queue.identity
            if producer_id != self.producer_id:
                queue.identity = held
            elif epoch < _EPOCH_MAX:
                queue.identity = (producer_id, epoch + 1)
            else:
                self.id_state = IdState.WANTED
                return
            queue.next_sequence = 0
            for batch in queue.closed:
                batch.sequence, batch.in_doubt = NO_SEQUENCE, False
        elif queue.identity is None:
            queue.identity = held
        queue.bump = False


def topic_recreated(queues: Iterable[PartitionQueue], topic: str) -> None:
    """A topic was deleted and created again: what is in flight for the old one comes first."""
    for queue in queues:
        queue.recreated |= queue.topic == topic


_ENDED: Final = (
    "transaction_timeout_ms, or another producer of its transactional_id has begun; nothing was "
    "stored"
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_EPOCH_MAX: Final = 32_767
_UNEXPECTED: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_MAYBE_STORED: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""A leader that resigns answers its waiting appends with the last two, also those that its
followers have: Kafka's `DelayedProduce` does."""


def _first_is_under_way(queue: PartitionQueue) -> bool:
    """Whether what is in flight may be the first that its log gets of the producer id."""
    known = queue.identity is None or queue.stored_id == queue.identity[0]
    return bool(queue.in_flight) and not known


def _has_predecessor(batch: Batch) -> bool:
    """True while an older batch of the partition has no outcome."""
    queue = batch.queue
    if queue.closed and queue.closed[0].ordinal < batch.ordinal:
        return True
    return any(other.ordinal < batch.ordinal for other in queue.in_flight)


def _is_behind(batch: Batch) -> bool:
    """Whether an older batch of the partition must leave, or come back, first."""
    queue = batch.queue
    if queue.closed and queue.closed[0].ordinal < batch.ordinal:
        return True
    return queue.recreated and _has_predecessor(batch)


def _records(batch: Batch) -> str:
    return "1 record" if batch.count == 1 else f"{batch.count} records"


def _about(batch: Batch) -> str:
    return f" for {batch.queue.topic}-{batch.queue.partition}"


def _too_late(batch: Batch, cause: KohortError | str) -> KafkaTimeoutError:
    tries = f"{batch.attempts} {'try' if batch.attempts == 1 else 'tries'}"
    why = f"; {cause if isinstance(cause, str) else f'last error: {cause}'}"
    return KafkaTimeoutError(
        f"{_records(batch)}{_about(batch)} could not be stored within delivery_timeout_ms "
        f"after {tries}{why}"
    )
