"""HTTP for the console: Starlette, sessions, templates, server-sent events.

Imports `kohort.console.screens`. Starlette, uvicorn and Jinja2 come with the extra `console`.
"""

from __future__ import annotations

from typing import Final

CONSOLE_PORT: Final = 8088
