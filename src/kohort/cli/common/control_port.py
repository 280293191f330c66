"""`--control`, for commands that ask a broker's control port; KOHORT_CONTROL names it, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from kohort.sampling.control_port import ControlPort

F = TypeVar("F", bound=Callable[..., Any])


def control_option(function: F) -> F:
    """`--control`, passed on as `control`."""

    @functools.wraps(function)
    def with_control(*args: Any, control: str | None, **rest: Any) -> Any:
        if not control:
            raise click.UsageError(
                "say which broker's: --control PORT or $KOHORT_CONTROL, with the PORT that "
                "`kohort broker run --control PORT` was given"
            )
        return function(*args, control=ControlPort.parse(control), **rest)

    option = click.option(
        "--control",
        envvar="KOHORT_CONTROL",
        metavar="PORT",
        help="The broker's control port.  [default: $KOHORT_CONTROL]",
    )
    wrapped: Any = option(with_control)
    return wrapped
