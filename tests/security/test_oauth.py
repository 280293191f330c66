"""OAUTHBEARER over the wire: providers, the client-credentials flow, signed tokens, renewal."""

from __future__ import annotations

import json
import queue
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from kohort import Admin, Producer
from kohort.broker.security.jwks import Jwks
from kohort.client.cluster.credentials import Credentials
from kohort.client.cluster.oidc import fetch_token
from kohort.client.common.config import AdminConfig
from kohort.errors import AuthenticationError, ConfigError, ConnectionFailedError, KohortError
from kohort.sasl.oauthbearer import Token
from kohort.sasl.tokens import TokenRules
from kohort.testing import Cluster
from tests.patience import PATIENCE_S

Start = Callable[..., Cluster]
UNSECURED = {
    "users": {},
    "sasl_enabled_mechanisms": ("OAUTHBEARER",),
    "sasl_oauthbearer_unsecured": True,
}


def unsecured(user: str, lasts_s: float = 3_600) -> str:
    parts = [{"alg": "none"}, {"sub": user, "exp": time.time() + lasts_s}]
    return (
        ".".join(
            urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
        )
        + "."
    )


def settings(cluster: Cluster, provider: Callable[[], Any]) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_provider": provider,
    }


def test_a_provider_is_asked_once_for_all_connections(start: Start) -> None:
    cluster = start("SASL_PLAINTEXT", **UNSECURED)
    asked: list[str] = []

    def provider() -> Token:
        asked.append(threading.current_thread().name)
        return Token(unsecured("carol"), int(time.time() * 1_000) + 3_600_000, "carol")

    with Producer(**settings(cluster, provider)) as producer:
        producer.send("t", b"x").result(PATIENCE_S)
    assert asked == ["kohort-token"]
    with Admin(**settings(cluster, lambda: unsecured("carol"))) as admin:
        admin.describe_cluster()


def test_a_session_ends_with_its_token_and_is_renewed(start: Start) -> None:
    """KIP-368: with a fresh token, over the same connection."""
    # Tokens that expire on the way, on a machine that stands still, are taken all the same.
    cluster = start("SASL_PLAINTEXT", **UNSECURED, sasl_oauthbearer_clock_skew_seconds=600)
    asked: list[int] = []

    def provider() -> Token:
        asked.append(1)
        return Token(unsecured("carol", 0.8), int(time.time() * 1_000) + 800)

    with Producer(**settings(cluster, provider)) as producer:
        end = time.monotonic() + PATIENCE_S
        while len(asked) < 3:
            assert time.monotonic() < end
            producer.send("t", b"x").result(PATIENCE_S)


def test_a_token_that_is_refused(start: Start) -> None:
    cluster = start("SASL_PLAINTEXT", **UNSECURED)
    token = unsecured("carol", -3_600)
    with (
        Admin(**settings(cluster, lambda: token)) as admin,
        pytest.raises(AuthenticationError, match="OAUTHBEARER") as caught,
    ):
        admin.describe_cluster()
    assert token not in str(caught.value)


