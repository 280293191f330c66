"""A schema registry on a loopback port: enough of the REST API to be asked, and to fail."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """What the server holds; `asked` are its requests in order."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        self.fail_with: int | None = None
        self.lacks: set[str] = set()
        """Paths that this one does not know yet, as a follower that is behind."""
        self.raw: list[bytes] = []
        """Sent as they stand, one for each request, before anything is answered."""
        self.url = ""
        self.serialized: dict[str, str] = {}
        """Descriptors in base64 by the source of a Protobuf schema."""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        self.asked.append(f"{method} {path}")
        if self.fail_with is not None:
            return self.fail_with, {"error_code": self.fail_with * 100, "message": "no"}
        path, _, query = path.partition("?")
        if path in self.lacks:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return self.found(path, query, body)

    def found(self, path: str, query: str, body: Any) -> tuple[int, dict[str, Any]]:
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            at = int(match[1]) - 1
            if at < len(self.schemas):
                return 200, self.in_form(self.schemas[at], query)
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if match := re.fullmatch(r"/subjects/([^/]+)/versions", path):
            return 200, {"id": self.add(match[1], body)}
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+|latest)", path):
            held = self.subjects.get(match[1], [])
            version = len(held) if match[2] == "latest" else int(match[2])
            if not 0 < version <= len(held):
                return 404, {"error_code": 40402, "message": "Version not found"}
            schema_id = held[version - 1]
            found = self.in_form(self.schemas[schema_id - 1], query)
            return 200, {**found, "version": version, "id": schema_id}
        if match := re.fullmatch(r"/subjects/([^/]+)", path):
            held = self.subjects.get(match[1], [])
            for version, schema_id in enumerate(held, 1):
                if self.schemas[schema_id - 1] == body:
                    return 200, {"id": schema_id, "version": version}
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def in_form(self, schema: dict[str, Any], query: str) -> dict[str, Any]:
        """A schema as it was registered, or its descriptor where that is asked for."""
        serialized = self.serialized.get(schema["schema"]) if query == "format=serialized" else None
        return {**schema, "schema": serialized} if serialized else schema

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        held = self.subjects.setdefault(subject, [])
        if schema_id not in held:
            held.append(schema_id)
        return schema_id


@contextmanager
def running() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            self._answer(json.loads(self.rfile.read(size)))

        def _answer(self, body: Any) -> None:
            registry.authorization.append(self.headers["Authorization"])
            if registry.raw:
                self.wfile.write(registry.raw.pop(0))
                return
            code, answer = registry.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
