"""TLS between a connection and its socket.

Rules:
- The library encrypts in memory (`ssl.MemoryBIO`), and this module moves the bytes: so a write
  never has to be repeated unchanged, and reading never waits for writing.
- A byte counts as sent when the kernel has its encrypted form, so that the connection's
  own queue and its limits hold for TLS too.
- Decrypted data that was not taken is asked for again in the loop's next turn: the kernel does not
  know of it.
- A certificate that is not believed is an `AuthenticationError`, which says what to do; TLS 1.2 is
  the least that is spoken.

Shell: sockets.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from kohort.errors import AuthenticationError, ConfigError, KohortError
from kohort.lean import dataclass, field
from kohort.net.connection import Acceptor, Buffer, Connection, ConnectionHandler
from kohort.net.poller import READ, WRITE
from kohort.net.ports import LoopPort

PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_CIPHERTEXT_BYTES: Final = 131_072  # read from the socket at once
_RECORD_BYTES: Final = 16_384
_SEND_BYTES: Final = 262_144  # encrypted at once
_REFUSING_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")
_HOSTNAME_MISMATCH: Final = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH


@dataclass(frozen=True)
class TlsOptions:
    """Files and rules of one side; see Kafka's `ssl.*` settings."""

    ca_file: str | None = None
    """Certificates (PEM) that are believed; None: the system's, for a client."""
    certificate_file: str | None = None
    """This side's certificate and those between it and the CA (PEM)."""
    key_file: str | None = None
    """Its key (PEM); None: `certificate_file` holds it."""
    key_password: str | None = field(default=None, repr=False)
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    """OpenSSL's names; they limit TLS 1.2 only."""
    verify_hostname: bool = True
    """A client compares the broker's name with its certificate."""
    client_auth: str = "none"
    """A broker asks clients for certificates: none, requested, required."""


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """What all connections of a client share. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.verify_hostname
    if options.ca_file is None:
        context.load_default_certs()
    _prepare(context, options)
    return context


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """What all connections of a broker share. Raises ConfigError."""
    if options.certificate_file is None:
        raise ConfigError(
            "TLS needs the broker's certificate; name it in ssl_certificate_location, and its key "
            "in ssl_key_location"
        )
    mode = CLIENT_AUTH.get(options.client_auth)
    if mode is None:
        raise ConfigError(
            f"ssl_client_auth={options.client_auth!r}; it is one of {', '.join(CLIENT_AUTH)}"
        )
    if mode != ssl.CERT_NONE and options.ca_file is None:
        raise ConfigError(
            f"ssl_client_auth={options.client_auth} needs the CA that clients' certificates are "
            "signed by; name it in ssl_ca_location"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = mode
    _prepare(context, options)
    return context


def _prepare(context: ssl.SSLContext, options: TlsOptions) -> None:
    unknown = [name for name in options.protocols if name not in PROTOCOLS]
    if unknown or not options.protocols:
        raise ConfigError(f"ssl_enabled_protocols={unknown}; there are {', '.join(PROTOCOLS)}")
    versions = sorted(PROTOCOLS[name] for name in options.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if options.ciphers:
        try:
            context.set_ciphers(":".join(options.ciphers))
        except ssl.SSLError as error:
            raise ConfigError(f"ssl_cipher_suites={options.ciphers}: {_reason(error)}") from error
    if options.ca_file is not None:
        with _reading("ssl_ca_location", options.ca_file):
            context.load_verify_locations(options.ca_file)
    if options.certificate_file is not None:
        files = " and ".join(filter(None, (options.certificate_file, options.key_file)))
        with _reading("ssl_certificate_location, ssl_key_location", files):
            # A password that is always given, or the library would ask for it at the terminal.
            context.load_cert_chain(
                options.certificate_file, options.key_file, options.key_password or ""
            )


@contextmanager
def _reading(setting: str, files: str) -> Generator[None]:
    """What goes wrong with a file becomes a ConfigError that names setting and file."""
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError(
            f"{setting}: {files} cannot be used ({_reason(error)}); the files must be PEM, "
            "the key must belong to the certificate, and ssl_key_password to the key"
        ) from None
    except OSError as error:
        raise ConfigError(f"{setting}: {files} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class TlsClient:
    """For `Loop.connect(tls=...)`. `host` is the name that the certificate must be for."""

    context: ssl.SSLContext
    host: str

    def connection(
        self, loop: LoopPort, handler: ConnectionHandler, peer: str, max_frame_bytes: int
    ) -> Connection:
        """A connection that is not open yet."""
        return TlsConnection(self, None, loop, handler, peer, max_frame_bytes)


@dataclass(frozen=True)
class TlsServer:
    """For `Loop.listen(tls=...)`."""

    context: ssl.SSLContext
    handshake_ms: int = 10_000
    """A client that has not finished its handshake in this time is disconnected."""

    def connection(
        self,
        loop: LoopPort,
        handler: ConnectionHandler,
        peer: str,
        max_frame_bytes: int,
        listener: Acceptor,
    ) -> Connection:
        """A connection that was accepted."""
        return TlsConnection(self, listener, loop, handler, peer, max_frame_bytes)


class TlsTransport:
    """A `Transport`: an encrypted stream over a non-blocking socket."""

    def __init__(self, sock: socket.socket, side: TlsClient | TlsServer) -> None:
        self._socket = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = side.context.wrap_bio(
            self._in,
            self._out,
            server_side=isinstance(side, TlsServer),
            server_hostname=side.host if isinstance(side, TlsClient) else None,
        )
        self._unsent = memoryview(b"")
        self._owed = 0
        """Bytes at the head of the connection's queue that are encrypted already."""
        self.has_more = False
        """Whether there may be more to read although the socket is not readable."""
        self.refusal: ssl.SSLError | None = None
        """What the library or the other side refused the stream for."""
        self.fileno, self.setsockopt = sock.fileno, sock.setsockopt
        self.getpeername, self.getsockname = sock.getpeername, sock.getsockname

    def do_handshake(self) -> bool:
        """Continue the handshake; True when it is done. Raises OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._take_out()
                if not self._feed():
                    return False
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # closed, or close_notify: no refusal
                raise ConnectionResetError(_CLOSED) from None
            except ssl.SSLError as error:
                self.refusal = error
                with suppress(OSError):  # the alert that says why
                    self._take_out()
                raise
            else:
                self._take_out()
                self.has_more = True  # what came behind the handshake
                return True

    @property
    def blocked(self) -> bool:
        """Whether encrypted bytes wait for the kernel."""
        return len(self._unsent) > 0

    def subject(self) -> str | None:
        """The subject of the other side's certificate; None when it sent none."""
        certificate: Any = self._tls.getpeercert()
        return distinguished_name(certificate.get("subject", ())) if certificate else None

    # -- reading

    def recv(self, n: int, /) -> bytes:
        """Up to `n` bytes; empty at the end of the stream."""
        pieces: list[bytes] = []
        room = n
        while room > 0:
            try:
                piece = self._tls.read(min(room, _RECORD_BYTES))
            except ssl.SSLWantReadError:
                self.has_more = False
                if pieces:
                    break
                if self._feed():
                    continue
                raise BlockingIOError from None
            except ssl.SSLEOFError:
                return b"".join(pieces)  # without a goodbye: frames tell whether all is there
            except ssl.SSLError as error:
                self._judge(error)
                raise
            self.has_more = True
            if not piece:
                break
            pieces.append(piece)
            room -= len(piece)
        self._answer_library()
        return b"".join(pieces)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Fill as much of `buffer` as there is; 0 at the end of the stream."""
        filled, size = 0, len(buffer)
        while filled < size:
            try:
                room: Any = buffer[filled:]  # typed as a bytearray, and any buffer will do
                count: Any = self._tls.read(size - filled, room)
            except ssl.SSLWantReadError:
                self.has_more = False
                if self._feed():
                    continue
                if filled:
                    break
                raise BlockingIOError from None
            except ssl.SSLEOFError:
                break
            except ssl.SSLError as error:
                self._judge(error)
                raise
            self.has_more = True
            if not count:
                break
            filled += count
        self._answer_library()
        return filled

    def _judge(self, error: ssl.SSLError) -> None:
        """An error after the handshake: a refusal, as TLS 1.3 sends it, or a stream that broke."""
        reason = _reason(error).upper()
        if "ALERT" in reason and any(word in reason for word in _REFUSING_ALERTS):
            self.refusal = error

    def _feed(self) -> bool:
        """Give the library what the socket has; False when it has nothing."""
        try:
            data = self._socket.recv(_CIPHERTEXT_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return True

    def _answer_library(self) -> None:
        """Send what reading made the library write (new keys). If that fails, writing will tell."""
        if self._out.pending:
            with suppress(OSError):
                self._take_out()

    # -- writing

    def send(self, data: Buffer, /) -> int:
        """Encrypt and send; how many bytes of `data` have gone."""
        if self._unsent and not self._push():
            raise BlockingIOError
        begun, self._owed = self._owed, 0
        view: Any = memoryview(data)[begun : begun + _SEND_BYTES]
        if len(view):
            self._tls.write(view)
        self._take_out()
        taken = begun + len(view)
        if self._unsent:
            self._owed = 1  # the last byte stays in the queue, so that we are called again
            return taken - 1
        return taken

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        """As `send`, of the first of these bytes."""
        if len(buffers[0]) >= _RECORD_BYTES:
            return self.send(buffers[0])
        joined: list[Buffer] = []
        size = 0
        for piece in buffers:
            joined.append(memoryview(piece)[: _SEND_BYTES - size])
            size += len(joined[-1])
            if size >= _SEND_BYTES:
                break
        return self.send(b"".join(joined))

    def _take_out(self) -> None:
        """Send what the library has written."""
        if self._out.pending:
            fresh = self._out.read()
            self._unsent = memoryview(bytes(self._unsent) + fresh if self._unsent else fresh)
        if self._unsent:
            self._push()

    def _push(self) -> bool:
        """Send on; True when everything has gone."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return False
        return True

    def abandon(self) -> None:
        """Close the descriptor without a word: the stream is another process's."""
        self._socket.close()

    def close(self) -> None:
        """Say goodbye, if there is room for it, and close the socket."""
        if not self._unsent and self.refusal is None:
            with suppress(OSError, ValueError):  # the other side may have gone, or never spoken
                try:
                    self._tls.unwrap()
                except ssl.SSLWantReadError:
                    self._take_out()
        self._socket.close()


