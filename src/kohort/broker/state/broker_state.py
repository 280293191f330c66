"""What the nodes of one process have in common: topics, logs, the flusher, housekeeping.

Rules:
- Everything runs on one thread; the outside comes in through `Env` and `Files`.
- The nodes share their logs. `Leadership` decides which of them leads a partition; the registry of
  topics stores it before any client learns of it (spec L11: a restart repeats no epoch).
- Housekeeping (retention, checkpoints, compaction) runs from timers and never blocks for long.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from kohort.broker.base.config import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerConfig, Durability
from kohort.broker.base.env import Env
from kohort.broker.log.checkpoints import missing_offsets
from kohort.broker.log.directory import USERS_FILE, DataDirectory, only, partition_dir
from kohort.broker.log.files import Files, Names, Syncable, disk_refusal
from kohort.broker.log.loading import Opening, open_log, segment_bases
from kohort.broker.log.log import PartitionLog
from kohort.broker.log.producers import Producers
from kohort.broker.log.segment import IndexMemory, Segment
from kohort.broker.log.stored_index import file_name
from kohort.broker.security.acls import Acls
from kohort.broker.security.authentication import Authenticator, token_verifier
from kohort.broker.state.client_quotas import ClientQuotas
from kohort.broker.state.compaction_schedule import CompactionSchedule
from kohort.broker.state.dynamic_broker_config import BrokerConfigs
from kohort.broker.state.failpoints import Failpoints
from kohort.broker.state.group_config import GroupConfigs
from kohort.broker.state.group_hints import HeartbeatHints
from kohort.broker.state.leadership import Leadership
from kohort.broker.state.partition import Partition
from kohort.broker.state.topics import Topic, Topics
from kohort.errors import BrokerError, CorruptRecordError, ErrorCode, StorageError

if TYPE_CHECKING:
    from kohort.broker.log.local_links import LocalLinks
    from kohort.broker.security.users import Users
    from kohort.wire.messages.api_versions_response import ApiVersion

log = logging.getLogger("kohort.broker")
UNKNOWN_VOLUME = (-1, -1)


class FaultPort(Protocol):
    """What APIs ask of the fault gate, where there is one."""

    @property
    def watching(self) -> bool: ...

    def offered(self, listed: list[ApiVersion]) -> list[ApiVersion]:
        """The API versions to advertise."""
        ...


class BrokerState:
    """The state that the nodes of one process share, and `nodes`, for one thread (which need not be
    the one that made it).

    Raises StorageError when the data directory cannot be read.
    """

    def __init__(
        self, config: BrokerConfig, files: Files, env: Env, gate: FaultPort | None = None
    ) -> None:
        self.config = config
        self.env = env
        self.files = files
        self.durability = Durability(config.durability)
        self.durable = self.durability is Durability.FSYNC
        self._names = Names(files, "")
        """Those of the partitions' directories."""
        self._unsynced_names: Counter[Names] = Counter()
        """How many flushes of them are under way."""
        self.refused: dict[Partition, Producers] = {}
        self._index_memory = IndexMemory(config.log_indexes_in_memory)
        self.leadership = Leadership(config.node_ids())
        self.failpoints = Failpoints()
        self.volume_of: Callable[[], tuple[int, int]] | None = None
        """Set by the owner of the directory."""
        self.gate = gate
        """Where faults come in, if they may at all."""
        self.links: LocalLinks | None = None
        """For consumers on this machine; set by the owner of the files."""
        self.heartbeat_hints = HeartbeatHints()
        try:
            self.directory = DataDirectory.open(
                files,
                _cluster_id(env.new_uuid()),
                durable=self.durable,
                reserves=self.durability is not Durability.MEMORY,
            )
            self.broker_configs = BrokerConfigs(config, self.directory)
            self.topics = Topics(self, self.directory)
            self.group_configs = GroupConfigs(config, self.directory)
            self.acls = Acls(config, self.directory)
            self.quotas = ClientQuotas(self.directory)
            if config.uses_sasl or files.read_all(USERS_FILE) is not None:
                self.users.ensure(config.sasl_users)
            self.authenticator = Authenticator(
                config, lambda: self.users, token_verifier(config), env.new_uuid
            )
            self._settle_nodes()
            self._open_stored()
            if not self.directory.clean:
                self._keep_new_epochs()
        except OSError as error:
            raise StorageError(f"the data directory cannot be read: {error}") from error
        self._producer_ids: Iterator[int] = iter(())
        self.broker_configs.changed = self.topics.defaults_changed
        self.wall_clock_read: Callable[[int], None] = lambda offset_ms: None
        """Called with the lead of the wall clock over the monotonic one, at each retention run."""
        self.before_close: Callable[[], None] = lambda: None
        """Called first when it closes."""
        self._cleaning = CompactionSchedule(self)
        self.closed = 0
        """Logs that are closed so far, while it ends."""
        self._timers = [
            env.call_at(env.now_ms() + config.log_cleaner_backoff_ms, self._clean),
            env.call_at(env.now_ms() + config.log_retention_check_interval_ms, self._retain),
            env.call_at(env.now_ms() + config.log_flush_checkpoint_interval_ms, self._checkpoint),
        ]

    @cached_property
    def users(self) -> Users:
        """The users that may log in. A start loads them where there are any, so that damage is
        reported there."""
        from kohort.broker.security.users import Users  # hashing is slow to import

        return Users(self.directory, self.env.new_uuid)

    def _settle_nodes(self) -> None:
        """Other nodes than last time begin new epochs. Raises OSError."""
        registry, now = self.directory.registry, list(self.leadership.nodes)
        kept = now if len(now) > 1 else []
        if registry.nodes == kept:
            return
        self.leadership.raise_epochs()
        for topic in self.topics:
            topic.record.leaders = self.leadership.unlike_new(topic.name)
            for partition in topic.partitions:
                partition.follow(self.leadership.at(topic.name, partition.index))
        registry.nodes = kept
        self.directory.save()

    def _open_stored(self) -> None:
        """Open every log that is there. Raises OSError."""
        began_ms = self.env.now_ms()
        self._warn_of_missing_segments()
        stored, unsynced = self.topics.stored(), list[Syncable]()
        for partition in stored:
            partition.log = self._open(partition, unsynced)
            if self.durable and (partition.log.size == 0 or not self.directory.clean):
                # Its files were made just now, perhaps, or by a process that was killed.
                unsynced.append(Names(self.files, partition.log.directory))
            self.leadership.recovered(*partition.key, partition.log.leader_epoch)
        if self.durable and not self.directory.clean:
            unsynced.append(self._names)
        self.files.sync_all(unsynced)
        if stored:
            how = "closed in order" if self.directory.clean else "recovered, as after a crash"
            took_ms = self.env.now_ms() - began_ms
            log.info("opened %d logs in %.1f s: %s", len(stored), took_ms / 1_000, how)

    def _keep_new_epochs(self) -> None:
        """Keep the epochs that a crash began, of all topics at once: with `os` a power cut takes
        what is appended in them, and they must not be given again. Raises OSError."""
        changed = False
        for topic in self.topics:
            if self.durability is Durability.OS:
                self._follow_lost(topic)
            leaders = self.leadership.unlike_new(topic.name)
            changed |= leaders != topic.record.leaders
            topic.record.leaders = leaders
        if changed:
            self.directory.save_at_start()

    def _follow_lost(self, topic: Topic) -> None:
        """Begin epochs where nothing is found: there may have been records before a power cut."""
        for partition in topic.partitions:
            if partition.log is None or not partition.log.size:
                self.leadership.recovered(*partition.key, partition.leader_epoch + 1)
                partition.follow(self.leadership.at(*partition.key))

    def _warn_of_missing_segments(self) -> None:
        """Files that a clean shutdown left and that are gone."""
        for key, offsets in self.directory.segments.items():
            if self.topics.get(key[0]) is None:
                continue
            directory = partition_dir(*key)
            there = segment_bases(self.files.list(directory))
            for first, end in missing_offsets(offsets, there):
                log.warning(
                    "%s/%s is missing, though the last shutdown was clean: offsets %d to %d are "
                    "lost, and readers pass them; stop the broker and restore the file from a copy",
                    directory,
                    file_name(first),
                    first,
                    end - 1,
                )

    @property
    def cluster_id(self) -> str:
        return self.directory.registry.cluster_id

    def volume(self) -> tuple[int, int]:
        """Size and free bytes of the volume that holds the data directory; -1 where unknown."""
        return UNKNOWN_VOLUME if self.volume_of is None else self.volume_of()

    # -- logs

    def open_log(self, partition: Partition) -> PartitionLog:
        """Make the log of a partition. Raises OSError.

        Its names wait for the flusher together with those of all logs that are made in this turn,
        and before what is appended to it in this turn or later.
        """
        fresh = self.files.make_dir(partition_dir(*partition.key))
        unsynced: list[Syncable] = []
        opened = self._open(partition, unsynced, fresh=fresh)
        self.files.sync_all(unsynced)
        if self.durable:
            self._flush_names(partition, opened)
        return opened

    def _flush_names(self, partition: Partition, opened: PartitionLog) -> None:
        def flushed(names: Names, error: OSError | None) -> None:
            self._unsynced_names[names] -= 1
            if not self._unsynced_names[names]:
                del self._unsynced_names[names]
            if error is not None and not opened.closed:
                partition.fail(f"flushing the names of {opened.directory} failed: {error}")

        for names in (Names(self.files, opened.directory), self._names):
            self._unsynced_names[names] += 1
            self.env.flush(names, partial(flushed, names))

    def _open(
        self, partition: Partition, unsynced: list[Syncable], *, fresh: bool = False
    ) -> PartitionLog:
        opened, recovered = open_log(
            self.files,
            Opening(
                partition_dir(*partition.key),
                partition.topic.config,
                self.durable,
                self.directory.clean,
                self.directory.recovery_points.get(partition.key, 0),
                self.directory.log_starts.get(partition.key, 0),
                self.env.wall_ms(),
                partition.leader_epoch,
                fresh,
            ),
        )
        unsynced += recovered
        opened.share_index_memory(self._index_memory)
        if self.durability is Durability.OS:
            opened.sealed = lambda segment: self._flush_sealed(partition, segment)
        return opened

    def _flush_sealed(self, partition: Partition, segment: Segment) -> None:
        """With `os` no append waits for a flush; sealed segments are flushed soon all the same."""

        def flushed(error: OSError | None) -> None:
            if error is not None:
                partition.fail(f"flushing {segment.file.path} failed: {error}")
            elif partition.log is not None and partition.log.offline is None:
                partition.log.flushed_offset = segment.next_offset

        if partition.log is not None:
            self._flush_names(partition, partition.log)
        self.env.flush(segment.file, flushed)

    def opened(self) -> list[Partition]:
        """The partitions whose logs are open."""
        return [p for p in self.topics.partitions() if p.log is not None]

    def next_producer_id(self) -> int:
        """A producer id that was never given before. Raises BrokerError."""
        for producer_id in self._producer_ids:
            return producer_id
        try:
            block = self.directory.take_producer_ids()
        except OSError as error:
            raise disk_refusal(error) from error
        self._producer_ids = chain(block)
        return next(self._producer_ids)

    def offsets_topic(self) -> Topic:
        """`__consumer_offsets`, made if it is not there. Raises BrokerError."""
        c = self.config
        return self._internal(
            OFFSETS_TOPIC, c.offsets_topic_num_partitions, c.offsets_topic_segment_bytes
        )

    def transactions_topic(self) -> Topic:
        """`__transaction_state`, made if it is not there. Raises BrokerError."""
        c = self.config
        return self._internal(
            TRANSACTIONS_TOPIC,
            c.transaction_state_log_num_partitions,
            c.transaction_state_log_segment_bytes,
        )

    def _internal(self, name: str, partitions: int, segment_bytes: int) -> Topic:
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": str(segment_bytes),
            "retention.ms": "-1",
        }
        return self.topics.create(name, partitions, config, internal=True)

    def auto_create(self, name: str) -> Topic:
        """Create a topic because a client asked for it. Raises BrokerError."""
        if name == OFFSETS_TOPIC:
            return self.offsets_topic()
        if name == TRANSACTIONS_TOPIC:
            return self.transactions_topic()
        if name in self.topics.marked_for_deletion:  # a client that asks again will get it
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} is being deleted")
        return self.topics.create(name, self.config.num_partitions, {})

    # -- housekeeping

    def _clean(self) -> None:
        backoff_ms = self.broker_configs.acting("log.cleaner.backoff.ms")
        self._again(0, backoff_ms, self._clean)
        self._cleaning.look()

    def _retain(self) -> None:
        self._again(1, self.config.log_retention_check_interval_ms, self._retain)
        now_ms = self.env.wall_ms()
        self.wall_clock_read(now_ms - self.env.now_ms())
        expiration_ms = self.broker_configs.acting("producer.id.expiration.ms")
        for partition in self.opened():
            opened = partition.log
            assert opened is not None
            opened.producers.expire(now_ms - expiration_ms)
            try:
                opened.apply_retention(now_ms)
            except BrokerError as error:
                log.warning("retention of %s-%d: %s", *partition.key, error)
            except (OSError, CorruptRecordError) as error:
                partition.fail_unreadable(error)

    def _checkpoint(self) -> None:
        self._again(2, self.config.log_flush_checkpoint_interval_ms, self._checkpoint)
        self.write_checkpoint()

    def _again(self, which: int, in_ms: int, work: Callable[[], None]) -> None:
        """Set the next time before the work: an error in it must not be the last of it."""
        self._timers[which] = self.env.call_at(self.env.now_ms() + in_ms, work)

    def write_checkpoint(self) -> None:
        """Remember up to where everything is flushed."""
        for partition in self.opened():
            if partition.log is not None and partition.log.unindexed:
                with suppress(OSError):  # the disk is still full; the next checkpoint tries again
                    partition.log.write_missing_indexes()
        try:
            self.directory.checkpoint(self._flushed(), self._log_starts())
        except OSError as error:
            log.warning("the checkpoint could not be written: %s", error)

    def keep_log_start(self, partition: Partition, offset: int) -> None:
        """Make durable that a log starts there, or later. Raises BrokerError."""
        if self.directory.log_starts.get(partition.key, 0) >= offset:
            return  # not by the log itself, which may have moved without this
        starts = self._log_starts()
        starts[partition.key] = max(offset, starts.get(partition.key, 0))
        try:
            self.directory.save_log_starts(starts)
        except OSError as error:
            raise disk_refusal(error) from error

    def _flushed(self) -> dict[tuple[str, int], int]:
        return {p.key: p.log.recovery_point for p in self.opened() if p.log is not None}

    def _log_starts(self) -> dict[tuple[str, int], int]:
        starts = {p.key: p.log.log_start_offset for p in self.opened() if p.log is not None}
        return only({tp: start for tp, start in starts.items() if start > 0}, starts)

    def close(self) -> None:
        """Flush and close the logs, and leave what makes the next start fast. Raises OSError."""
        for timer in self._timers:
            timer.cancel()
        self.before_close()
        logs = {p.key: p.log for p in self.opened() if p.log is not None}
        whole = [opened for opened in logs.values() if opened.offline is None]
        if self.durability is not Durability.MEMORY:
            files = [segment.file for opened in whole for segment in opened.segments]
            there = {"", *(opened.directory for opened in whole)}
            names = [names for names in self._unsynced_names if names.path in there]
            # The next start believes names, too.
            self.files.sync_all([*(file for file in files if file.unsynced), *names])
        for opened in logs.values():
            opened.close(clean=True)
            self.closed += 1
        if len(whole) == len(logs):
            recovery = {key: opened.active.next_offset for key, opened in logs.items()}
            self.directory.checkpoint(recovery, self._log_starts())
            self.directory.mark_clean(
                {
                    key: [*(s.base_offset for s in opened.segments), recovery[key]]
                    for key, opened in logs.items()
                }
            )


def _cluster_id(uuid: bytes) -> str:
    """A Kafka cluster id: 22 characters of URL-safe base 64."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(uuid).decode().rstrip("=")