def test_providers_that_fail(start: Start) -> None:
    """What cannot be reached may be tried again; everything else is final. Texts stay hidden."""
    cluster = start("SASL_PLAINTEXT", **UNSECURED)
    tries: list[int] = []

    def unreachable() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionRefusedError("no issuer")
        return unsecured("carol")

    with Admin(**settings(cluster, unreachable)) as admin:
        assert admin.describe_cluster().nodes
    assert len(tries) == 3

    def broken() -> str:
        raise ValueError("hidden-token")

    with (
        Admin(**settings(cluster, broken)) as admin,
        pytest.raises(AuthenticationError, match="ValueError") as caught,
    ):
        admin.describe_cluster()
    assert "hidden-token" not in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (None, "a NoneType, not a str"),
        (5, "a int, not a str"),
        (Token(b"t"), "value is of type bytes"),  # type: ignore[arg-type]
        (Token("t", expires_ms="soon"), "expires_ms is of type str"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_provider_that_returns_no_token(start: Start, returned: object, named: str) -> None:
    """Spec 8: a user's function of a wrong type fails once, and the error says what it returned."""
    cluster = start("SASL_PLAINTEXT", **UNSECURED)
    with (
        Admin(**settings(cluster, lambda: returned)) as admin,
        pytest.raises(AuthenticationError, match=named),
    ):
        admin.describe_cluster()


class StoppedLoop:
    """A loop's clock and its mailbox: `fetched` waits for what a thread has sent, and runs it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def wall_ms(self) -> int:
        return self.now_ms

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> None:
        self.calls.put(lambda: fn(*args))

    def fetched(self) -> None:
        self.calls.get(timeout=PATIENCE_S)()


def test_a_token_is_used_until_it_ends_while_no_new_one_can_be_got(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else an issuer that is down for a moment ends a client that is logged in."""
    loop, asked = StoppedLoop(), list[int]()
    outcomes: list[Token | Exception] = [
        Token("first", 100_000, "carol"),
        ConnectionRefusedError("no issuer"),
        ValueError("hidden-token"),
        ConnectionRefusedError("no issuer"),
        Token("second", 400_000, "carol"),
    ]

    def provider() -> Token:
        asked.append(loop.now_ms)
        outcome = outcomes[len(asked) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    credentials = Credentials(
        AdminConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_provider=provider,
        )
    )

    def login(now_ms: int) -> Any:
        loop.now_ms, found = now_ms, list[Any]()
        before = len(asked)
        credentials.begin(loop, found.append)  # type: ignore[arg-type]
        if not found:
            loop.fetched()
        assert len(asked) - before <= 1
        answer = found.pop()
        return answer if isinstance(answer, KohortError) else answer.first().split(b" ")[1]

    first = b"first\x01\x01"
    assert [login(at) for at in (0, 79_999, 80_001, 89_000, 95_000)] == [first] * 5
    assert asked == [0, 80_001, 95_000]  # for ten seconds after a failure it is not asked again
    assert caplog.text.count("no new token can be got") == 2
    assert "hidden-token" not in caplog.text
    assert isinstance(login(99_500), ConnectionFailedError)  # it could end on the way
    assert login(99_600) == b"second\x01\x01"


class Issuer:
    """A token endpoint, and a JWKS document, on this machine."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (200, b"{}")
        self.asked: list[tuple[str, str, bytes]] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                issuer.asked.append((self.path, self.headers["Authorization"], body))
                self._say()

            def do_GET(self) -> None:
                issuer.asked.append((self.path, "", b""))
                self._say()

            def _say(self) -> None:
                code, body = issuer.answer
                if not code:  # no HTTP
                    self.wfile.write(body)
                    return
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", "file:///etc/passwd")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: Any) -> None:
                """Quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.stop()


def test_client_credentials(start: Start, issuer: Issuer) -> None:
    """RFC 6749, 4.4, as KIP-768 does it: the secret goes into the header, urlencoded."""
    cluster = start("SASL_PLAINTEXT", **UNSECURED)
    token = {"access_token": unsecured("carol"), "expires_in": 3_600}
    issuer.answer = (200, json.dumps(token).encode())
    own = settings(cluster, lambda: "")
    del own["sasl_oauthbearer_token_provider"]
    own |= {
        "sasl_oauthbearer_token_endpoint_url": issuer.url,
        "sasl_oauthbearer_client_id": "me:1",
        "sasl_oauthbearer_client_secret": "s&cret",
        "sasl_oauthbearer_scope": "read write",
    }
    with Admin(**own) as admin:
        admin.describe_cluster()
    path, authorization, body = issuer.asked[0]
    assert path == "/token"
    assert b64decode(authorization.removeprefix("Basic ")) == b"me%3A1:s%26cret"
    assert body == b"grant_type=client_credentials&scope=read+write"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, b""), AuthenticationError),
        ((302, b""), AuthenticationError),
        ((200, b"[]"), AuthenticationError),
        ((200, b'{"access_token": ""}'), AuthenticationError),
        ((200, b"[" * 100_000), AuthenticationError),
        ((503, b""), ConnectionFailedError),
        ((429, b""), ConnectionFailedError),
    ],
)
def test_an_issuer_that_refuses(
    issuer: Issuer, answer: tuple[int, bytes], error: type[Exception]
) -> None:
    """A redirect is not followed (CVE-2025-27817)."""
    issuer.answer = answer
    with pytest.raises(error) as caught:
        fetch_token(issuer.url, "me", "hidden", None, None, 100_000, 0)
    assert "hidden" not in str(caught.value)
    assert len(issuer.asked) == 1


