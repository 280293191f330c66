"""New topics of a running app: those that match a handler's pattern join while it runs.

Rules (A2, spec 4.12):
- The topics are asked for every `metadata_max_age_ms`, as Kafka's own subscription by pattern does.
- A topic is read only when its retry topics and its dead-letter topic are there: they are created,
  or verified, before it joins.
- A topic that cannot join (its retry topics are unfit or may not be created) is logged once for
  each reason and tried again the next time. The others join, and the app continues.

Shell: called on the thread of the poller of retry topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kohort.errors import KohortError
from kohort.processing.engine.app_routes import AppRoutes
from kohort.processing.engine.partition_state import Route
from kohort.processing.runtime.holding_checks import check_holding
from kohort.processing.runtime.runner import Joined
from kohort.retry.offset_queries import TopicView
from kohort.retry.preparing import TopicPort, ensure_topics, plan_all

log = logging.getLogger("kohort.processing")

PAUSE_AFTER_ERROR_MS = 5_000


@dataclass
class TopicCounts:
    """What is known of the cluster's topics, for those who write to them. Grows as topics join."""

    partitions: dict[str, int] = field(default_factory=dict[str, int])
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def learn(self, who: str, routes: Mapping[str, Route], views: Mapping[str, TopicView]) -> None:
        """The topics as they are, and the retry topics of these as they are created."""
        topics = {topic: route.topics for topic, route in routes.items()}
        self.partitions |= {s.name: s.partitions for s in plan_all(who, topics, views)}
        self.partitions |= {name: view.partitions for name, view in views.items()}
        self.ids |= {name: view.topic_id for name, view in views.items()}

    def dead_letters(self, routes: Iterable[Route]) -> dict[str, tuple[str, int]]:
        """Of source topics: the dead-letter topic and its number of partitions."""
        names = {route.topic: route.topics.dead_letter for route in routes}
        return {topic: (name, self.partitions[name]) for topic, name in names.items()}


class TopicDiscovery:
    """Looks for topics that match a pattern.

    Args:
        who: the app, for messages.
        every_ms: how often.
        joined: gets what can be read from now on.
    """

    def __init__(
        self,
        who: str,
        routes: AppRoutes,
        port: TopicPort,
        counts: TopicCounts,
        every_ms: int,
        joined: Callable[[Joined], None],
        *,
        bootstrap: str,
    ) -> None:
        self._who, self._routes, self._port, self._counts = who, routes, port, counts
        self._every_ms, self._joined, self._bootstrap = every_ms, joined, bootstrap
        self._due_ms: int | None = None
        self._refused: dict[str, str] = {}

    def look(self, now_ms: int) -> int:
        """Look if it is time to; how many milliseconds until the next time."""
        if self._due_ms is None:  # they were looked at when the app began
            self._due_ms = now_ms + self._every_ms
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._look()
        return max(1, self._due_ms - now_ms)

    def _look(self) -> int:
        try:
            views = self._port.topics()
            new = self._routes.new(views)
            joining = [route for route in new if self._prepared(route)]
        except KohortError as error:
            log.info("new topics could not be asked for (%s); asked again", error)
            return min(self._every_ms, PAUSE_AFTER_ERROR_MS)
        if joining:
            names = ", ".join(route.topic for route in joining)
            log.info("%s: %s match a pattern and are read from now on", self._who, names)
            self._routes.join(joining)
            self._joined(Joined(joining, self._counts.dead_letters(joining)))
        return self._every_ms

    def _prepared(self, route: Route) -> bool:
        """Whether a topic can be read: its retry topics are there and fit."""
        topics = {route.topic: route.topics}
        try:
            ensure_topics(self._who, topics, self._port, bootstrap=self._bootstrap)
            self._counts.learn(self._who, {route.topic: route}, self._port.topics())
            check_holding([route], self._counts.partitions)
        except KohortError as error:
            if self._refused.get(route.topic) != str(error):
                self._refused[route.topic] = str(error)
                log.error(
                    "%s: topic %s matches a pattern and cannot be read: %s; tried again",
                    self._who,
                    route.topic,
                    error,
                )
            return False
        self._refused.pop(route.topic, None)
        return True
