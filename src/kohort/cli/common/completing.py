"""Names of topics and groups for a shell that completes a word.

Rules: where the cluster does not answer within a second there is nothing to choose from, and no
word of it: a person is typing.

Shell: sockets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin

WAIT_MS: Final = 1_000
NAMES_MAX: Final = 200
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin with what was typed; of `orders:0,2` the topic."""
    del parameter
    return _names(ctx, incomplete, lambda admin: [topic.name for topic in admin.list_topics()])


def groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups that begin with what was typed."""
    del parameter
    return _names(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def _names(ctx: click.Context, incomplete: str, ask: Callable[[Admin], list[str]]) -> list[str]:
    try:
        with _admin(ctx) as admin:
            return [name for name in sorted(ask(admin)) if name.startswith(incomplete)][:NAMES_MAX]
    except Exception:  # any error: a traceback in the middle of a typed line does not help
        return []


def _admin(ctx: click.Context) -> Admin:
    from kohort.cli.common.connect import client_of
    from kohort.client.admin.admin import Admin
    from kohort.client.common.config import AdminConfig

    params: dict[str, Any] = ctx.params
    client = client_of(
        params.get("bootstrap"),
        params.get("properties") or (),
        params.get("config_file"),
        params.get("profile"),
        os.environ,
    )
    quick = {"default_api_timeout_ms": WAIT_MS, "request_timeout_ms": WAIT_MS}
    return Admin({**client.for_role(AdminConfig), **quick})