def test_extensions_are_sent_with_the_token(issuer: Issuer) -> None:
    issuer.answer = (200, b'{"access_token": "t"}')
    loop, found = StoppedLoop(), list[Any]()
    credentials = Credentials(
        AdminConfig.from_mapping(
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": issuer.url,
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "hidden",
                "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool=2",
            }
        )
    )
    credentials.begin(loop, found.append)  # type: ignore[arg-type]
    loop.fetched()
    sent = found[0].first().decode().strip("\x01").split("\x01")
    assert sent == ["n,,", "auth=Bearer t", "logicalCluster=lkc-1", "identityPoolId=pool=2"]


@pytest.mark.parametrize(
    ("lasts_s", "ends_ms"),
    [
        (b"3599", 3_600_000),
        (b'"3599"', 3_600_000),  # Azure AD v1
        (b"0.5", 1_500),
        (b"Infinity", None),
        (b"NaN", None),
        (b"1e308", None),
        (b"1" + b"0" * 400, None),
        (b'"' + b"9" * 5_000 + b'"', None),
        (b'"soon"', None),
        (b"true", None),
        (b"null", None),
    ],
    ids=lambda value: str(value)[:12],
)
def test_how_long_a_token_lasts(issuer: Issuer, lasts_s: bytes, ends_ms: int | None) -> None:
    """Where the answer does not say, each connection asks for a token of its own."""
    issuer.answer = (200, b'{"access_token": "t", "expires_in": ' + lasts_s + b"}")
    found = fetch_token(issuer.url, "me", "hidden", None, None, 100_000, 1_000)
    assert found == Token("t", ends_ms, "me")


@pytest.mark.parametrize(
    "raw",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"access',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
        b"HTTP/1.1 408 Request Timeout\r\n\r\n",
        b"",
    ],
    ids=["length", "chunk", "408", "nothing"],
)
def test_an_answer_that_is_cut_off_may_be_tried_again(issuer: Issuer, raw: bytes) -> None:
    """A refusal would end the client."""
    issuer.answer = (0, raw)
    with pytest.raises(ConnectionFailedError):
        fetch_token(issuer.url, "me", "hidden", None, None, 100_000, 0)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://example.com/", "ftp://x/", "x", ""])
def test_only_https_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="https"):
        fetch_token(url, "me", "hidden", None, None, 5_000, 0)
    if url:
        with pytest.raises(ConfigError, match="https"):
            Admin(
                security_protocol="SASL_SSL",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauthbearer_token_endpoint_url=url,
                sasl_oauthbearer_client_id="a",
                sasl_oauthbearer_client_secret="b",
            )


def signed(private: Any, kid: str) -> str:
    jwt = pytest.importorskip("jwt")
    claims = {"sub": "dave", "exp": time.time() + 60, "aud": "kafka", "iss": "us"}
    return jwt.encode(claims, private, "ES256", headers={"kid": kid})


