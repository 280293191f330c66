"""Names of topics that are known by id alone: asked for until the cluster knows them (KIP-848).

Rules:
- Lives on the network thread. One Metadata request by id is under way at a time; while a broker
  does not know an id yet, it is asked again after a back-off.
- Nothing is asked for while nothing is wanted, nor after the client was closed.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.client.cluster.client import ANY, ClusterClient
from kohort.client.cluster.metadata import ClusterMetadata
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import ClientConfig
from kohort.errors import KohortError
from kohort.wire import Message
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import MetadataResponse


class TopicNames:
    """The names of some topic ids; `found` is called when there are new ones."""

    def __init__(
        self, cluster: ClusterClient, config: ClientConfig, on_names: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._found = on_names
        self._backoff = Backoff(
            config.retry_backoff_ms, config.retry_backoff_max_ms, cluster.uniform
        )
        self._wanted: frozenset[bytes] = frozenset()
        self._names: dict[bytes, str] = {}
        self._asking = False

    @property
    def names(self) -> frozenset[str]:
        """The names found of the wanted ids."""
        return frozenset(self._names.values())

    def want(self, ids: frozenset[bytes]) -> None:
        """Find out the names of these, and forget all others."""
        self._wanted = ids
        self._names = {i: name for i, name in self._names.items() if i in ids}
        self._ask()

    def known_to(self, metadata: ClusterMetadata) -> frozenset[str]:
        """The wanted topics that a snapshot has, by name."""
        ids = metadata.names_by_id
        return frozenset(ids[i] for i in self._wanted if i in ids)

    def _missing(self) -> list[bytes]:
        known = self._cluster.metadata.names_by_id
        return sorted(i for i in self._wanted if i not in self._names and i not in known)

    def _ask(self) -> None:
        missing = self._missing()
        if self._asking or not missing or self._cluster.is_closed:
            return
        self._asking = True
        topics = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in missing]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self._cluster.request(ANY, request, self._answered)

    def _answered(self, answer: Message | KohortError) -> None:
        self._asking = False
        before = len(self._names)
        if isinstance(answer, MetadataResponse):
            for topic in answer.topics:
                if not topic.error_code and topic.name is not None:
                    self._names[topic.topic_id] = topic.name
            self._names = {i: name for i, name in self._names.items() if i in self._wanted}
        if len(self._names) > before:
            self._backoff.succeeded()
            self._found()
        if self._missing() and not self._cluster.is_closed:
            loop = self._cluster.loop
            loop.call_at(loop.now_ms() + self._backoff.failed(), self._ask)
