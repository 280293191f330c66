"""The peers' admin clients behind one face, in plain values; None where a make has no call."""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin names what it exports in its documentation alone)

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON
from tests.known import fake
from tests.patience import PATIENCE_S

TIMEOUT_S = int(PATIENCE_S)


class ConfluentAdmin:
    """confluent-kafka's `AdminClient`."""

    replaces = True

    def __init__(self, servers: str) -> None:
        from confluent_kafka import admin

        self._admin = admin.AdminClient({"bootstrap.servers": servers})

    def _one(self, futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_S)

    def close(self) -> None:
        self._admin.poll(0)

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        from confluent_kafka.admin import NewTopic

        self._one(self._admin.create_topics([NewTopic(name, partitions, 1, config=configs)]))

    def create_partitions(self, name: str, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._one(self._admin.create_partitions([NewPartitions(name, total)]))

    def delete_topic(self, name: str) -> None:
        self._one(self._admin.delete_topics([name]))

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def configs(self, name: str, kind: str = "topic") -> dict[str, Any]:
        from confluent_kafka.admin import ConfigResource

        found = self._one(self._admin.describe_configs([ConfigResource(kind, name)]))
        return {c.name: c.value for c in found.values()}

    def alter_config(self, name: str, key: str, value: str | None) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(key, value, incremental_operation=kind)
        resource = ConfigResource("topic", name, incremental_configs=[entry])
        self._one(self._admin.incremental_alter_configs([resource]))

    def replace_configs(self, name: str, configs: dict[str, str]) -> None:
        from confluent_kafka.admin import ConfigResource

        resource = ConfigResource("topic", name, set_config=configs)
        self._one(self._admin.alter_configs([resource]))

    def offsets(self, name: str, spec: str | int) -> int:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = (
            OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else getattr(OffsetSpec, spec)()
        )
        return self._one(self._admin.list_offsets({TopicPartition(name, 0): wanted})).offset

    def delete_records(self, name: str, before: int) -> int:
        from confluent_kafka import TopicPartition

        return self._one(
            self._admin.delete_records([TopicPartition(name, 0, before)])
        ).low_watermark

    def groups(self) -> dict[str, str]:
        found = self._admin.list_consumer_groups().result(TIMEOUT_S)
        assert found.errors == []
        return {g.group_id: g.state.name.capitalize() for g in found.valid}

    def group(self, name: str) -> dict[str, Any]:
        g = self._one(self._admin.describe_consumer_groups([name]))
        return {
            "state": g.state.name.capitalize(),
            "protocol": g.partition_assignor,
            "members": {
                m.client_id: sorted(tp.partition for tp in m.assignment.topic_partitions)
                for m in g.members
            },
        }

    def group_offsets(self, name: str) -> dict[int, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        request = [ConsumerGroupTopicPartitions(name)]
        found = self._one(self._admin.list_consumer_group_offsets(request))
        return {tp.partition: tp.offset for tp in found.topic_partitions}

    def alter_group_offset(self, name: str, topic: str, offset: int) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, offset)])
        found = self._one(self._admin.alter_consumer_group_offsets([wanted]))
        assert [tp.error for tp in found.topic_partitions] == [None]

    def delete_group(self, name: str) -> None:
        self._one(self._admin.delete_consumer_groups([name]))

    def cluster(self) -> tuple[str, int, list[int]]:
        found = self._admin.describe_cluster().result(TIMEOUT_S)
        return found.cluster_id, found.controller.id, [n.id for n in found.nodes]


class KafkaPythonAdmin:
    """kafka-python's `KafkaAdminClient`."""

    replaces = False  # it sends what it found together with what it was told

    def __init__(self, servers: str) -> None:
        from kafka import KafkaAdminClient

        self._admin = fake(KafkaAdminClient(bootstrap_servers=servers))  # typed as version 2

    def close(self) -> None:
        self._admin.close()

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        self._admin.create_topics({name: {"num_partitions": partitions, "configs": configs}})

    def create_partitions(self, name: str, total: int) -> None:
        self._admin.create_partitions({name: total})

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])

    def topics(self) -> dict[str, int]:
        return {t["name"]: len(t["partitions"]) for t in self._admin.describe_topics()}

    def configs(self, name: str, kind: str = "topic") -> dict[str, Any]:
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        found = self._admin.describe_configs([resource], config_filter="all")[kind][name]
        return {key: entry["value"] for key, entry in found.items()}

    def alter_config(self, name: str, key: str, value: str | None) -> None:
        from kafka.admin import ConfigResource, ConfigResourceType

        if value is None:
            self._admin.reset_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name, configs=fake([key]))]
            )
        else:
            resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={key: value})
            self._admin.alter_configs([resource])

    def replace_configs(self, name: str, configs: dict[str, str]) -> None:
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=configs)
        self._admin.alter_configs([resource], incremental=False)

    def offsets(self, name: str, spec: str | int) -> int:
        from kafka import admin
        from kafka.structs import TopicPartition

        kinds = fake(admin)  # typed as version 2
        at_time = isinstance(spec, int)
        wanted = kinds.OffsetTimestamp(spec) if at_time else kinds.OffsetSpec[spec.upper()]
        tp = TopicPartition(name, 0)
        return self._admin.list_partition_offsets({tp: wanted})[tp].offset

    def delete_records(self, name: str, before: int) -> int:
        from kafka.structs import TopicPartition

        tp = TopicPartition(name, 0)
        return self._admin.delete_records({tp: before})[tp]["low_watermark"]

    def groups(self) -> dict[str, str]:
        return {g["group_id"]: g["group_state"] for g in self._admin.list_groups()}

    def group(self, name: str) -> dict[str, Any]:
        g = self._admin.describe_groups([name])[name]
        members: dict[str, list[int]] = {}
        for m in g["members"]:
            assignment = m["member_assignment"]["assigned_partitions"]
            members[m["client_id"]] = sorted(p for t in assignment for p in t["partitions"])
        return {"state": g["group_state"], "protocol": g["protocol_data"], "members": members}

    def group_offsets(self, name: str) -> dict[int, int]:
        found = self._admin.list_group_offsets(name)[name]
        return {tp.partition: o.offset for tp, o in found.items()}

    def alter_group_offset(self, name: str, topic: str, offset: int) -> None:
        from kafka.errors import NoError
        from kafka.structs import OffsetAndMetadata, TopicPartition

        tp = TopicPartition(topic, 0)
        found = self._admin.alter_group_offsets(name, {tp: OffsetAndMetadata(offset, "", -1)})
        assert found == {tp: NoError}

    def delete_group(self, name: str) -> None:
        assert self._admin.delete_groups([name]) == {name: "OK"}

    def cluster(self) -> tuple[str, int, list[int]]:
        found = self._admin.describe_cluster()
        brokers = [b["broker_id"] for b in found["brokers"]]
        return found["cluster_id"], found["controller_id"], brokers


