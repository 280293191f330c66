"""TLS over real loopback sockets: every size of frame, back-pressure, refusals that say why."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import AuthenticationError, ConfigError, ConnectionFailedError
from kohort.net import Connection
from kohort.net.tls import (
    TlsClient,
    TlsOptions,
    TlsServer,
    client_context,
    distinguished_name,
    server_context,
)
from kohort.testing.certificates import Certificates
from tests.net.conftest import LoopThread, Recorder
from tests.net.test_connection import framed
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def serving(certificates: Certificates, **options: Any) -> TlsServer:
    return TlsServer(
        server_context(
            TlsOptions(
                certificate_file=certificates.issue("localhost", "127.0.0.1"),
                ca_file=certificates.ca_file,
                **options,
            )
        ),
        handshake_ms=600_000,
    )


def trusting(certificates: Certificates, host: str = "127.0.0.1", **options: Any) -> TlsClient:
    return TlsClient(client_context(TlsOptions(ca_file=certificates.ca_file, **options)), host)


class Pair:
    """Both sides on one loop."""

    def __init__(
        self, lt: LoopThread, server: TlsServer | None, client: TlsClient | None, on_frame=None
    ) -> None:
        self.lt = lt
        self.server, self.client = Recorder(on_frame), Recorder()
        self.listener = lt.do(
            lt.loop.listen,
            "127.0.0.1",
            0,
            lambda c: self.server,
            max_frame_bytes=64 << 20,
            tls=server,
        )
        self.c: Connection = lt.do(
            lt.loop.connect,
            "127.0.0.1",
            self.listener.port,
            self.client,
            max_frame_bytes=64 << 20,
            tls=client,
        )

    def opened(self) -> Pair:
        self.client.next("connected")
        self.s: Connection = self.server.next("connected")
        return self


@pytest.fixture
def pair(lt: LoopThread, certificates: Certificates) -> Pair:
    return Pair(lt, serving(certificates), trusting(certificates)).opened()


@pytest.mark.parametrize("size", [1, 65_532, 65_536, 70_000, 1 << 20, 9 << 20])
def test_frames_of_every_size_arrive_whole(pair: Pair, size: int) -> None:
    payload = (bytes(i * 7 % 251 for i in range(4_096)) * (size // 4_096 + 1))[:size]

    def go(c: Connection) -> None:
        for one in (b"before", payload, b"after"):
            c.send(framed(one))

    for c, other in ((pair.c, pair.server), (pair.s, pair.client)):
        pair.lt.do(go, c)
        frames: list[memoryview] = []
        while len(frames) < 3:
            kind, value = other.events.get(timeout=PATIENCE_S)
            if kind == "frame":
                frames.append(value)
        assert frames == [b"before", payload, b"after"]


def test_many_small_frames_in_one_turn(pair: Pair) -> None:
    """Records hold many frames; what was decrypted is handed out without another packet."""

    def go() -> None:
        for n in range(5_000):
            pair.c.send(framed(struct.pack(">i", n) * 20))

    pair.lt.do(go)
    for n in range(5_000):
        assert pair.server.next("frame") == struct.pack(">i", n) * 20


def test_frames_decrypted_while_reading_is_paused_wait(lt: LoopThread, certificates) -> None:
    """Nobody but us knows of decrypted bytes: resuming has to look for them."""
    paused = threading.Event()

    def pause(c: Connection, frame: memoryview) -> None:
        c.pause_reading()
        paused.set()

    pair = Pair(lt, serving(certificates), trusting(certificates), on_frame=pause).opened()

    def go() -> None:
        for n in range(100):
            pair.c.send(framed(bytes([n]) * 30_000))

    lt.do(go)
    for n in range(100):
        assert paused.wait(PATIENCE_S)
        paused.clear()
        assert pair.server.next("frame") == bytes([n]) * 30_000
        assert pair.server.quiet
        lt.do(pair.s.resume_reading)


def test_what_waits_counts_until_the_kernel_has_it(lt: LoopThread, certificates) -> None:
    """Back-pressure: `queued_bytes` and `drained` hold for TLS too."""
    pair = Pair(lt, serving(certificates), trusting(certificates)).opened()
    lt.do(pair.s.pause_reading)
    lt.do(lambda: [pair.c.send(framed(bytes(1 << 20))) for _ in range(32)])
    assert lt.do(lambda: pair.c.queued_bytes) > 1 << 20
    lt.do(pair.s.resume_reading)
    for _ in range(32):
        assert len(pair.server.next("frame")) == 1 << 20
    pair.client.next("drained")
    assert lt.do(lambda: pair.c.queued_bytes) == 0


def test_closing_ends_the_other_side(pair: Pair) -> None:
    pair.lt.do(pair.c.close)
    assert pair.client.next("closed") is None
    assert isinstance(pair.server.next("closed"), ConnectionFailedError)


def refused(pair: Pair) -> AuthenticationError:
    error = pair.client.next("closed")
    assert isinstance(error, AuthenticationError), error
    assert error.mechanism == "SSL"
    assert error.broker.startswith("127.0.0.1:")
    return error


def test_an_unknown_authority(lt: LoopThread, certificates, tmp_path: Path) -> None:
    pair = Pair(lt, serving(certificates), trusting(Certificates(tmp_path)))
    error = refused(pair)
    assert "not believed" in error.reason
    assert "ssl_ca_location" in error.advice
    assert isinstance(pair.server.next("closed"), AuthenticationError)


def test_another_name_in_the_certificate(lt: LoopThread, certificates) -> None:
    error = refused(Pair(lt, serving(certificates), trusting(certificates, "broker.example")))
    assert "broker.example" in error.reason
    assert "ssl_endpoint_identification_algorithm" in error.advice
    unchecked = trusting(certificates, "broker.example", verify_hostname=False)
    Pair(lt, serving(certificates), unchecked).opened()


def test_a_port_that_does_not_speak_tls(lt: LoopThread, certificates) -> None:
    """Either way round it is said, and the listener goes on."""

    def hello(c: Connection, frame: memoryview) -> None:
        c.send(framed(b"plain"))

    with socket.create_server(("127.0.0.1", 0)) as plain:
        client = Recorder()
        lt.do(
            lt.loop.connect,
            "127.0.0.1",
            plain.getsockname()[1],
            client,
            max_frame_bytes=1 << 20,
            tls=trusting(certificates),
        )
        accepted, _ = plain.accept()
        with accepted:
            accepted.recv(5)
            accepted.sendall(b"\0\0\0\x05hello")
            error = client.next("closed")
    assert "does not speak TLS" in str(error)
    pair = Pair(lt, serving(certificates), None)
    pair.client.next("connected")
    lt.do(lambda: pair.c.send(framed(b"plain text")))
    assert isinstance(pair.client.next("closed"), ConnectionFailedError)
    assert isinstance(pair.server.next("closed"), AuthenticationError)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_certificate_is_required(lt: LoopThread, certificates, version: str) -> None:
    """With TLS 1.3 the client hears of it only when it reads."""
    options = {"client_auth": "required", "protocols": (version,)}
    pair = Pair(lt, serving(certificates, **options), trusting(certificates))
    if version == "TLSv1.3":
        pair.client.next("connected")
    error = refused(pair)
    assert "ssl_certificate_location" in error.advice
    mine = certificates.issue("alice.test", common_name="alice")
    known = Pair(
        lt, serving(certificates, **options), trusting(certificates, certificate_file=mine)
    ).opened()
    assert known.s.peer_subject is not None
    assert "CN=alice" in known.s.peer_subject
    assert known.c.peer_subject is not None


def test_versions_that_do_not_meet(lt: LoopThread, certificates) -> None:
    error = refused(
        Pair(
            lt,
            serving(certificates, protocols=("TLSv1.3",)),
            trusting(certificates, protocols=("TLSv1.2",)),
        )
    )
    assert "versions" in error.advice


def test_a_handshake_that_never_ends_is_cut(lt: LoopThread, certificates) -> None:
    """Slow loris: ten seconds by default."""
    server = TlsServer(serving(certificates).context, handshake_ms=30)
    handler = Recorder()
    listener = lt.do(
        lt.loop.listen, "127.0.0.1", 0, lambda c: handler, max_frame_bytes=100, tls=server
    )
    with socket.create_connection(("127.0.0.1", listener.port)) as sock:
        sock.settimeout(PATIENCE_S)
        try:
            sock.sendall(b"\x16\x03\x01")
            received = sock.recv(1)
        except ConnectionError:  # it was cut before this was sent
            received = b""
        assert received == b""
    assert "handshake within 30 ms" in str(handler.next("closed"))


CLOSE_NOTIFY = bytes.fromhex("15030300020100")
"""An alert: what a broker or a load balancer that shuts down sends."""


def test_a_stream_that_breaks_may_be_tried_again(lt: LoopThread, certificates) -> None:
    """Closed in the middle of the handshake, or damaged later: nobody was refused."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for shaken, goodbye in ((False, b""), (False, CLOSE_NOTIFY), (True, b"")):
            client = Recorder()
            lt.do(
                lt.loop.connect,
                "127.0.0.1",
                server.getsockname()[1],
                client,
                max_frame_bytes=1 << 20,
                tls=trusting(certificates),
            )
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(PATIENCE_S)
                if shaken:
                    context = serving(certificates).context
                    secured = context.wrap_socket(accepted, server_side=True)
                    client.next("connected")
                    raw = socket.socket(fileno=secured.detach())
                    with raw:
                        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
                        error = client.next("closed")
                else:
                    accepted.recv(5)
                    accepted.sendall(goodbye)
                    accepted.shutdown(socket.SHUT_RDWR)
                    error = client.next("closed")
            assert isinstance(error, ConnectionFailedError), error


