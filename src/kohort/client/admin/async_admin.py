"""The admin client for asyncio tasks.

    async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topics([NewTopic("orders", 6)])
        print(await admin.describe_groups(["billing"]))

Rules:
- The same calls as `Admin`, each awaited. A call is several round trips and waits between them, so
  it is made on a thread of its own, of which there are `CALLS_AT_ONCE`; no call blocks the loop.
- Cancelling stops the waiting, not what a broker was asked already. `close` ends what is under way.

Shell: threads, asyncio.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from kohort.client.admin.admin import Admin
from kohort.client.common.config import AdminConfig

if TYPE_CHECKING:
    from kohort.client.cluster.metrics import ClientMetrics
    from kohort.client.common.typed_settings import AdminSettings
    from kohort.metrics.events import Events
    from kohort.metrics.registry import MetricName

P = ParamSpec("P")
R = TypeVar("R")
CALLS_AT_ONCE: Final = 4
"""Further calls wait for one of these to end."""


def _awaited(
    call: Callable[Concatenate[Admin, P], R],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, R]]:
    """A call of `Admin` as one to await, with its signature and its documentation."""

    @functools.wraps(call)
    async def awaited(self: AsyncAdmin, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.run(functools.partial(call, self.blocking, *args, **kwargs))

    return awaited


class AsyncAdminCalls(Admin):
    """What carries out the calls of an `AsyncAdmin`."""

    def check(self) -> None:
        """Raise ClosedError or ForkedError when a call would never be carried out."""
        self._check()


class AsyncAdmin:
    """Manages topics, configurations, groups, users and access. See `Admin` for what calls mean.

    Takes `AdminConfig`'s keys as keyword arguments, or a ready `AdminConfig`. Any number of tasks
    may use it at once.
    """

    def __init__(
        self,
        config: AdminConfig | Mapping[str, Any] | None = None,
        /,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self.blocking = AsyncAdminCalls(config, **settings)
        """The same client for threads."""
        self.config = self.blocking.config
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, "kohort-admin")

    async def run(self, call: Callable[[], R]) -> R:
        """What a blocking call with `blocking` returns, without blocking the loop."""
        import asyncio  # only tasks need it, and they have it

        self.blocking.check()
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # -- topics
    create_topics = _awaited(Admin.create_topics)
    delete_topics = _awaited(Admin.delete_topics)
    create_partitions = _awaited(Admin.create_partitions)
    list_topics = _awaited(Admin.list_topics)
    describe_topics = _awaited(Admin.describe_topics)

    # -- configurations
    describe_configs = _awaited(Admin.describe_configs)
    alter_configs = _awaited(Admin.alter_configs)

    # -- records and offsets
    delete_records = _awaited(Admin.delete_records)
    list_offsets = _awaited(Admin.list_offsets)

    # -- groups
    list_groups = _awaited(Admin.list_groups)
    describe_groups = _awaited(Admin.describe_groups)
    survey_groups = _awaited(Admin.survey_groups)
    survey_log_dirs = _awaited(Admin.survey_log_dirs)
    group_timeline = _awaited(Admin.group_timeline)
    delete_groups = _awaited(Admin.delete_groups)
    list_group_offsets = _awaited(Admin.list_group_offsets)
    alter_group_offsets = _awaited(Admin.alter_group_offsets)
    delete_group_offsets = _awaited(Admin.delete_group_offsets)
    remove_group_members = _awaited(Admin.remove_group_members)
    reset_group_offsets = _awaited(Admin.reset_group_offsets)

    # -- the cluster
    describe_cluster = _awaited(Admin.describe_cluster)
    broker_features = _awaited(Admin.broker_features)
    allowed_operations = _awaited(Admin.allowed_operations)
    describe_log_dirs = _awaited(Admin.describe_log_dirs)
    elect_leaders = _awaited(Admin.elect_leaders)
    describe_quotas = _awaited(Admin.describe_quotas)
    alter_quotas = _awaited(Admin.alter_quotas)

    # -- producers and transactions
    describe_producers = _awaited(Admin.describe_producers)
    list_transactions = _awaited(Admin.list_transactions)
    describe_transactions = _awaited(Admin.describe_transactions)
    abort_transaction = _awaited(Admin.abort_transaction)

    # -- access
    create_acls = _awaited(Admin.create_acls)
    describe_acls = _awaited(Admin.describe_acls)
    delete_acls = _awaited(Admin.delete_acls)
    describe_users = _awaited(Admin.describe_users)
    upsert_user = _awaited(Admin.upsert_user)
    delete_user = _awaited(Admin.delete_user)

    # -- what it shows of itself

    def metrics(self) -> dict[MetricName, float]:
        """As `Admin.metrics`."""
        return self.blocking.metrics()

    @property
    def measured(self) -> ClientMetrics:
        """As `Admin.measured`."""
        return self.blocking.measured

    @property
    def events(self) -> Events:
        """As `Admin.events`."""
        return self.blocking.events

    # -- the end

    async def close(self) -> None:
        """Close the connections; calls under way fail with ClosedError. A second call is none."""
        import asyncio  # only tasks need it, and they have it

        self._threads.shutdown(wait=False)
        await asyncio.to_thread(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
