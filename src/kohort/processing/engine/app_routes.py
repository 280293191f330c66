"""Which handler the records of a topic go to: by its name, or by a pattern that it matches. Pure.

Rules (spec 4.12):
- A handler of a topic's name comes before those of patterns; of patterns, the first that matches.
- A pattern matches the whole name, as in `Consumer.subscribe`.
- A pattern matches no topic that Kohort or Kafka keeps for itself: retry topics and dead-letter
  topics of any group, a pipeline's intermediate topics, the topics of remote processes, names that
  begin with two underscores. A handler that names one of them gets it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kohort.errors import ConfigError
from kohort.processing.engine.partition_state import Route
from kohort.retry.policy import INTERMEDIATE_TOPIC, retry_topics_among

_KEPT: Final = re.compile(rf"__.*|{INTERMEDIATE_TOPIC.pattern}")


class AppRoutes:
    """The routes of one app.

    Args:
        kept: more topics that no pattern matches.
    """

    def __init__(self, kept: Collection[str] = ()) -> None:
        self._kept = frozenset(kept)
        self.named: dict[str, Route] = {}
        """By topic."""
        self.matched: dict[str, Route] = {}
        """By topic, of those that match a pattern, as far as is known."""
        self._patterns: list[tuple[re.Pattern[str], Route]] = []

    def add(self, route: Route, pattern: re.Pattern[str] | None = None) -> None:
        """A topic's route, or with a pattern the one that is copied for each topic that matches.

        Raises ConfigError for a second handler of the same topic or pattern.
        """
        if route.topic in self.named or any(route.topic == other.topic for other in self.models):
            raise ConfigError(f"{route.topic!r} has a handler already; one topic, one handler")
        if pattern is None:
            self.named[route.topic] = route
        else:
            self._patterns.append((pattern, route))

    def unmatched(self) -> AppRoutes:
        """The same handlers, where no topic has matched a pattern yet."""
        routes = AppRoutes(self._kept)
        routes.named, routes._patterns = self.named, self._patterns
        return routes

    @property
    def by_topic(self) -> Mapping[str, Route]:
        """The routes of all topics that are known."""
        return {**self.named, **self.matched}

    @property
    def models(self) -> list[Route]:
        """The routes of patterns, of no topic yet."""
        return [route for _, route in self._patterns]

    @property
    def every(self) -> list[Route]:
        """The routes of names and patterns, as they were registered."""
        return [*self.named.values(), *self.models]

    @property
    def patterns(self) -> list[str]:
        """The patterns as text."""
        return [pattern.pattern for pattern, _ in self._patterns]

    def rematch(self, topics: Collection[str]) -> None:
        """These are the topics of the cluster, before anything is read."""
        self.matched = {route.topic: route for route in self.new(topics, known=self.named)}

    def new(self, topics: Collection[str], known: Collection[str] | None = None) -> list[Route]:
        """Routes of those topics of a cluster that match a pattern and have none yet, by name."""
        if not self._patterns:
            return []
        known = self.by_topic if known is None else known
        left_out = retry_topics_among(topics) | self._kept
        names = (name for name in sorted(topics) if name not in known and name not in left_out)
        routes = (self._of_pattern(name) for name in names if not _KEPT.fullmatch(name))
        return [route for route in routes if route is not None]

    def join(self, routes: Iterable[Route]) -> None:
        """These are read from now on."""
        self.matched |= {route.topic: route for route in routes}

    def _of_pattern(self, name: str) -> Route | None:
        for pattern, model in self._patterns:
            if pattern.fullmatch(name):
                return model.of_topic(name)
        return None
