"""Issue 5: nothing but ApiVersions and SASL before a login, within 64 KiB and ten seconds."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from kohort.errors import ConfigError, ErrorCode
from kohort.sasl.mechanism import ClientExchange
from kohort.sasl.plain import PlainClient
from kohort.sasl.scram import ScramClient
from kohort.testing import Cluster
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kohort.wire.messages.incremental_alter_configs_response import IncrementalAlterConfigsResponse
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.metadata_response import MetadataResponse
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from kohort.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse
from kohort.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from kohort.wire.messages.sasl_handshake_response import SaslHandshakeResponse
from tests.patience import PATIENCE_S
from tests.security.conftest import PASSWORD, USER

Start = Callable[..., Cluster]
M = TypeVar("M", bound=Message)


OPEN: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Raw:
    """A connection that sends what it likes."""

    def __init__(self, cluster: Cluster) -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", cluster.broker.port), timeout=PATIENCE_S
        )
        OPEN.append(self.socket)

    def ask(self, request: Message, kind: type[M], version: int | None = None) -> M:
        used = type(request).STABLE_VERSION if version is None else version
        self.socket.sendall(b"".join(encode_request(request, used, 7, "raw")))
        return decode_response(kind, used, self.frame())[1]

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.read(4))
        return self.read(size)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def is_cut(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def shake(self, mechanism: str) -> SaslHandshakeResponse:
        return self.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)

    def say(self, data: bytes) -> SaslAuthenticateResponse:
        return self.ask(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse)

    def login(self, exchange: ClientExchange) -> SaslAuthenticateResponse:
        assert not self.shake(exchange.mechanism).error_code
        message: bytes | None = exchange.first()
        while True:
            assert message is not None
            answer = self.say(message)
            if answer.error_code:
                return answer
            message = exchange.answer(answer.auth_bytes)
            if message is None:
                return answer


@pytest.fixture
def connect(start: Start) -> Callable[..., Raw]:
    """Connections to one secured broker."""
    clusters: list[Cluster] = []

    def begin(**overrides: Any) -> Raw:
        if not clusters:
            clusters.append(start("SASL_PLAINTEXT", **overrides))
        return Raw(clusters[0])

    return begin


def test_api_versions_comes_first_and_says_what_there_is(connect: Callable[..., Raw]) -> None:
    raw = connect()
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    answer = raw.ask(request, ApiVersionsResponse)
    listed = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert listed[17] == (0, 1)
    assert listed[36] == (0, 2)
    for key in (50, 51):
        assert listed[key] == (0, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login_in_every_version(connect: Callable[..., Raw], version: int) -> None:
    raw = connect()
    assert raw.shake("PLAIN").mechanisms == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    request = SaslAuthenticateRequest(auth_bytes=PlainClient(USER, PASSWORD).first())
    answer = raw.ask(request, SaslAuthenticateResponse, version)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert raw.ask(MetadataRequest(topics=[]), MetadataResponse).brokers


def test_anything_else_before_a_login_ends_the_connection(connect: Callable[..., Raw]) -> None:
    """Every key but 17, 18 and 36."""
    for key in range(90):
        if key in (17, 18, 36):
            continue
        raw = connect()
        body = struct.pack(">hhih", key, 0, 7, -1)
        raw.socket.sendall(struct.pack(">i", len(body)) + body)
        assert raw.is_cut(), key


def test_a_frame_before_a_login_has_64_kib(connect: Callable[..., Raw]) -> None:
    raw = connect(authentication_timeout_ms=600_000)  # so that it is not that which cuts it
    raw.socket.sendall(struct.pack(">i", 65_537))
    assert raw.is_cut()
    raw = connect()
    assert not raw.shake("PLAIN").error_code
    assert raw.say(b"\0" * 60_000).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    raw = connect()
    assert not raw.login(PlainClient(USER, PASSWORD)).error_code
    raw.ask(MetadataRequest(topics=[]), MetadataResponse)
    raw.socket.sendall(struct.pack(">i", 65_537) + bytes(10))
    raw.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        raw.socket.recv(1)  # it waits for the rest


def test_requests_in_the_middle_of_a_login(connect: Callable[..., Raw]) -> None:
    """Also of a second one (KAFKA-9854)."""
    raw = connect()
    raw.shake("PLAIN")
    raw.socket.sendall(b"".join(encode_request(MetadataRequest(topics=[]), 12, 7, "raw")))
    assert raw.is_cut()
    raw = connect()
    raw.login(PlainClient(USER, PASSWORD))
    raw.shake("PLAIN")
    raw.socket.sendall(b"".join(encode_request(MetadataRequest(topics=[]), 12, 7, "raw")))
    assert raw.is_cut()


def test_a_refusal_says_no_more_than_that_and_ends_the_connection(
    connect: Callable[..., Raw],
) -> None:
    """The same for an unknown user and a wrong password."""
    texts: set[str | None] = set()
    for user, password in ((USER, "x"), ("nobody", "x"), ("nobody", PASSWORD)):
        raw = connect()
        answer = raw.login(PlainClient(user, password))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        texts.add(answer.error_message)
        assert raw.is_cut()
    assert len(texts) == 1


def test_a_refusal_waits(start: Start) -> None:
    """KIP-306; what comes behind the refused message is never looked at."""
    cluster = start("SASL_PLAINTEXT", connection_failed_authentication_delay_ms=60_000)
    raw = Raw(cluster)
    raw.shake("PLAIN")
    frame = b"".join(encode_request(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 2, 7, "raw"))
    raw.socket.sendall(frame * 3)
    raw.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        raw.socket.recv(1)


def test_a_mechanism_that_is_not_there(connect: Callable[..., Raw]) -> None:
    raw = connect()
    answer = raw.shake("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert not raw.login(ScramClient("SCRAM-SHA-256", USER, PASSWORD, "n")).error_code


def test_messages_out_of_order(connect: Callable[..., Raw]) -> None:
    raw = connect()
    assert raw.say(b"\0a\0b").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raw.is_cut()
    raw = connect()
    raw.shake("PLAIN")
    assert raw.shake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_who_is_at_a_connection_does_not_change(start: Start) -> None:
    """KIP-368: another user, or another mechanism, in a second login."""
    cluster = start("SASL_PLAINTEXT", users={USER: PASSWORD, "bob": "b"})
    raw = Raw(cluster)
    raw.login(PlainClient(USER, PASSWORD))
    assert raw.shake("SCRAM-SHA-256").error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert raw.login(PlainClient("bob", "b")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raw.is_cut()


def test_a_session_over_its_time_takes_only_a_login(start: Start) -> None:
    """KIP-368: it ends with the first request after it."""
    cluster = start("SASL_PLAINTEXT", connections_max_reauth_ms=1)
    raw = Raw(cluster)
    lifetime_ms = raw.login(PlainClient(USER, PASSWORD)).session_lifetime_ms
    assert lifetime_ms == 1
    raw.socket.settimeout(0.01)
    with pytest.raises(TimeoutError):
        raw.socket.recv(1)  # nothing happens by itself
    raw.socket.settimeout(PATIENCE_S)
    assert not raw.login(PlainClient(USER, PASSWORD)).error_code
    raw.socket.settimeout(0.01)
    with pytest.raises(TimeoutError):
        raw.socket.recv(1)
    raw.socket.settimeout(PATIENCE_S)
    raw.socket.sendall(b"".join(encode_request(MetadataRequest(topics=[]), 12, 7, "raw")))
    assert raw.is_cut()


def test_a_client_that_says_nothing_is_sent_away(start: Start) -> None:
    cluster = start("SASL_PLAINTEXT", authentication_timeout_ms=30)
    raw = Raw(cluster)
    assert raw.is_cut()
    cluster.restart(authentication_timeout_ms=400)
    while True:
        known = Raw(cluster)
        try:
            known.login(PlainClient(USER, PASSWORD))
        except (EOFError, ConnectionError):
            continue  # the machine stood still; and so it is sent away as well
        break
    known.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        known.socket.recv(1)


def test_connections_of_one_address_are_counted(start: Start) -> None:
    cluster = start("SASL_PLAINTEXT", max_connections_per_ip=2)
    first, second = Raw(cluster), Raw(cluster)
    for raw in (first, second):
        raw.shake("GSSAPI")
    third = Raw(cluster)
    assert third.is_cut()
    first.login(PlainClient(USER, "wrong"))
    assert first.is_cut()
    second.login(PlainClient(USER, PASSWORD))
    second.ask(MetadataRequest(topics=[]), MetadataResponse)
    fourth = Raw(cluster)
    assert not fourth.login(PlainClient(USER, PASSWORD)).error_code


def test_how_many_connections_of_one_address_may_be_changed_while_it_runs(start: Start) -> None:
    """KIP-226, issue F.22."""
    cluster = start("SASL_PLAINTEXT")
    first = Raw(cluster)
    first.login(PlainClient(USER, PASSWORD))
    config = AlterableConfig(name="max.connections.per.ip", value="2")
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [answer] = first.ask(request, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == 0
    second = Raw(cluster)
    second.shake("PLAIN")
    assert Raw(cluster).is_cut()


def test_sasl_where_nobody_asks_for_it() -> None:
    """As Apache Kafka answers on a PLAINTEXT listener."""
    with Cluster() as cluster:
        raw = Raw(cluster)
        assert raw.shake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert raw.say(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert raw.ask(MetadataRequest(topics=[]), MetadataResponse).brokers


def test_bytes_of_any_kind_cost_nobody_else_anything(connect: Callable[..., Raw]) -> None:
    """Hostile input before a login: the connection ends, and the broker goes on."""
    for data in (
        b"\xff" * 100,
        b"\0\0\0\x00",
        struct.pack(">ihh", 4, 17, 99),
        b"GET / HTTP/1.1\r\n",
    ):
        raw = connect()
        raw.socket.sendall(data)
        with suppress(OSError):  # it may have been cut already
            raw.socket.shutdown(socket.SHUT_WR)
        assert raw.is_cut()
    assert not connect().login(PlainClient(USER, PASSWORD)).error_code


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"security_protocol": "TLS"}, "SASL_SSL"),
        ({"host": "0.0.0.0"}, "asks nobody who they are"),
        ({"host": "0.0.0.0", "security_protocol": "SSL"}, "asks nobody who they are"),
        (
            {"host": "0.0.0.0", "security_protocol": "SASL_PLAINTEXT", "sasl_users": ("a:b",)},
            "show their secrets",
        ),
        ({"security_protocol": "SSL"}, "ssl_certificate_location"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "nobody could log in"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_users": ("alice",)}, "name:password"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_enabled_mechanisms": ("GSSAPI",)},
            "PLAIN, SCRAM-SHA-256",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_enabled_mechanisms": ("OAUTHBEARER",)},
            "sasl_oauthbearer_jwks_endpoint_url",
        ),
        ({"ssl_principal_mapping_rules": "RULE:("}, "RULE:PATTERN"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_users": ("a:\u2168",)}, "RFC 4013"),
    ],
)
def test_what_a_broker_refuses(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught, Cluster(**config):
        pass
    assert "\u2168" not in str(caught.value)


def test_scram_alone_may_be_open(start: Start) -> None:
    """Nobody learns a password from listening in."""
    start("SASL_PLAINTEXT", host="0.0.0.0", sasl_enabled_mechanisms=("SCRAM-SHA-512",))


# SaslHandshake v0 (KIP-43): what comes after it has sizes, and no headers. librdkafka up to 2.0
# (kcat) wants it listed.


def shake_barely(raw: Raw, mechanism: str) -> None:
    request = SaslHandshakeRequest(mechanism=mechanism)
    assert not raw.ask(request, SaslHandshakeResponse, 0).error_code


def say_barely(raw: Raw, data: bytes) -> None:
    raw.socket.sendall(struct.pack(">i", len(data)) + data)


@pytest.mark.parametrize(
    "exchange",
    [PlainClient(USER, PASSWORD), ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")],
    ids=["PLAIN", "SCRAM-SHA-256"],
)
def test_a_login_without_headers(connect: Callable[..., Raw], exchange: ClientExchange) -> None:
    raw = connect()
    shake_barely(raw, exchange.mechanism)
    message: bytes | None = exchange.first()
    while message is not None:
        say_barely(raw, message)
        message = exchange.answer(raw.frame())
    assert raw.ask(MetadataRequest(), MetadataResponse).brokers


def test_a_wrong_password_without_headers_ends_the_connection(connect: Callable[..., Raw]) -> None:
    """There is no place for an error code: nothing is said, as by Apache Kafka."""
    raw = connect()
    shake_barely(raw, "PLAIN")
    say_barely(raw, PlainClient(USER, "wrong").first())
    assert raw.is_cut()


def test_a_login_without_headers_keeps_its_limits(connect: Callable[..., Raw]) -> None:
    raw = connect(sasl_server_max_receive_size=2_000)
    shake_barely(raw, "PLAIN")
    raw.socket.sendall(struct.pack(">i", 2_001))
    assert raw.is_cut()
