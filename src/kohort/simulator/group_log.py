"""One partition of `__consumer_offsets`: the broker's own, over a simulated disk.

Rules:
- `Partition`, `PartitionLog` and recovery are the code that ships. The disk and its flusher belong
  to the partition, not to a node: a flush ends though the node that asked for it has died.
- Checks read the bytes of the file: `entries` is what is on the disk, `flushed` what survives a
  power cut. Neither comes from the broker's own marks.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from kohort.broker.base.config import OFFSETS_TOPIC, BrokerConfig, Durability
from kohort.broker.log.directory import partition_dir
from kohort.broker.log.loading import Opening, open_log
from kohort.broker.log.log import PartitionLog
from kohort.broker.log.recovery import walk
from kohort.broker.log.topic_config import TopicConfig
from kohort.broker.log.txn_index import marker_of
from kohort.broker.state.leadership import NO_NODE, Led
from kohort.broker.state.partition import Partition
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.records import BatchHeader, Chunk
from kohort.simulator.env import SimEnv
from kohort.simulator.files import SimFile, SimFiles
from kohort.simulator.machine import Clock, Machine
from kohort.simulator.schedule import Random, Schedule

if TYPE_CHECKING:
    from kohort.broker.state.partition import TopicServices
    from kohort.simulator.plan import Settings

_TOPIC_CONFIG: Final = TopicConfig.of(
    BrokerConfig(durability=Durability.MEMORY), {"cleanup.policy": "compact"}
)


class Entry(NamedTuple):
    """One place of a group log: a record, or the end of a transaction (`record` is None)."""

    offset: int
    record: GroupRecord | None
    producer_id: int = -1
    committed: bool = False


class DiskWorld(Protocol):
    """The world, as far as a disk uses it."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def slow_disk_ms(self) -> int: ...


class _OffsetsTopic:
    """The topic of one partition, and what it has of its broker."""

    name = OFFSETS_TOPIC
    topic_id = bytes(16)
    internal = True
    config = _TOPIC_CONFIG
    durability = Durability.FSYNC

    def __init__(self, log: GroupLog) -> None:
        self._log = log
        self.services = cast("TopicServices", self)  # the part of it that a partition uses

    @property
    def env(self) -> SimEnv:
        """The disk's; a power cut ends it."""
        return self._log.env

    def open_log(self, partition: Partition) -> PartitionLog:
        """It is open already."""
        raise AssertionError(f"{partition.key} is open from the beginning")


class GroupLog:
    """One partition of `__consumer_offsets`."""

    def __init__(self, world: DiskWorld, index: int) -> None:
        self._world = world
        self._chance = world.schedule.split(f"disk {index}")
        self._directory = partition_dir(OFFSETS_TOPIC, index)
        self.files = SimFiles()
        self.files.make_dir(self._directory)
        self.partition = Partition(_OffsetsTopic(self), index, Led(NO_NODE, 0, ()))
        self.entries: list[Entry] = []
        self._batches: list[tuple[int, int]] = []
        """Where each batch ends: (byte, offset)."""
        self._start(fresh=True)

    def _start(self, *, fresh: bool) -> None:
        self._machine = Machine(self._world.schedule, self._directory, Clock())
        self.env = SimEnv(self._machine, self._chance, self._flush_ms)
        epoch = self.partition.leader_epoch + (not fresh)
        opening = Opening(
            self._directory,
            _TOPIC_CONFIG,
            durable=True,
            clean=False,
            now_ms=self.env.wall_ms(),
            leader_epoch=epoch,
            fresh=fresh,
        )
        opened, unsynced = open_log(self.files, opening)
        self.files.sync_all(unsynced)
        for path in (self._directory, ""):
            self.files.sync_dir(path)
        self.partition.log = opened
        file = opened.active.file
        assert isinstance(file, SimFile), "these files are simulated"
        self.file = file

    def _flush_ms(self) -> int:
        return self._chance.randint(*self._world.settings.flush_ms) + self._world.slow_disk_ms

    # -- what it is to nodes -----------------------------------------------------------------------

    @property
    def index(self) -> int:
        """Its number."""
        return self.partition.index

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self.partition.leader_epoch

    def lead(self, node: int) -> None:
        """A node leads it from now on, in a new epoch."""
        self.partition.follow(Led(node, self.epoch + 1, ()))

    # -- what it is to checks ----------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The offset behind the last entry."""
        return self._batches[-1][1] if self._batches else 0

    @property
    def flushed(self) -> int:
        """Everything below this offset survives a power cut."""
        durable = len(self.file.node.durable)
        at = bisect_right(self._batches, durable, key=lambda batch: batch[0])
        return self._batches[at - 1][1] if at else 0

    def read_on(self) -> int:
        """Read what was appended since the last time; the offset of the first of it."""
        first = self.end
        position = self._batches[-1][0] if self._batches else 0
        for header, batch in walk(self.file.read, position, self.file.size):
            self._note(header, batch)
            self._batches.append((header.position + header.size, header.next_offset))
        return first

    def _note(self, header: BatchHeader, batch: memoryview) -> None:
        producer_id = header.producer_id if header.is_transactional else -1
        if header.is_control:
            marker = marker_of(batch)
            assert marker is not None, "other control batches are not written here"
            self.entries.append(Entry(header.base_offset, None, producer_id, marker.committed))
            return
        chunk = Chunk(OFFSETS_TOPIC, self.index, batch, header.base_offset)
        while not chunk.exhausted:
            for record in chunk.next_records(1_000):
                assert record.key is not None, "a coordinator's records have keys"
                stored = GroupRecord(bytes(record.key), record.value)
                self.entries.append(Entry(record.offset, stored, producer_id))

    def lose(self, chance: Random) -> int:
        """The power is cut: what the disk had not made durable may be gone. How many records are.

        The broker's recovery says where the log ends; it is read again from its first byte.
        """
        before, flushed = self.entries, self.flushed
        self._machine.die()
        assert self.partition.log is not None, "it is open"
        self.partition.log.close(clean=False)
        self.files.power_cut(chance)
        self._start(fresh=False)
        self.entries, self._batches = [], []
        self.read_on()
        assert self.entries == before[: len(self.entries)], "recovery keeps a prefix"
        assert self.end >= flushed, "flushed records are kept"
        return len(before) - len(self.entries)
