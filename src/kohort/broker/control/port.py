"""The control port: faults and failovers for tests that are not written in Python.

    kohort broker run --control 9690
    curl -H 'content-type: application/json' -d '{"then": "cut", "api": "Fetch"}' \
        http://127.0.0.1:9690/faults

Rules:
- It listens on 127.0.0.1 and nowhere else. Who may use this machine may use it; with a token
  (`KOHORT_CONTROL_TOKEN`) only who knows that.
- No web page may use it: requests that say that a browser sent them (`Origin`, `Sec-Fetch-Site`)
  and those that name another host (DNS rebinding) are refused, and what changes something must
  be sent as `application/json`, for which a page of another origin needs a permission that is
  never given.
- Bodies, connections and waiting times are bounded.

Shell: sockets, threads.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from kohort.broker.control.api import ControlRequest, route_of
from kohort.broker.faults.gate import FaultInjector
from kohort.broker.faults.notices import Notices
from kohort.broker.server.server import Broker
from kohort.errors import BrokerError, ConfigError, KohortError, UsageError

log = logging.getLogger("kohort.broker")

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 256 << 10
MAX_CONNECTIONS: Final = 32
MAX_WAIT_MS: Final = 60_000
_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05  # how soon `close` is noticed
_BAD, _FORBIDDEN, _NO_TOKEN, _NOT_FOUND, _REFUSED, _DOWN = 400, 403, 401, 404, 409, 503


class Refused(Exception):
    """A request that is not carried out, with its status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Control:
    """The control port of a running broker. Raises ConfigError when the port is in use."""

    def __init__(self, broker: Broker, gate: FaultInjector, port: int, token: str = "") -> None:
        self.broker = broker
        self.token = token
        self.notices = Notices()
        gate.requests.changed = self.notices.notify
        try:
            self._server = _Server(self, port)
        except OSError as error:
            raise ConfigError(
                f"the control port {HOST}:{port} cannot be used: {error.strerror}; give another "
                "as --control, or 0 for any free one"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="kohort-control", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"

    def close(self) -> None:
        """Answer no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Raise Refused for a request of a web page, or without the token."""
        host = headers.get("host", "")
        if host not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            raise Refused(_FORBIDDEN, f"host {host!r} is not {self.address}")
        if "origin" in headers or "sec-fetch-site" in headers:
            raise Refused(_FORBIDDEN, "web pages may not control a broker")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            raise Refused(_BAD, "send JSON, with the header content-type: application/json")
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Refused(_NO_TOKEN, "send the token as the header authorization: Bearer TOKEN")

    def answer(self, request: ControlRequest) -> dict[str, Any]:
        """What is asked for. Raises Refused, KohortError."""
        route = route_of(request)
        if route is None:
            raise Refused(_NOT_FOUND, f"{request.method} /{'/'.join(request.parts)} is not known")

        def ask() -> dict[str, Any]:
            return self.broker.call(lambda: route(self.broker, request))

        wait_ms = request.query.get("wait_ms", "0")
        if request.parts[:1] != ("requests",) or not wait_ms.isdigit() or wait_ms == "0":
            return ask()

        def some() -> dict[str, Any] | None:
            answer = ask()
            return answer if answer.get("requests") else None

        notices = self.notices.until(some, min(int(wait_ms), MAX_WAIT_MS) / 1000)
        return notices if notices is not None else ask()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, control: Control, port: int) -> None:
        self.control = control
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((HOST, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        log.debug("the control connection of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server_version = "kohort-control"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        control = cast("_Server", self.server).control
        try:
            control.check(self.command, {k.lower(): v for k, v in self.headers.items()})
            self._say(200, control.answer(self._request()))
        except Refused as refused:
            self._say(refused.status, {"error": str(refused)})
        except (UsageError, ConfigError) as error:
            self._say(_BAD, {"error": str(error)})
        except BrokerError as error:
            self._say(_REFUSED, {"error": str(error), "code": error.name})
        except KohortError as error:
            self._say(_DOWN, {"error": str(error)})

    def _request(self) -> ControlRequest:
        target = urlsplit(self.path)
        parts = tuple(unquote(part) for part in target.path.split("/") if part)
        return ControlRequest(self.command, parts, dict(parse_qsl(target.query)), self._body())

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise Refused(_BAD, f"a body has a length, at most {MAX_BODY_BYTES} bytes")
        raw = self.rfile.read(int(length))
        if not raw:
            return {}
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Refused(_BAD, f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused(_BAD, "the body is not a JSON object")
        return cast("dict[str, Any]", body)

    def _say(self, status: int, answer: Mapping[str, Any]) -> None:
        body = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("cache-control", "no-store")
        self.send_header("x-content-type-options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("control: " + format, *args)