class TlsConnection(Connection):
    """A connection whose socket is encrypted. `connected` is called after the handshake."""

    __slots__ = ("_side", "_subject", "_tls")

    def __init__(
        self,
        side: TlsClient | TlsServer,
        listener: Acceptor | None,
        loop: LoopPort,
        handler: ConnectionHandler,
        peer: str,
        max_frame_bytes: int,
    ) -> None:
        super().__init__(loop, handler, peer, max_frame_bytes, listener)
        self._side = side
        self._tls: TlsTransport | None = None
        self._subject: str | None = None

    @property
    def peer_subject(self) -> str | None:
        """The distinguished name of the other side's certificate (RFC 2253)."""
        return self._subject

    def _open(self, sock: socket.socket) -> None:
        self._transport = self._tls = TlsTransport(sock, self._side)
        if isinstance(self._side, TlsServer):
            limit_ms = self._side.handshake_ms
            self._deadline = self._loop.call_at(
                self._loop.now_ms() + limit_ms,
                self._fail,
                f"{self.peer} did not finish the TLS handshake within {limit_ms} ms",
            )
        self._mask = READ
        self._loop.watch(sock.fileno(), READ, self._handshake_ready)
        self._handshake_ready(READ)

    def _handshake_ready(self, mask: int) -> None:
        tls = self._tls
        assert tls is not None
        try:
            done = tls.do_handshake()
        except OSError as error:
            self._fail(f"the TLS handshake with {self.peer} failed: {error}")
            return
        if not done:
            self._interest(READ | WRITE if tls.blocked else READ)
            return
        self._subject = tls.subject()
        self._loop.unwatch(tls.fileno())
        opened: Any = tls  # it replaces the socket
        super()._open(opened)
        self._look_for_more()

    def _read(self) -> None:
        super()._read()
        self._look_for_more()

    def resume_reading(self) -> None:
        """Take frames again; also those that are decrypted already."""
        super().resume_reading()
        self._look_for_more()

    def _look_for_more(self) -> None:
        if self._tls is not None and self._tls.has_more and not (self._paused or self.is_closed):
            self._tls.has_more = False
            self._loop.call_soon(self._more)

    def _more(self) -> None:
        if self.is_closed or self._tls is None:
            return
        if self._paused or self._rest is not None:
            self._tls.has_more = True  # for a later resume
            return
        self._guarded(self._read)

    def _fail(self, text: str) -> None:
        refusal = self._tls.refusal if self._tls is not None else None
        if refusal is None:
            super()._fail(text)
        else:
            self.close(_explained(refusal, self.peer, isinstance(self._side, TlsServer)))

    def abandon(self) -> None:
        """As `Connection.abandon`."""
        self.is_closed = True
        if self._tls is not None:
            self._tls.abandon()

    def close(self, error: KohortError | None = None) -> None:
        """As `Connection.close`."""
        super().close(error)
        self._tls = None


