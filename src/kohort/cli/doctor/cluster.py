"""`kohort doctor --cluster`: is the cluster reachable, which release is it, what may this user do.

Rules:
- Nothing on the cluster is changed or created.
- No API tells a broker's time. The newest commit in `__consumer_offsets` has the time of a broker:
  one in the future proves that this machine's clock is behind.

Shell: sockets, clock.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from kohort.cli.common.root import lacks_right
from kohort.cli.doctor.findings import FAILED, OK, WARNING, Finding
from kohort.config import format_elapsed
from kohort.errors import KohortError

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import BrokerFeatures
    from kohort.observe.cluster import ClusterHealth

OFFSETS_TOPIC: Final = "__consumer_offsets"
CONNECT_S: Final = 3.0
CLOCK_MS: Final = 1_000
"""A clock that is wrong by less does no harm."""
RELEASES: Final = (
    (7, "3.3"),
    (8, "3.4"),
    (11, "3.5"),
    (14, "3.6"),
    (19, "3.7"),
    (20, "3.8"),
    (21, "3.9"),
    (25, "4.0"),
    (27, "4.1"),
)
"""The level of `metadata.version` that each release of Apache Kafka ends with."""
METADATA_VERSION: Final = "metadata.version"
FEATURES: Final = (
    (24, "transactions (AddPartitionsToTxn)"),
    (65, "hanging transactions (DescribeTransactions)"),
    (68, "consumer groups of KIP-848 (ConsumerGroupHeartbeat)"),
    (76, "share groups (ShareGroupHeartbeat)"),
)
RIGHTS: Final = ("describe", "describe_configs", "alter", "create")
"""Rights on the cluster that Kohort's commands use; others come by topic and group."""