def test_the_standard_librarys_client_is_understood(lt: LoopThread, certificates) -> None:
    """An oracle for both directions, with bytes in awkward pieces."""

    def echo(c: Connection, frame: memoryview) -> None:
        c.send(framed(bytes(frame)))

    handler = Recorder(echo)
    listener = lt.do(
        lt.loop.listen,
        "127.0.0.1",
        0,
        lambda c: handler,
        max_frame_bytes=1 << 20,
        tls=serving(certificates),
    )
    context = ssl.create_default_context(cafile=certificates.ca_file)
    raw = socket.create_connection(("127.0.0.1", listener.port))
    with context.wrap_socket(raw, server_hostname="localhost") as sock:
        sock.settimeout(PATIENCE_S)
        payload = b"".join(framed(bytes(range(256)) * 400))
        for at in range(0, len(payload), 7_001):
            sock.sendall(payload[at : at + 7_001])
        got = b""
        while len(got) < len(payload):
            got += sock.recv(65_536)
        assert got == payload


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"certificate_file": None}, "ssl_certificate_location"),
        ({"client_auth": "maybe"}, "none, requested, required"),
        ({"client_auth": "required", "ca_file": None}, "ssl_ca_location"),
        ({"protocols": ("SSLv3",)}, "TLSv1.2, TLSv1.3"),
        ({"protocols": ()}, "TLSv1.2"),
        ({"ciphers": ("NONSENSE",)}, "ssl_cipher_suites"),
        ({"ca_file": "/no/such/file"}, "cannot be read"),
        ({"certificate_file": __file__}, "must be PEM"),
    ],
)
def test_options_that_cannot_work(certificates, options: dict[str, Any], why: str) -> None:
    base: dict[str, Any] = {
        "certificate_file": certificates.issue("localhost"),
        "ca_file": certificates.ca_file,
    }
    with pytest.raises(ConfigError, match=why):
        server_context(TlsOptions(**{**base, **options}))


def test_names_as_kafka_writes_them() -> None:
    """RFC 2253: the last part first, and what has a meaning is escaped."""
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Kohort, Ltd"),),
        (("commonName", " alice "),),
    )
    assert distinguished_name(subject) == "CN=\\ alice\\ ,O=Kohort\\, Ltd,C=DE"


def test_no_password_in_the_repr() -> None:
    assert "hush" not in repr(TlsOptions(key_password="hush"))
