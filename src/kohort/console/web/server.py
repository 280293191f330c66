"""The console as a server: the sampler, an admin and uvicorn, from start to end.

Shell: sockets, threads, asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn

from kohort.client.admin.admin import Admin
from kohort.client.common.config import AdminConfig, known_to
from kohort.console.screens.audit import Audit
from kohort.console.screens.desk import Desk
from kohort.console.screens.fleet import Fleet
from kohort.console.views.masks import Masks
from kohort.console.web import CONSOLE_PORT
from kohort.console.web.app import ConsoleApp
from kohort.console.web.security import Guard
from kohort.errors import ConfigError
from kohort.sampling.control_port import ControlPort
from kohort.sampling.sampler import INTERVAL_S, Sampler

BACKLOG: Final = 128


@dataclass(frozen=True)
class ConsoleOptions:
    """How a console runs.

    Attributes:
        host: the address to listen on; beyond loopback a `token` is needed.
        port: 0 takes any free one.
        allow_actions: whether anything may be changed.
        masks: names of fields and headers that are not shown, and `key`, `value`.
        stores: URLs of stores with ledgers.
        history: a file for some hours of history.
        audit: a file that actions are appended to.
        control: the control port of an embedded broker, as PORT or HOST:PORT.
        remote: the prefix under which processes tell of themselves.
    """

    host: str = "127.0.0.1"
    port: int = CONSOLE_PORT
    token: str = ""
    allow_actions: bool = False
    masks: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    history: Path | None = None
    hours: float = 6.0
    audit: Path | None = None
    interval_s: float = INTERVAL_S
    control: str = ""
    remote: str = "kohort"


class ConsoleServer:
    """A running console, on a thread of its own.

    Args:
        settings: of clients, in Kafka's names.
        options: how it runs.

    Raises:
        ConfigError: it may not or cannot listen there.
        StorageError: the history file cannot be used.
        AuditError: the audit file cannot be written.
    """

    def __init__(self, settings: Mapping[str, Any], options: ConsoleOptions) -> None:
        self.options = options
        guard = Guard(options.host, options.token)
        if options.control:
            ControlPort.parse(options.control)
        audit = Audit(options.audit)
        self._socket = _bound(options.host, options.port)
        port = self._socket.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url = f"http://{host}:{port}/"
        self.admin = Admin(**known_to(AdminConfig, settings))
        self.sampler = Sampler(
            self.admin,
            settings,
            interval_s=options.interval_s,
            history=options.history,
            hours=options.hours,
        )
        self.fleet = Fleet(options.remote, settings)
        self.desk = Desk(
            self.sampler,
            self.admin,
            settings,
            audit,
            Masks(options.masks),
            self.fleet,
            options.allow_actions,
            options.stores,
            options.control,
        )
        self._guard = guard
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: ConsoleApp | None = None
        self._thread = threading.Thread(target=self._run, name="kohort-console", daemon=True)
        self._ready = threading.Event()

    def start(self) -> None:
        """Listen, and begin to sample."""
        self.sampler.start()
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._app = ConsoleApp(self.desk, self._guard)
        config = uvicorn.Config(
            self._app.asgi,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        self._server = _Server(config)
        self._ready.set()
        await self._server.serve([self._socket])

    def close(self) -> None:
        """End streams, server and sampler, and close the clients."""
        if self._loop is not None and self._app is not None and self._server is not None:
            self._loop.call_soon_threadsafe(self._app.close)
            self._server.should_exit = True
            self._thread.join()
        self.desk.jobs.stop_all()
        self.sampler.close()
        self.fleet.close()
        self.admin.close()
        self._socket.close()

    def __enter__(self) -> ConsoleServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve_console(
    settings: Mapping[str, Any],
    options: ConsoleOptions,
    ready: Callable[[ConsoleServer], object],
    wait: Callable[[], object],
) -> None:
    """Run a console until `wait` returns; `ready` is called with it once it listens."""
    with ConsoleServer(settings, options) as server:
        ready(server)
        wait()


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the process that runs the console has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"the console cannot listen on {host}:{port}: {error.strerror}; choose another --listen"
        ) from error
    return listening