def document(**keys: Any) -> bytes:
    jwt = pytest.importorskip("jwt")
    made = [
        {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": kid}
        for kid, key in keys.items()
    ]
    return json.dumps({"keys": made}).encode()


def new_key() -> Any:
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    return ec.generate_private_key(ec.SECP256R1())


def test_signed_tokens(start: Start, tmp_path: Path) -> None:
    """The broker's side of OIDC: keys in a file, issuer and audience checked."""
    key, other = new_key(), new_key()
    file = tmp_path / "jwks.json"
    file.write_bytes(document(one=key))
    cluster = start(
        "SASL_PLAINTEXT",
        users={},
        sasl_enabled_mechanisms=("OAUTHBEARER",),
        sasl_oauthbearer_jwks_endpoint_url=file.as_uri(),
        sasl_oauthbearer_expected_issuer="us",
        sasl_oauthbearer_expected_audience=("kafka",),
    )
    with Admin(**settings(cluster, lambda: signed(key, "one"))) as admin:
        admin.describe_cluster()
    for bad in (signed(other, "one"), signed(key, "two"), unsecured("dave")):
        with (
            Admin(**settings(cluster, lambda bad=bad: bad)) as admin,
            pytest.raises(AuthenticationError),
        ):
            admin.describe_cluster()


def test_keys_are_read_again(issuer: Issuer) -> None:
    """For a key that is not known, once in a minute; what cannot be read changes nothing."""
    pytest.importorskip("jwt")
    first, second = new_key(), new_key()
    issuer.answer = (200, document(one=first))
    now_s = [0.0]
    rules = TokenRules()
    keys = Jwks(issuer.url, rules, 3_600_000, clock=lambda: now_s[0])
    now_ms = int(time.time() * 1_000)
    assert keys.verify(signed(first, "one"), now_ms)[0] == "dave"
    issuer.answer = (200, document(one=first, two=second))

    def try_second() -> bool:
        try:
            keys.verify(signed(second, "two"), now_ms)
        except AuthenticationError:
            return False
        return True

    assert not try_second()
    assert len(issuer.asked) == 1
    now_s[0] = 61.0
    end = time.monotonic() + PATIENCE_S
    while not try_second():
        assert time.monotonic() < end
        now_s[0] += 61.0
    issuer.answer = (500, b"")
    now_s[0] += 4_000
    asked = len(issuer.asked)
    while len(issuer.asked) == asked:
        assert time.monotonic() < end
        assert keys.verify(signed(first, "one"), now_ms)[0] == "dave"
    assert try_second()


def test_a_refused_read_of_keys_keeps_no_connection(issuer: Issuer) -> None:
    issuer.answer = (500, b"")
    with pytest.raises(ConfigError, match="500") as caught:
        Jwks(issuer.url, TokenRules(), 1)
    assert isinstance(caught.value.__cause__, HTTPError)
    assert caught.value.__cause__.fp.closed


@pytest.mark.parametrize("raw", [b"SSH-2.0\r\n", b"", b"[" * 100_000], ids=["ssh", "cut", "deep"])
def test_keys_that_are_none_leave_those_of_before(
    issuer: Issuer, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer that is no HTTP, or JSON without an end."""
    pytest.importorskip("jwt")
    key, now_s = new_key(), [0.0]
    issuer.answer = (200, document(one=key))
    keys = Jwks(issuer.url, TokenRules(), 1_000, clock=lambda: now_s[0])
    issuer.answer = (200, raw) if raw.startswith(b"[") else (0, raw)
    with pytest.raises(ConfigError, match="cannot be read"):
        Jwks(issuer.url, TokenRules(), 1)
    now_s[0] = 2.0
    assert keys.verify(signed(key, "one"), int(time.time() * 1_000))[0] == "dave"
    for thread in threading.enumerate():
        if thread.name == "kohort-jwks":
            thread.join(PATIENCE_S)
    assert "the keys of tokens are those of before" in caplog.text


@pytest.mark.parametrize("url", ["http://example.com/", "ftp://x/y", "file:///no/such/file", "x"])
def test_keys_that_cannot_be_read(url: str) -> None:
    with pytest.raises(ConfigError, match="sasl_oauthbearer_jwks_endpoint_url"):
        Jwks(url, TokenRules(), 1)
