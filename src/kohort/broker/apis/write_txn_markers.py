"""WriteTxnMarkers (27), v1-2. KIP-98, KIP-664.

What a coordinator elsewhere, or an administrator who ends a hanging transaction, sends. Our own
coordinator writes its markers without it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.broker.coordinator.partition_marker import require_leader, write_marker
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker
from kohort.errors import BrokerError
from kohort.wire.messages.write_txn_markers_request import WritableTxnMarker, WriteTxnMarkersRequest
from kohort.wire.messages.write_txn_markers_response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: WriteTxnMarkersRequest, call: Call) -> None:
    """Write every marker; answer when all are safe."""
    writing = _Writing(node, call)
    for marker in request.markers:
        writing.write(marker)
    writing.one_less()


class _Writing:
    """The markers of one request."""

    def __init__(self, node: NodeServices, call: Call) -> None:
        self._node = node
        self._call = call
        self._missing = 1  # the request itself, until all of its markers have begun
        self._response = WriteTxnMarkersResponse()

    def write(self, requested: WritableTxnMarker) -> None:
        """Begin with one marker, in all of its partitions."""
        marker = Marker(requested.transaction_result, requested.coordinator_epoch)
        answer = WritableTxnMarkerResult(producer_id=requested.producer_id)
        self._response.markers.append(answer)
        for topic in requested.topics:
            topic_result = WritableTxnMarkerTopicResult(name=topic.name)
            answer.topics.append(topic_result)
            for index in topic.partition_indexes:
                result = WritableTxnMarkerPartitionResult(partition_index=index)
                topic_result.partitions.append(result)
                self._missing += 1
                done = partial(self._done, result)
                try:
                    require_leader(self._node, topic.name, index)
                    write_marker(
                        self._node,
                        (topic.name, index),
                        requested.producer_id,
                        requested.producer_epoch,
                        marker,
                        done,
                    )
                except BrokerError as error:
                    done(error)

    def _done(
        self, partition_result: WritableTxnMarkerPartitionResult, result: Appended | BrokerError
    ) -> None:
        if isinstance(result, BrokerError):
            partition_result.error_code = result.code
        self.one_less()

    def one_less(self) -> None:
        """One less is missing; the last one sends the answer."""
        self._missing -= 1
        if self._missing == 0:
            self._call.answer(self._response)
