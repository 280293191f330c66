"""Configurations of single groups: set, described, kept, and what a heartbeat is told (KIP-848)."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kohort.wire.messages.describe_configs_response import DescribeConfigsResponse
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kohort.wire.messages.incremental_alter_configs_response import IncrementalAlterConfigsResponse
from tests.broker.harness import Harness

GROUP, SET, DELETE = 32, 0, 1
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def alter(
    harness: Harness, name: str, value: str | None, operation: int = SET, group: str = "g"
) -> tuple[int, str | None]:
    config = AlterableConfig(name=name, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = harness.ask(request, IncrementalAlterConfigsResponse).responses[0]
    return answer.error_code, answer.error_message


def described(harness: Harness) -> dict[str, tuple[str | None, int]]:
    resource = DescribeConfigsResource(
        resource_type=GROUP, resource_name="g", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    found = harness.ask(request, DescribeConfigsResponse).results[0]
    assert found.error_code == 0
    return {c.name: (c.value, c.config_source) for c in found.configs}


def heartbeat_interval(harness: Harness) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
        instance_id=None,
        rack_id=None,
        subscribed_topic_regex=None,
        server_assignor=None,
    )
    return harness.ask(request, ConsumerGroupHeartbeatResponse).heartbeat_interval_ms


def test_a_group_has_its_own_session_and_interval() -> None:
    harness = Harness()
    assert described(harness) == {SESSION: ("45000", 5), INTERVAL: ("5000", 5)}
    assert heartbeat_interval(harness) == 5_000
    assert alter(harness, INTERVAL, "10000") == (0, None)
    assert alter(harness, SESSION, "50000") == (0, None)
    assert described(harness) == {SESSION: ("50000", 8), INTERVAL: ("10000", 8)}
    assert heartbeat_interval(harness) == 10_000
    assert alter(harness, INTERVAL, None, DELETE) == (0, None)
    assert heartbeat_interval(harness) == 5_000
    assert harness.state.directory.registry.groups == {"g": {SESSION: "50000"}}
    encoded = harness.state.directory.registry.encode()
    assert type(harness.state.directory.registry).decode(encoded).groups == {
        "g": {SESSION: "50000"}
    }


@pytest.mark.parametrize(
    ("name", "value", "group", "code"),
    [
        (INTERVAL, "4999", "g", ErrorCode.INVALID_CONFIG),
        (INTERVAL, "15001", "g", ErrorCode.INVALID_CONFIG),
        (SESSION, "44999", "g", ErrorCode.INVALID_CONFIG),
        (SESSION, "soon", "g", ErrorCode.INVALID_CONFIG),
        (SESSION, "9" * 5_000, "g", ErrorCode.INVALID_CONFIG),
        ("consumer.session.timeout", "50000", "g", ErrorCode.INVALID_CONFIG),
        (SESSION, "50000", "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused(name: str, value: str, group: str, code: ErrorCode) -> None:
    harness = Harness()
    found, message = alter(harness, name, value, group=group)
    assert found == code
    assert message
    assert harness.state.directory.registry.groups == {}


def test_an_interval_stays_below_the_session() -> None:
    harness = Harness(
        group_consumer_min_session_timeout_ms=1_000,
        group_consumer_min_heartbeat_interval_ms=1_000,
    )
    assert alter(harness, SESSION, "2000")[0] == ErrorCode.INVALID_CONFIG
    assert alter(harness, INTERVAL, "1000")[0] == 0
    assert alter(harness, SESSION, "2000")[0] == 0
