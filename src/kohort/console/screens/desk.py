"""What every screen works with: the sampler, an admin, the options; and what it returns.

Shell: the clock.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kohort.console.screens.jobs import Jobs
from kohort.console.screens.player import Player
from kohort.console.screens.undos import Undos
from kohort.errors import KohortError, UsageError

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.console.screens.audit import Audit
    from kohort.console.screens.fleet import Fleet
    from kohort.console.views.masks import Masks
    from kohort.observe.overview import GroupLine, GroupView, Overview
    from kohort.sampling.sampler import Sampler


@dataclass(frozen=True)
class PageRequest:
    """One request: its path, its query, and of a POST its form."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    form: Mapping[str, str] = field(default_factory=dict[str, str])

    def needed(self, name: str) -> str:
        """A value of the query or form. Raises UsageError where it is missing."""
        value = self.form.get(name) or self.query.get(name)
        if not value:
            raise UsageError(f"{self.path} needs {name}=...; begin at / to get there")
        return value


@dataclass(frozen=True)
class Screen:
    """What is shown: a view for the template (and as JSON), and the same as a command."""

    template: str
    title: str
    area: str
    view: Any
    command: str = ""


@dataclass(frozen=True)
class Redirect:
    """Go there; after an action that was carried out."""

    to: str


class NotThereError(KohortError):
    """There is no such group, topic or page; the message says what there is."""


@dataclass(frozen=True)
class Desk:
    """The running console, as screens see it.

    Attributes:
        settings: of clients, in Kafka's names; `bootstrap` is how commands name the cluster.
        allow_actions: whether anything may be changed.
        stores: URLs of stores with ledgers of pipelines.
        fleet: processes elsewhere.
        control: the control port of an embedded broker, as PORT or HOST:PORT; "" for none.
    """

    sampler: Sampler
    admin: Admin
    settings: Mapping[str, Any]
    audit: Audit
    masks: Masks
    fleet: Fleet
    allow_actions: bool = False
    stores: tuple[str, ...] = ()
    control: str = ""
    jobs: Jobs = field(default_factory=Jobs)
    undos: Undos = field(default_factory=Undos)
    player: Player = field(default_factory=Player)

    @property
    def bootstrap(self) -> str:
        """The brokers, as `-b` takes them."""
        servers = self.settings.get("bootstrap_servers", "localhost:9092")
        return servers if isinstance(servers, str) else ",".join(servers)

    def command(self, *words: str) -> str:
        """A command line of `kohort` for this cluster."""
        return shlex.join(["kohort", *words, "-b", self.bootstrap])

    def overview(self) -> Overview:
        """The last overview; takes the first sample when there is none. Raises KohortError."""
        latest = self.sampler.latest
        if latest is None:
            with self.sampler.changed:
                self.sampler.changed.wait_for(
                    lambda: self.sampler.latest is not None or bool(self.sampler.error), timeout=15
                )
            latest = self.sampler.latest
        if latest is None:
            raise KohortError(self.sampler.error or "the first sample is not there yet; reload")
        return latest

    def lines(self) -> Sequence[GroupLine]:
        """A line for each group; while the first sample is taken, of their listing alone.

        Raises:
            KohortError: the cluster does not answer.
        """
        sampler = self.sampler
        with sampler.changed:
            sampler.changed.wait_for(
                lambda: bool(sampler.latest or sampler.listed or sampler.error), timeout=15
            )
        if sampler.latest is None and sampler.listed:
            return sampler.listed
        return self.overview().lines

    def group(self, name: str) -> GroupView:
        """One group of the last overview. Raises NotThereError."""
        from kohort.setting_keys import nearest

        overview = self.overview()
        if name in overview.groups:
            return overview.groups[name]
        if name in overview.snapshot.not_described:
            raise NotThereError(f"group {name!r}: {overview.snapshot.not_described[name]}")
        near = nearest(name, overview.groups)
        hint = f" Did you mean {near!r}?" if near else ""
        raise NotThereError(
            f"there is no group {name!r}.{hint} A group appears when its first member joins or "
            "commits"
        )

    def actions_allowed(self) -> None:
        """Raises UsageError unless the console was started with --allow-actions, AuditError where
        an action could not be noted."""
        if not self.allow_actions:
            raise UsageError(
                "this console is read-only; start it with --allow-actions to change anything"
            )
        self.audit.check()


Handler = Callable[[Desk, PageRequest], "Screen | Redirect"]


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
