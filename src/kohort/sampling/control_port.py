"""A client of the control port of `kohort broker run --control PORT`.

Rules: only this machine is asked, because a control port listens nowhere else; the token, when the
broker has one, comes from KOHORT_CONTROL_TOKEN.

Shell: sockets, the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from kohort.errors import ConfigError, ConnectionFailedError, KohortError
from kohort.lean import dataclass

TIMEOUT_S = 70.0
UNAUTHORIZED = 401


@dataclass(frozen=True)
class ControlPort:
    """The control port of a broker.

    Attributes:
        timeout_s: the longest wait for an answer, in seconds.
    """

    host: str
    port: int
    timeout_s: float = TIMEOUT_S

    @classmethod
    def parse(cls, text: str, timeout_s: float = TIMEOUT_S) -> ControlPort:
        """The port that `--control` names, as PORT or HOST:PORT. Raises ConfigError."""
        host, _, port = text.rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"--control {text!r} is not PORT or HOST:PORT")
        host = host or "127.0.0.1"
        if host not in ("127.0.0.1", "localhost"):
            raise ConfigError(f"--control {text!r}: a control port is on this machine only")
        return cls(host, int(port), timeout_s)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer. Raises KohortError with the broker's message, ConnectionFailedError."""
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(self.host, self.port, timeout=self.timeout_s)
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
                f"the control port {self.host}:{self.port} requires its token: set "
                "KOHORT_CONTROL_TOKEN to what the broker was started with"
            )
        if response.status != 200:
            raise KohortError(str(answer.get("error", answer)))
        return answer