_CLOSED: Final = (
    "it was closed in the middle of it; does the other side speak TLS on this port? check "
    "security_protocol on both sides"
)


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's word for it; errors of Python's own have none."""
    return getattr(error, "reason", None) or str(error)


def _explained(error: ssl.SSLError, peer: str, is_broker: bool) -> AuthenticationError:
    """What a failed handshake means, and what to do about it."""
    reason = _reason(error).lower().replace("_", " ")
    advice = "check the certificates and the TLS versions of both sides"
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not believed: {error.verify_message}"
        advice = "name the certificate of the CA that signed it in ssl_ca_location"
        if error.verify_code in _HOSTNAME_MISMATCH:
            advice = (
                "connect by a name that is in its certificate, or make one for this name "
                "(ssl_endpoint_identification_algorithm=none trusts any name)"
            )
    elif "wrong version number" in reason or "record layer" in reason or "http request" in reason:
        reason = "it does not speak TLS on this port"
        advice = "check the port and security_protocol on both sides"
    elif "alert" in reason or "certificate required" in reason:
        reason = f"the other side refused: {reason}"
        if not is_broker and "version" not in reason:
            advice = (
                "it may want a certificate of ours: name one that it believes in "
                "ssl_certificate_location, and its key in ssl_key_location"
            )
    return AuthenticationError(reason, mechanism="SSL", broker=peer, advice=advice)


_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A subject as `ssl` gives it, in the form of RFC 2253, which Kafka's principals have."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text