def check_cluster(settings: dict[str, Any]) -> Iterator[Finding]:
    """The findings, in order. What cannot be asked is a finding, never an error.

    Args:
        settings: of an administrator.
    """
    from kohort.cli.common.connect import open_admin

    try:
        with open_admin(settings) as admin:
            yield _reachable(admin)
            yield from _addresses(admin)
            yield from _ask("version", lambda: list(_versions(admin)))
            yield from _ask("replicas", lambda: [_replicas(admin)])
            yield from _ask("clock", lambda: [_clock(admin, time.time_ns() // 1_000_000)])
            yield from _ask("rights", lambda: [_rights(admin)])
            yield from _ask("groups", lambda: [_groups(admin)])
    except KohortError as error:
        yield Finding(
            "cluster",
            FAILED,
            str(error),
            "-b HOST:PORT; is the broker running, and security.protocol as it wants it?",
        )


def _ask(check: str, ask: Any) -> list[Finding]:
    try:
        return ask()
    except KohortError as error:
        cure = (
            "`kohort acl add` gives the right"
            if lacks_right(error)
            else "`kohort cluster describe` shows what does not answer"
        )
        return [Finding(check, WARNING, str(error), cure)]


def _reachable(admin: Admin) -> Finding:
    begun = time.monotonic()
    cluster = admin.describe_cluster()
    took_ms = (time.monotonic() - begun) * 1000
    brokers = "1 broker" if len(cluster.nodes) == 1 else f"{len(cluster.nodes)} brokers"
    controller = cluster.controller_id if cluster.controller_id >= 0 else "unknown"
    return Finding(
        "cluster",
        OK,
        f"{cluster.cluster_id or '-'}: {brokers}, controller {controller}, answers in "
        f"{took_ms:.0f} ms",
    )


def _addresses(admin: Admin) -> Iterator[Finding]:
    """Every broker by the address that it advertises, which is the one clients use."""
    for node in admin.describe_cluster().nodes:
        address = f"{node.host}:{node.port}"
        try:
            socket.create_connection((node.host, node.port), CONNECT_S).close()
        except OSError as error:
            yield Finding(
                f"broker {node.node_id}",
                FAILED,
                f"{address}: {error}",
                "advertised.listeners of the broker, the name server or a firewall",
            )
        else:
            yield Finding(f"broker {node.node_id}", OK, f"{address} accepts connections")


def _versions(admin: Admin) -> Iterator[Finding]:
    found = admin.broker_features()
    releases = {node: release(features) for node, features in found.items()}
    distinct = sorted(set(releases.values()))
    differ = len({frozenset(f.apis.items()) for f in found.values()}) > 1
    yield Finding(
        "version",
        WARNING if differ else OK,
        ", ".join(distinct),
        "brokers of several releases: finish the upgrade" if differ else "",
    )
    for key, name in FEATURES:
        everywhere = all(key in features.apis for features in found.values())
        yield Finding("feature", OK, f"{name}: {'yes' if everywhere else 'no'}")


def release(features: BrokerFeatures) -> str:
    """The release of Apache Kafka that a broker's agreed features belong to."""
    level = features.features.get(METADATA_VERSION)
    if level is None:
        makes = "a broker of Kohort, Kafka before 3.3 or another make"
        return f"{len(features.apis)} APIs, no {METADATA_VERSION} ({makes})"
    names = [name for least, name in RELEASES if least <= level]
    return f"{METADATA_VERSION} {level} (Kafka {names[-1] if names else 'before 3.3'} or later)"


def _replicas(admin: Admin) -> Finding:
    from kohort.observe.cluster import cluster_health

    names = [t.name for t in admin.list_topics(include_internal=True)]
    return replicas_finding(
        cluster_health(admin.describe_cluster(), admin.describe_topics(names).values())
    )


def replicas_finding(health: ClusterHealth) -> Finding:
    """What partitions have; one without a leader can be neither read nor written."""
    text = (
        f"{health.topics:,} topics, {health.partitions:,} partitions, {len(health.offline):,} "
        f"offline, {len(health.under_replicated):,} under-replicated"
    )
    return Finding(
        "replicas",
        FAILED if health.offline else OK if health.healthy else WARNING,
        text,
        "" if health.healthy else "`kohort cluster describe` names them",
    )


def _clock(admin: Admin, now_ms: int) -> Finding:
    from kohort.client.common.types import TopicPartition

    if OFFSETS_TOPIC not in {topic.name for topic in admin.list_topics(include_internal=True)}:
        return clock_finding(-1, now_ms)
    there = admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC]
    parts = [TopicPartition(OFFSETS_TOPIC, p.partition) for p in there.partitions if p.leader >= 0]
    newest = admin.list_offsets(dict.fromkeys(parts, "max_timestamp"))
    newest_ms = max((hit.timestamp_ms for hit in newest.values()), default=-1)
    return clock_finding(newest_ms, now_ms)


def clock_finding(newest_ms: int, now_ms: int) -> Finding:
    """What the newest commit's time says about this machine's clock; -1: there is no commit."""
    if newest_ms < 0:
        return Finding("clock", OK, "no group has committed yet, so there is no time to compare")
    if newest_ms - now_ms > CLOCK_MS:
        return Finding(
            "clock",
            WARNING,
            f"a broker has written {format_elapsed(newest_ms - now_ms)} in the future of this "
            "machine",
            "set the clocks by NTP; retry delays and time lag use them",
        )
    ago = format_elapsed(max(0, now_ms - newest_ms))
    return Finding("clock", OK, f"no broker's clock is ahead; the newest commit is {ago} ago")


def _rights(admin: Admin) -> Finding:
    allowed = admin.allowed_operations()
    missing = [right for right in RIGHTS if right not in allowed]
    text = f"on the cluster: {', '.join(sorted(allowed)) or 'nothing'}"
    return Finding(
        "rights",
        WARNING if missing else OK,
        text,
        f"not allowed: {', '.join(missing)} (only some commands need them)" if missing else "",
    )


def _groups(admin: Admin) -> Finding:
    groups = len(admin.list_groups())
    topics = len(admin.list_topics())
    return Finding("visible", OK, f"{topics:,} topics, {groups:,} groups (others may be hidden)")
