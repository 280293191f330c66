"""The topics of a cluster: made, changed and deleted, each change durable before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kohort.broker.base.config import INTERNAL_TOPICS
from kohort.broker.log.directory import (
    DataDirectory,
    TopicRecord,
    existing,
    partition_dir,
    topic_name_fault,
)
from kohort.broker.log.files import disk_refusal
from kohort.broker.log.topic_config import TopicConfig
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ConfigError, ErrorCode
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage

if TYPE_CHECKING:
    from kohort.broker.state.partition import TopicServices


class Topic:
    """One topic."""

    __slots__ = ("config", "partitions", "record", "services")

    def __init__(self, services: TopicServices, record: TopicRecord) -> None:
        """The table of leaders has the topic already."""
        self.services = services
        self.record = record
        self.config = services.broker_configs.topic_config(record.config)
        leds = services.leadership.of(record.name)
        self.partitions = [Partition(self, i, led) for i, led in enumerate(leds)]

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def topic_id(self) -> bytes:
        return self.record.topic_id

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def follow(self, config: TopicConfig) -> None:
        """Use these values from now on."""
        self.config = config
        for partition in self.partitions:
            if partition.log is not None:
                partition.log.config = config

    def image(self) -> TopicImage:
        """What the group coordinator sees of it."""
        racks = self.services.config.racks()
        if not racks:
            return TopicImage(self.topic_id, self.name, self.record.partitions)
        leds = self.services.leadership.of(self.name)
        placed = tuple(frozenset(racks[n] for n in led.replicas) for led in leds)
        return TopicImage(self.topic_id, self.name, self.record.partitions, placed)


class NewTopic(NamedTuple):
    """A topic that is to be made."""

    name: str
    partitions: int
    config: Mapping[str, str]
    replicas: Sequence[Sequence[int]] = ()
    """The nodes of each partition, where they were given."""
    internal: bool = False
    factor: int = 0
    """How many nodes each partition gets, where none were given; 0: all."""


class Topics:
    """All topics, by name and by id. Changing methods raise BrokerError and then change nothing.

    `image` is what the group coordinator sees of them; `changed` is called when it is another.
    """

    def __init__(self, services: TopicServices, directory: DataDirectory) -> None:
        self._services = services
        self.changed: Callable[[], None] = lambda: None
        self._directory = directory
        self._by_name: dict[str, Topic] = {}
        self.marked_for_deletion: set[str] = set()
        """Deleted topics whose committed offsets are not deleted yet: their names are not free."""
        self._partitions = 0
        """How many all topics have."""
        self._by_id: dict[bytes, Topic] = {}
        self._folds_case = directory.files.folds_case
        self._plain: dict[str, str] = {}
        """Names by their form when '.' and '_' are the same, and cases where they fold."""
        for record in directory.registry.topics.values():
            services.leadership.add(record.name, record.partitions, record.replicas, record.leaders)
            self._add(Topic(services, record))
        self.image = TopicsImage.of(topic.image() for topic in self)

    def _plain_name(self, name: str) -> str:
        plain = name.replace(".", "_")
        return plain.lower() if self._folds_case else plain

    def _add(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._partitions += len(topic.partitions)
        self._plain[self._plain_name(topic.name)] = topic.name
        self._by_id[topic.topic_id] = topic

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(bytes(topic_id))

    def partition(self, name: str, index: int) -> Partition | None:
        """A partition, or None when there is no such topic or partition."""
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        for topic in self._by_name.values():
            yield from topic.partitions

    def check_new(
        self, name: str, partitions: int, config: Mapping[str, str], *, internal: bool = False
    ) -> None:
        """Raises BrokerError where `create` would."""
        fault = topic_name_fault(name)
        if fault:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r}: {fault}")
        if name in self._by_name:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if name in self.marked_for_deletion:
            text = f"Topic '{name}' is marked for deletion."
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, text)
        other = self._plain.get(self._plain_name(name))
        if other is not None:
            raise BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name!r} differs from topic {other!r} in '.' and '_' alone, and would have the "
                "same metrics"
                if name.lower() != other.lower()
                else f"{name!r} differs from topic {other!r} in upper and lower case alone, and "
                "would have the same directory: this file system takes both for one",
            )
        if name in INTERNAL_TOPICS and not internal:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is made by the broker")
        if partitions < 1:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"Number of partitions was set to an invalid non-positive value: {partitions}",
            )
        if not internal:  # without the broker's own topics no group would work
            self._check_room(1, partitions)
        self._config(config)

    def _check_room(self, topics: int, partitions: int) -> None:
        limits = self._services.config
        total = self._partitions + partitions
        if len(self._by_name) + topics > limits.max_topics or total > limits.max_partitions:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION,
                f"this broker holds at most {limits.max_topics} topics and "
                f"{limits.max_partitions} partitions; delete some, or raise max_topics or "
                "max_partitions",
            )

    def _config(self, config: Mapping[str, str]) -> TopicConfig:
        try:
            return self._services.broker_configs.topic_config(config)
        except ConfigError as error:
            raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def create(
        self, name: str, partitions: int, config: Mapping[str, str], *, internal: bool = False
    ) -> Topic:
        """Make a topic, which every node may lead; it is durable when this returns."""
        [made] = self.create_all([NewTopic(name, partitions, config, internal=internal)])
        if isinstance(made, BrokerError):
            raise made
        return made

    def create_all(self, new_topics: Iterable[NewTopic]) -> list[Topic | BrokerError]:
        """Make topics, each on its own, and write them at once: each write is two flushes."""
        results: list[Topic | BrokerError] = []
        for new in new_topics:
            try:
                results.append(self._begun(new))
            except BrokerError as error:
                results.append(error)
        made = [topic for topic in results if isinstance(topic, Topic)]
        if not made:
            return results
        try:
            self._save()
        except BrokerError as error:
            for topic in made:
                del self._directory.registry.topics[topic.name]
                self._forget(topic)
            return [error if isinstance(result, Topic) else result for result in results]
        self._show(self.image.with_topics(topic.image() for topic in made))
        return results

    def _begun(self, new: NewTopic) -> Topic:
        """A topic that is not written yet. Raises BrokerError."""
        name = new.name
        self.check_new(name, new.partitions, new.config, internal=new.internal)
        if name in self._directory.registry.deleting:  # what is left of it may not be found again
            self._finish_deletions()
        record = TopicRecord(
            name,
            self._services.env.new_uuid(),
            new.partitions,
            dict(new.config),
            self._placed(new),
        )
        leadership = self._services.leadership
        leadership.add(name, new.partitions, record.replicas)
        record.leaders = leadership.unlike_new(name)  # the preferred ones may be dead just now
        topic = Topic(self._services, record)
        self._directory.registry.topics[name] = record
        self._add(topic)
        return topic

    def _placed(self, new: NewTopic) -> list[list[int]]:
        """The replicas of each partition of a checked topic; none where every node is one."""
        if not new.factor:
            return [list(nodes) for nodes in new.replicas]
        placed = self._services.leadership.replicas
        return [list(placed(new.name, i, new.factor)) for i in range(new.partitions)]

    def _forget(self, topic: Topic) -> None:
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        self._partitions -= len(topic.partitions)
        self._plain.pop(self._plain_name(topic.name), None)
        self._services.leadership.remove(topic.name)
        for partition in topic.partitions:
            self._services.refused.pop(partition, None)

    def _show(self, image: TopicsImage) -> None:
        self.image = image
        self.changed()

    def _save(self, *, frees: bool = False) -> None:
        try:
            self._directory.save(frees=frees)
        except OSError as error:
            raise disk_refusal(error) from error

    def delete(self, *topics: Topic) -> None:
        """Delete topics with their records, all or (raising BrokerError) none."""
        registry = self._directory.registry
        for topic in topics:
            del registry.topics[topic.name]
        registry.deleting += (topic.name for topic in topics)
        try:
            self._save(frees=True)
        except BrokerError:
            for topic in topics:
                registry.topics[topic.name] = topic.record
                registry.deleting.remove(topic.name)
            raise
        for topic in topics:
            self._forget(topic)
            for partition in topic.partitions:
                if partition.log is not None:
                    partition.log.close(clean=False)
                partition.wake()
        self._show(self.image.without(topic.name for topic in topics))
        self._finish_deletions()

    def _finish_deletions(self) -> None:
        try:
            self._directory.finish_deletions()
        except OSError as error:
            raise disk_refusal(error) from error

    def add_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        validate_only: bool = False,
        replicas: Sequence[Sequence[int]] = (),
    ) -> None:
        """Grow a topic to `count` partitions; `replicas` of the new ones, none: as the others'."""
        before = len(topic.partitions)
        if count <= before:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {before} partitions, which is higher than or equal to the "
                f"requested {count}.",
            )
        self._check_room(0, count - before)
        if validate_only:
            return
        leadership, record = self._services.leadership, topic.record
        kept, led = record.replicas, record.leaders
        if replicas or kept:
            new = replicas or [
                leadership.replicas(topic.name, i, len(kept[0])) for i in range(before, count)
            ]
            old = kept or [led.replicas for led in leadership.of(topic.name)]
            record.replicas = [list(nodes) for nodes in (*old, *new)]
        leadership.grow(topic.name, count, record.replicas)
        record.partitions = count
        record.leaders = leadership.unlike_new(topic.name)
        try:
            self._save()
        except BrokerError:
            record.partitions, record.replicas, record.leaders = before, kept, led
            leadership.shrink(topic.name, before)
            raise
        leds = leadership.of(topic.name)
        topic.partitions += [Partition(topic, i, leds[i]) for i in range(before, count)]
        self._partitions += count - before
        self._show(self.image.with_topic(topic.image()))

    def configure(
        self, topic: Topic, config: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace a topic's own configuration."""
        effective = self._config(config)
        if validate_only:
            return
        before, topic.record.config = topic.record.config, dict(config)
        try:
            self._save(frees=True)  # it may be a shorter retention
        except BrokerError:
            topic.record.config = before
            raise
        topic.follow(effective)

    def defaults_changed(self) -> None:
        """What holds for topics that set no value of their own has changed."""
        for topic in self:
            topic.follow(self._services.broker_configs.topic_config(topic.record.config))

    def led_otherwise(self, topics: Iterable[Topic]) -> None:
        """Keep who leads the partitions of these topics now. Raises BrokerError."""
        for topic in topics:
            topic.record.leaders = self._services.leadership.unlike_new(topic.name)
        self._save()

    def placed_otherwise(self, topic: Topic) -> None:
        """Keep the replicas that the partitions of a topic have now. Raises BrokerError."""
        leadership, record = self._services.leadership, topic.record
        before = record.replicas, record.leaders
        record.replicas = [list(led.replicas) for led in leadership.of(topic.name)]
        record.leaders = leadership.unlike_new(topic.name)
        try:
            self._save()
        except BrokerError:
            record.replicas, record.leaders = before
            raise
        self._show(self.image.with_topic(topic.image()))

    def stored(self) -> list[Partition]:
        """The partitions that have a directory."""
        there = existing(self._directory.files)
        return [p for p in self.partitions() if partition_dir(*p.key) in there]
