"""How commands reach the control port of `kohort broker run --control PORT`.

Rules: the port is given as `--control`, or by KOHORT_CONTROL; the token, when the broker has one,
by KOHORT_CONTROL_TOKEN. Only this machine is asked: a control port listens nowhere else.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from kohort.errors import ConfigError, ConnectionFailedError, KohortError
from kohort.lean import dataclass

F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_S = 70.0
UNAUTHORIZED = 401


@dataclass(frozen=True)
class ControlPort:
    """The control port of a broker."""

    host: str
    port: int

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer. Raises KohortError with the broker's message, ConnectionFailedError."""
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        headers = {"content-type": "application/json"}
        token = os.environ.get("KOHORT_CONTROL_TOKEN")
        if token:
            headers["authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, json.dumps(body or {}), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise ConnectionFailedError(
                f"no broker answers at the control port {self.host}:{self.port} ({error}); start "
                f"one with: kohort broker run --control {self.port}"
            ) from error
        finally:
            connection.close()
        if response.status == UNAUTHORIZED:
            raise KohortError(
                f"the control port {self.host}:{self.port} wants its token: set "
                "KOHORT_CONTROL_TOKEN to what the broker was started with"
            )
        if response.status != 200:
            raise KohortError(str(answer.get("error", answer)))
        return answer


def control_option(function: F) -> F:
    """`--control`, passed on as `control`."""

    @functools.wraps(function)
    def with_control(*args: Any, control: str | None, **rest: Any) -> Any:
        if not control:
            raise click.UsageError(
                "say which broker's: --control PORT or $KOHORT_CONTROL, with the PORT that "
                "`kohort broker run --control PORT` was given"
            )
        host, _, port = control.rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"--control {control!r} is not PORT or HOST:PORT")
        host = host or "127.0.0.1"
        if host not in ("127.0.0.1", "localhost"):
            raise ConfigError(f"--control {control!r}: a control port is on this machine only")
        return function(*args, control=ControlPort(host, int(port)), **rest)

    option = click.option(
        "--control",
        envvar="KOHORT_CONTROL",
        metavar="PORT",
        help="The broker's control port.  [default: $KOHORT_CONTROL]",
    )
    wrapped: Any = option(with_control)
    return wrapped
