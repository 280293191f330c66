"""Requests to a schema registry: answers that are none, tokens, redirects, several addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.errors import ConfigError, ConnectionFailedError, KohortError, SchemaRegistryError
from kohort.serdes import Schema, SchemaRegistry
from kohort.serdes.registry import resolved
from tests.patience import PATIENCE_S, until
from tests.serdes.fake_registry import Registry, running

OK = b"HTTP/1.1 200 OK\r\n"
BODY = b'{"schema": "\\"int\\""}'
CUT = {
    "in a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "short of its length": OK + b"Content-Length: 99\r\n\r\n" + BODY,
    "no HTTP": b"\x15\x03\x01\x00\x02\x02\x50\r\n",
    "nothing": b"",
    "an error, in a chunk": b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@pytest.fixture
def fake():
    with running() as registry:
        registry.add("s", {"schema": '"int"'})
        yield registry


def client(*urls: str, **settings: Any) -> SchemaRegistry:
    return SchemaRegistry(",".join(urls), timeout_s=PATIENCE_S, **settings)


@pytest.mark.parametrize("raw", CUT.values(), ids=CUT.keys())
def test_an_answer_that_is_cut_off_is_none(fake: Registry, raw: bytes) -> None:
    """The next address is asked; without one a later try may succeed, and no record is at fault."""
    fake.raw = [raw]
    assert client(fake.url, fake.url).by_id(1) == Schema('"int"')
    fake.raw = [raw]
    with pytest.raises(ConnectionFailedError, match=fake.url) as caught:
        client(fake.url).by_id(1)
    assert caught.value.retriable


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"<html>", b'{"schema": null}', b'{"schema": "1", "references": [{}]}']
)
def test_an_answer_that_is_no_registrys_is_no_fault_of_the_schema(
    fake: Registry, body: bytes
) -> None:
    fake.raw = [OK + b"\r\n" + body] * 5
    with pytest.raises(SchemaRegistryError, match="schemas/ids/1") as caught:
        client(fake.url).by_id(1)
    assert caught.value.retriable
    for ask in (SchemaRegistry.latest_id, SchemaRegistry.versions):
        with pytest.raises(SchemaRegistryError, match="subjects/s/versions/latest"):
            ask(client(fake.url), "s")
    for ask in (SchemaRegistry.register, SchemaRegistry.version_of):
        with pytest.raises(SchemaRegistryError, match="subjects/s"):
            ask(client(fake.url), "s", Schema("1"))


@pytest.mark.parametrize(
    ("outcome", "kind", "named"),
    [
        (ConnectionRefusedError("no issuer"), ConnectionFailedError, "no issuer"),
        (ConnectionFailedError("as it is"), ConnectionFailedError, "as it is"),
        (ConfigError("hidden"), SchemaRegistryError, "raised ConfigError"),
        (ValueError("hidden"), SchemaRegistryError, "raised ValueError"),
        ("hidden\n", SchemaRegistryError, "characters"),
        ("", SchemaRegistryError, "characters"),
        (None, SchemaRegistryError, "NoneType"),
    ],
    ids=repr,
)
def test_a_token_that_cannot_be_got_is_no_fault_of_the_schema(
    fake: Registry, outcome: Any, kind: type[KohortError], named: str
) -> None:
    def token() -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(kind, match=named) as caught:
        client(fake.url, token=token).by_id(1)
    assert caught.value.retriable
    assert "hidden" not in str(caught.value)
    assert fake.asked == []


@pytest.mark.parametrize("token", ["hidden\n", b"hidden", ""], ids=repr)
def test_a_token_that_no_header_may_have_is_refused_at_once(token: Any) -> None:
    with pytest.raises(ConfigError, match="the token for the schema registry") as caught:
        client("http://host:8081", token=token)
    assert "hidden" not in str(caught.value)


def test_a_redirect_is_not_followed(fake: Registry) -> None:
    """The credentials are for the host that they were given for."""
    with running() as other:
        to = f"{other.url}/schemas/ids/1?session=hidden".encode()
        fake.raw = [b"HTTP/1.1 307 Moved\r\nLocation: " + to + b"\r\n\r\n"]
        host = fake.url.removeprefix("http://")
        with pytest.raises(SchemaRegistryError, match=f"use {other.url}, if") as caught:
            client(f"http://ann:secret@{host}").by_id(1)
        assert (other.asked, other.authorization) == ([], [])
    assert caught.value.retriable
    assert "hidden" not in str(caught.value)


def test_what_is_no_fault_of_the_schema_is_asked_for_again_soon(
    fake: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr("kohort.serdes.registry.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    asks = client(fake.url)
    fake.raw = [OK + b"\r\n{}"]
    for wait_s in (0.0, 0.9):
        now_s[0] += wait_s
        with pytest.raises(SchemaRegistryError, match="no schema registry"):
            asks.by_id(1)
    now_s[0] += 0.2
    assert asks.by_id(1) == Schema('"int"')


@pytest.mark.parametrize("to", [b"", b"Location: http://[\r\n", b"Location: /login\r\n"])
def test_a_redirect_to_nowhere(fake: Registry, to: bytes) -> None:
    fake.raw = [b"HTTP/1.1 302 Found\r\n" + to + b"\r\n"]
    with pytest.raises(SchemaRegistryError, match="302"):
        client(fake.url).by_id(1)


def test_a_schema_that_one_registry_lacks_is_asked_of_the_others(fake: Registry) -> None:
    """A follower is behind for a moment; the schema's references may be as new as the schema."""
    reference = {"name": "S", "subject": "s", "version": 1}
    with running() as behind:
        behind.lacks = {"/schemas/ids/2", "/subjects/s/versions/1"}
        fake.add("t", {"schema": '"S"', "references": [reference]})
        asks = client(behind.url, fake.url)
        schema = asks.by_id(2)
        assert list(resolved(asks, schema)) == [Schema('"int"')]
        assert len(behind.asked) == len(fake.asked) == 2
    with pytest.raises(SchemaRegistryError, match="not found") as caught:
        client(fake.url, "http://127.0.0.1:1").by_id(9)  # the other may be away for long
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "ask",
    [
        lambda registry: registry.by_id(1),
        lambda registry: registry.by_version("s", 1),
    ],
    ids=["id", "version"],
)
def test_an_unknown_schema_may_become_known(
    fake: Registry, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ten seconds it is no fault of the record; then the id is of another registry."""
    now_s = [1_000.0]
    monkeypatch.setattr("kohort.serdes.registry.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    fake.lacks = {"/schemas/ids/1", "/subjects/s/versions/1"}
    asks = client(fake.url)
    seen: list[tuple[float, int, bool]] = []
    for wait_s in (0.0, 0.9, 0.2, 8.8, 0.2, 9.9):
        now_s[0] += wait_s
        with pytest.raises(SchemaRegistryError) as caught:
            ask(asks)
        seen.append((round(now_s[0] - 1_000, 1), len(fake.asked), caught.value.retriable))
    assert seen == [
        (0.0, 1, True),
        (0.9, 1, True),
        (1.1, 2, True),
        (9.9, 3, True),
        (10.1, 3, True),
        (20.0, 4, False),
    ]
    fake.lacks = set()
    now_s[0] += 9.9
    with pytest.raises(SchemaRegistryError):
        ask(asks)
    now_s[0] += 0.2
    assert ask(asks) == Schema('"int"')


def test_only_a_version_that_is_not_there_was_deleted(fake: Registry) -> None:
    """Other refusals are raised: a version that is left out would be evolution that is not seen."""
    for text in ('"long"', '"float"'):
        fake.add("s", {"schema": text})
    fake.lacks = {"/subjects/s/versions/2"}
    asks = client(fake.url)
    assert asks.versions("s") == [1, 3]
    latest = OK + b"\r\n" + b'{"version": 3}'
    for refusal in (b"HTTP/1.1 401 No\r\n\r\n", OK + b"\r\n{}", b"HTTP/1.1 422 No\r\n\r\n"):
        fake.raw = [latest, refusal]
        with pytest.raises(SchemaRegistryError):
            client(fake.url).versions("s")


@contextmanager
def silent() -> Iterator[tuple[str, SimpleQueue[socket.socket]]]:
    """A registry that takes connections and says nothing; its address, and the connections."""
    held: SimpleQueue[socket.socket] = SimpleQueue()
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    held.put(taken[-1])

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", held
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in taken:
                each.close()


def test_requests_for_different_schemas_do_not_wait_for_one_another() -> None:
    with silent() as (url, held):
        asks = client(url)
        with ThreadPoolExecutor(4) as pool:
            errors = [pool.submit(asks.by_id, number) for number in range(4)]
            for each in [held.get(timeout=PATIENCE_S) for _ in range(4)]:  # all at once
                each.close()
        assert {type(each.exception()) for each in errors} == {ConnectionFailedError}


def test_who_waits_for_the_same_request_shares_its_failure() -> None:
    """Else the last of them waits as often as there are threads; who comes later asks again."""
    with silent() as (url, held):
        asks = client(url)
        with ThreadPoolExecutor(4) as pool:
            errors = [pool.submit(asks.by_id, 1) for _ in range(4)]
            first = held.get(timeout=PATIENCE_S)
            until(lambda: [flight.callers for flight in asks._flights._flights.values()] == [4])
            first.close()
            found = [each.exception(PATIENCE_S) for each in errors]
        assert {type(error) for error in found} == {ConnectionFailedError}
        assert len(set(map(id, found))) == 4
        assert held.empty()
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(asks.by_id, 1)
            held.get(timeout=PATIENCE_S).close()
            assert again.exception(PATIENCE_S)


@pytest.mark.parametrize(
    "url",
    [
        "hhtp://ann:secret@host:8081",
        "ann:secret@host:8081",
        "http://ann:secret@host:x",
        "http://ann:secret,word@host:8081",
        "http://ann:secret@[host:8081",
        "http://host:8081,http://ann:secret@",
        "http://ann:12/secret@host:8081",
        "http://ann:12#secret@host:8081",
    ],
)
def test_a_mistyped_address_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="8081") as caught:
        SchemaRegistry(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
