"""Screens 10 and 12: topics and who reads them, the cluster."""

from __future__ import annotations

from kohort.client.common.types import TopicPartition
from kohort.console.screens.dead_letters import owners_of
from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Screen
from kohort.console.views.cluster import cluster_view
from kohort.console.views.topics import topic_view, topics_view
from kohort.errors import KohortError
from kohort.observe.cluster import cluster_health
from kohort.sampling.log_offsets import offsets

ANSWER_S = 5.0
"""How long a page waits for the disks of every broker."""


def topics(desk: Desk, request: PageRequest) -> Screen:
    """All topics, retry topics folded under their source."""
    view = topics_view(desk.overview(), owners_of(desk), request.query)
    return Screen("topics.html", "Topics", "topics", view, desk.command("topic", "list"))


def topic(desk: Desk, request: PageRequest) -> Screen:
    """One topic: partitions, readers, settings."""
    from kohort.setting_keys import nearest

    name, snapshot = request.needed("name"), desk.overview().snapshot
    if name not in snapshot.topics:
        near = nearest(name, snapshot.topics)
        hint = f" Did you mean {near!r}?" if near else ""
        raise NotThereError(f"there is no topic {name!r} (or this user may not see it).{hint}")
    described = [snapshot.topics[name]]
    firsts = offsets(desk.admin, described, "earliest")
    ends = offsets(desk.admin, described, "latest")
    spans = {
        TopicPartition(name, p.partition): (
            firsts.get(TopicPartition(name, p.partition)),
            ends.get(TopicPartition(name, p.partition)),
        )
        for p in described[0].partitions
    }
    try:
        configs = list(desk.admin.describe_configs(name).values())
    except KohortError:  # this user may not see them
        configs = []
    view = topic_view(desk.overview(), owners_of(desk), name, spans, configs, request.query)
    return Screen("topic.html", name, "topics", view, desk.command("topic", "describe", name))


def cluster(desk: Desk, _: PageRequest) -> Screen:
    """Brokers, replicas, disks."""
    snapshot = desk.overview().snapshot
    survey = desk.admin.survey_log_dirs(timeout_s=ANSWER_S)
    health = cluster_health(snapshot.cluster, snapshot.topics.values(), survey.unreachable)
    view = cluster_view(health, survey.log_dirs)
    return Screen("cluster.html", "Cluster", "cluster", view, desk.command("cluster", "describe"))
