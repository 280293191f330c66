"""The console as a Starlette application: requests to screens and back, and the events of samples.

Rules:
- Screens may wait for the cluster, so each runs on a thread; what it raises becomes a page that
  says what to do.
- `/events` sends a line after each sample, and ends when the console does.

Shell: asyncio, threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kohort.console.screens import SCREENS
from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Redirect, Screen, now_ms
from kohort.console.views.figures import clock, duration
from kohort.console.web.render import as_html, as_json
from kohort.console.web.security import HEADERS, Guard, session_cookie
from kohort.errors import KohortError, UsageError

log = logging.getLogger("kohort.console")

MAX_FORM_BYTES: Final = 1 << 20
BEAT_S: Final = 15.0
MAX_STREAMS: Final = 64


@dataclass(frozen=True)
class Failure:
    """Why there is no page."""

    status: int
    why: str


@dataclass(frozen=True)
class Login:
    """The login page; `wrong` after a token that is not the console's."""

    wrong: bool


class ConsoleApp:
    """The application of one console.

    Args:
        desk: what screens work with.
        guard: who may use it.
    """

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self.desk, self.guard = desk, guard
        self._closing = asyncio.Event()
        self._streams = 0
        static = StaticFiles(directory=str(files("kohort.console") / "static"))
        self.asgi = Starlette(
            routes=[
                Route("/", _to_groups),
                Route("/login", self.login, methods=["GET", "POST"]),
                Route("/events", self.events),
                Route("/favicon.ico", _to_icon),
                Mount("/static", static),
                Route("/{path:path}", self.screen, methods=["GET", "POST"]),
            ]
        )

    def close(self) -> None:
        """End the event streams. Call it on the loop's thread."""
        self._closing.set()

    # -- pages

    async def screen(self, request: Request) -> Response:
        """Any screen, by its path."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        cookie = _session(request)
        fresh = None if self.guard.session_is_ours(cookie) else self.guard.new_session()
        form: dict[str, str] = {}
        if request.method == "POST":
            form = await _form(request)
            host = request.headers.get("host", "")
            origin = request.headers.get("origin")
            if not self.guard.post_is_ours(cookie, form, origin, host):
                return self._failed(
                    request,
                    403,
                    "This form is not of this session. Go back, reload the page, and "
                    "send it again.",
                    fresh or cookie or "",
                )
        address = request.client.host if request.client else "?"
        form["who"] = self.guard.who(cookie, address)
        page_request = PageRequest(
            request.url.path, _joined(request.query_params.multi_items()), form
        )
        answer = await asyncio.to_thread(self._answer, request, page_request, fresh or cookie or "")
        if fresh:
            _set_session(request, answer, fresh)
        return answer

    def _answer(self, request: Request, page_request: PageRequest, cookie: str) -> Response:
        handler = SCREENS.get((request.method, page_request.path))
        if handler is None:
            return self._failed(request, 404, f"There is no page {page_request.path}.", cookie)
        sample = self.desk.sampler.number  # before the screen looks: what comes later is news
        try:
            shown = handler(self.desk, page_request)
        except NotThereError as error:
            return self._failed(request, 404, str(error), cookie)
        except UsageError as error:
            return self._failed(request, 400, str(error), cookie)
        except KohortError as error:
            return self._failed(request, 503, str(error), cookie)
        if isinstance(shown, Redirect):
            return RedirectResponse(shown.to, 303)
        return self._shown(request, shown, cookie, sample=sample)

    def _shown(
        self, request: Request, screen: Screen, cookie: str, status: int = 200, sample: int = -1
    ) -> Response:
        page = {**self._page(request, cookie), "sample": sample}
        query = request.query_params
        wants = request.headers.get("accept", "").startswith("application/json")
        if query.get("format") == "json" or wants:
            body = as_json(screen, page)
            return Response(body, status, HEADERS, media_type="application/json")
        live = request.headers.get("hx-request") == "true"
        return HTMLResponse(as_html(screen, page, fragment=live), status, HEADERS)

    def _failed(self, request: Request, status: int, why: str, cookie: str) -> Response:
        screen = Screen("error.html", "Not shown", "", Failure(status, why))
        return self._shown(request, screen, cookie, status)

    def _page(self, request: Request, cookie: str) -> dict[str, Any]:
        """What is around every screen."""
        sampler, at_ms = self.desk.sampler, now_ms()
        latest = sampler.latest
        troubles = list(latest.snapshot.troubles) if latest else []
        if sampler.error:
            troubles.insert(0, f"The cluster does not answer: {sampler.error}")
        sampled = latest.snapshot.at_ms if latest else None
        query = request.query_params.multi_items()
        return {
            "path": request.url.path,
            "query": {k: v for k, v in _joined(query).items() if k != "format"},
            "bootstrap": self.desk.bootstrap,
            "allow_actions": self.desk.allow_actions,
            "control": self.desk.control,
            "form_token": self.guard.form_token(cookie),
            "login": self.guard.login_needed,
            "sampled_ms": sampled,
            "sampled": clock(sampled),
            "sampled_ago": duration(None if sampled is None else at_ms - sampled),
            "stale": sampled is not None and at_ms - sampled > 60_000 + 3_000 * sampler.interval_s,
            "interval": duration(sampler.interval_s * 1000),
            "troubles": troubles,
        }

    # -- who may

    def _refused(self, request: Request) -> Response | None:
        if not self.guard.host_is_ours(request.headers.get("host", "")):
            return Response("this console has another name", 421, HEADERS)
        known = self.guard.session_is_ours(_session(request))
        if self.guard.login_needed and not known:
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            if bearer and self.guard.token_is_right(bearer):
                return None
            wants = quote(f"{request.url.path}?{request.url.query}".rstrip("?"))
            return RedirectResponse(f"/login?to={wants}", 303, HEADERS)
        return None

    async def login(self, request: Request) -> Response:
        """The login page, and the token that is sent from it."""
        if not self.guard.host_is_ours(request.headers.get("host", "")):
            return Response("this console has another name", 421, HEADERS)
        wrong = False
        if request.method == "POST":
            form = await _form(request)
            if self.guard.login_needed and self.guard.token_is_right(form.get("token", "")):
                answer = RedirectResponse(_inside(request.query_params.get("to", "")), 303)
                _set_session(request, answer, self.guard.new_session())
                return answer
            wrong = True
            await asyncio.sleep(0.5)  # guessing is slow
        screen = Screen("login.html", "Log in", "", Login(wrong))
        return self._shown(request, screen, "", 403 if wrong else 200)

    # -- live

    async def events(self, request: Request) -> Response:
        """A line after each sample."""
        refused = self._refused(request)
        if refused is not None:
            return Response("log in first", 401, HEADERS)
        if self._streams >= MAX_STREAMS:
            return Response("too many streams", 503, HEADERS)
        return StreamingResponse(self._stream(), 200, HEADERS, "text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            seen = self.desk.sampler.number
            yield f"id: {seen}\nevent: hello\ndata: {seen}\n\n"
            quiet_s = 0.0
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), 0.5)
                quiet_s += 0.5
                number = self.desk.sampler.number
                if number != seen:
                    seen, quiet_s = number, 0.0
                    yield f"id: {seen}\nevent: sample\ndata: {seen}\n\n"
                elif quiet_s >= BEAT_S:
                    quiet_s = 0.0
                    yield ": alive\n\n"
        finally:
            self._streams -= 1


def _to_groups(request: Request) -> Response:
    del request
    return RedirectResponse("/groups")


def _to_icon(request: Request) -> Response:
    del request
    return RedirectResponse("/static/icon.svg")


def _inside(to: str) -> str:
    """Where a login leads: a path of this console, never another site."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/groups"


def _session(request: Request) -> str | None:
    return request.cookies.get(session_cookie(request.headers.get("host", "")))


def _set_session(request: Request, answer: Response, session: str) -> None:
    name = session_cookie(request.headers.get("host", ""))
    secure = request.url.scheme == "https"
    answer.set_cookie(name, session, httponly=True, samesite="strict", secure=secure, path="/")


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, up to `MAX_FORM_BYTES`."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            return {}
    return _joined(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Fields by name; the values of a name that occurs more than once are lines of one text."""
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return fields