class AiokafkaAdmin:
    """aiokafka's `AIOKafkaAdminClient`, on a loop of its own."""

    replaces = True

    def __init__(self, servers: str) -> None:
        from aiokafka.admin import AIOKafkaAdminClient

        self._runner = asyncio.Runner()

        async def started() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            return admin

        self._admin = self._runner.run(started())

    def _run(self, coroutine: Any) -> Any:
        return self._runner.run(asyncio.wait_for(coroutine, TIMEOUT_S))

    def close(self) -> None:
        self._run(self._admin.close())
        self._runner.close()

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        from aiokafka.admin import NewTopic

        topic = NewTopic(name, partitions, 1, topic_configs=configs)
        answer = self._run(self._admin.create_topics([topic]))
        _no_error(error for _, error, _ in answer.topic_errors)

    def create_partitions(self, name: str, total: int) -> None:
        from aiokafka.admin import NewPartitions

        answer = self._run(self._admin.create_partitions({name: NewPartitions(total)}))
        _no_error(error for _, error, _ in answer.topic_errors)

    def delete_topic(self, name: str) -> None:
        answer = self._run(self._admin.delete_topics([name]))
        _no_error(error for _, error in answer.topic_error_codes)

    def topics(self) -> dict[str, int]:
        return {t["topic"]: len(t["partitions"]) for t in self._run(self._admin.describe_topics())}

    def configs(self, name: str, kind: str = "topic") -> dict[str, Any]:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        (answer,) = self._run(self._admin.describe_configs([resource]))
        ((error, _, _, _, entries),) = answer.resources
        assert error == 0
        return {entry[0]: entry[1] for entry in entries}

    alter_config = None
    offsets = alter_group_offset = delete_group = None

    def replace_configs(self, name: str, configs: dict[str, str]) -> None:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=configs)
        (answer,) = self._run(self._admin.alter_configs([resource]))
        _no_error(entry[0] for entry in answer.resources)

    def delete_records(self, name: str, before: int) -> int:
        from aiokafka import TopicPartition
        from aiokafka.admin.records_to_delete import RecordsToDelete

        tp = TopicPartition(name, 0)
        wanted = {tp: RecordsToDelete(before_offset=before)}
        return self._run(self._admin.delete_records(wanted))[tp]

    def groups(self) -> dict[str, None]:
        return {entry[0]: None for entry in self._run(self._admin.list_consumer_groups())}

    def group(self, name: str) -> dict[str, Any]:
        from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

        (answer,) = self._run(self._admin.describe_consumer_groups([name]))
        (error, _, state, _, protocol, members), *_ = (tuple(g)[:6] for g in answer.groups)
        assert error == 0
        found: dict[str, list[int]] = {}
        for _, client_id, _, _, assignment, *_ in members:
            decoded = ConsumerProtocolMemberAssignment.decode(assignment)
            found[client_id] = sorted(p for _, ps in decoded.assignment for p in ps)
        return {"state": state, "protocol": protocol, "members": found}

    def group_offsets(self, name: str) -> dict[int, int]:
        found = self._run(self._admin.list_consumer_group_offsets(name))
        return {tp.partition: o.offset for tp, o in found.items()}

    def cluster(self) -> tuple[str, int, list[int]]:
        found = self._run(self._admin.describe_cluster())
        brokers = [b["node_id"] for b in found["brokers"]]
        return found["cluster_id"], found["controller_id"], brokers


def _no_error(codes: Iterator[int]) -> None:
    """aiokafka hands out codes instead of raising."""
    from aiokafka.errors import for_code

    for code in codes:
        if code:
            raise for_code(code)


ADMINS = {
    CONFLUENT: ConfluentAdmin,
    AIOKAFKA: AiokafkaAdmin,
    KAFKA_PYTHON: KafkaPythonAdmin,
}


@contextmanager
def admin_of(make: str, servers: str) -> Iterator[Any]:
    admin = ADMINS[make](servers)
    try:
        yield admin
    finally:
        admin.close()
