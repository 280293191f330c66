"""Spec of issue 4 and 5, security: the mechanisms as machines, with the vectors of their RFCs."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import AuthenticationError, ConfigError
from kohort.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from kohort.sasl.decoys import Decoys
from kohort.sasl.mechanism import Accepted, Challenge
from kohort.sasl.oauthbearer import OAuthBearerClient, OAuthBearerServer, Token
from kohort.sasl.plain import PlainClient, PlainServer
from kohort.sasl.saslprep import require_prepared, saslprep
from kohort.sasl.scram import (
    MAX_CLIENT_ITERATIONS,
    Held,
    ScramClient,
    ScramCredential,
    ScramServer,
    credential_of,
    escaped,
    salted_password,
    unescaped,
    verifies,
)
from kohort.sasl.tokens import SignedTokens, TokenRules, verify_unsecured

SECRET = "pencil-Geheim"


def kept(mechanism: str, password: str, salt: bytes = b"salt", i: int = 4096) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, i), salt, i)


def server(mechanism: str, password: str, user: str = "user", nonce: str = "srv") -> ScramServer:
    credential = kept(mechanism, password)
    decoys = Decoys(b"secret")

    def held(name: str) -> Held:
        exists = name == user
        return Held(credential if exists else decoys.credential(mechanism, name), exists)

    return ScramServer(mechanism, nonce, held)


def run(client: Any, other: Any) -> Accepted:
    """The whole exchange."""
    message = client.first()
    while True:
        step = other.evaluate(message)
        if isinstance(step, Accepted):
            assert client.answer(step.data) is None
            return step
        message = client.answer(step.data)


def test_the_vector_of_rfc_7677() -> None:
    """RFC 7677, section 3: every byte of the exchange, on both sides."""
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    made = kept(SCRAM_SHA_256, "pencil", salt)
    other = ScramServer(SCRAM_SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", lambda _: Held(made, True))
    client = ScramClient(SCRAM_SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    first = client.first()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    step = other.evaluate(first)
    assert step == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.answer(step.data)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    end = other.evaluate(final)
    assert isinstance(end, Accepted)
    assert end.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert end.user == "user"
    assert client.answer(end.data) is None


NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20)


@settings(max_examples=25, deadline=None)
@given(user=NAMES, password=NAMES, mechanism=st.sampled_from([SCRAM_SHA_256, SCRAM_SHA_512]))
def test_scram_lets_in_who_knows_the_password(user: str, password: str, mechanism: str) -> None:
    end = run(ScramClient(mechanism, user, password, "c"), server(mechanism, password, user=user))
    assert end.user == user
    client = ScramClient(mechanism, user, password + "x", "c")
    with pytest.raises(AuthenticationError, match="wrong name or password"):
        run(client, server(mechanism, password, user=user))


@given(NAMES)
def test_names_are_escaped(name: str) -> None:
    """RFC 5802, section 5.1: `=` and `,` in names."""
    assert unescaped(escaped(name)) == name
    assert "," not in escaped(name)


@pytest.mark.parametrize("text", ["a=", "a=2", "a=3d", "=", "x=2C=4"])
def test_a_name_escaped_wrongly_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unescaped(text)


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        ("r=other,s=c2FsdA==,i=4096", "nonce does not continue"),
        ("r=c,s=c2FsdA==,i=4096", "nonce does not continue"),
        ("r=cS,s=c2FsdA==,i=4095", "4095 iterations"),
        ("r=cS,s=c2FsdA==,i=1", "1 iterations"),
        (f"r=cS,s=c2FsdA==,i={MAX_CLIENT_ITERATIONS + 1}", "iterations"),
        ("r=cS,s=c2FsdA==,i=99999999999", "not SCRAM"),
        ("r=cS,s=,i=4096", "not SCRAM"),
        ("r=cS,s=!!,i=4096", "not SCRAM"),
        ("m=x,r=cS,s=c2FsdA==,i=4096", "not SCRAM"),
        ("", "not SCRAM"),
        ("e=other-error", "not SCRAM"),
    ],
)
def test_a_client_refuses_a_hostile_broker(challenge: str, why: str) -> None:
    client = ScramClient(SCRAM_SHA_256, "user", SECRET, "c")
    client.first()
    with pytest.raises(AuthenticationError, match=why) as caught:
        client.answer(challenge.encode())
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("proof", ["v=AAAA", "v=", "v=!", "e=invalid-proof", "", "x"])
def test_a_client_refuses_a_broker_that_does_not_know_it(proof: str) -> None:
    """RFC 5802, section 3: the broker proves itself too."""
    other = server(SCRAM_SHA_512, SECRET)
    client = ScramClient(SCRAM_SHA_512, "user", SECRET, "c")
    step = other.evaluate(client.first())
    assert isinstance(step, Challenge)
    client.answer(step.data)
    with pytest.raises(AuthenticationError):
        client.answer(proof.encode())


def replies(change: Any) -> bytes:
    """What the final message becomes when it is changed, given to a server."""
    other = server(SCRAM_SHA_256, SECRET)
    client = ScramClient(SCRAM_SHA_256, "user", SECRET, "c")
    step = other.evaluate(client.first())
    assert isinstance(step, Challenge)
    final = client.answer(step.data)
    assert final is not None
    end = other.evaluate(change(final))
    assert isinstance(end, Accepted)
    return end.data


def test_the_last_nonce_must_be_ours() -> None:
    """CVE-2024-56128; the nonce may begin twice with the client's part (librdkafka < 2.6.1)."""
    with pytest.raises(AuthenticationError, match="nonce is not ours"):
        replies(lambda final: final.replace(b"r=csrv", b"r=cxxx"))
    with pytest.raises(AuthenticationError, match="wrong name or password"):
        # Gets past the check of the nonce, not past the proof.
        replies(lambda final: final.replace(b"r=csrv", b"r=ccsrv"))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.replace(b"c=biws", b"c=eSws"),
        lambda f: f.replace(b",p=", b",q="),
        lambda f: f[:-8],
        lambda f: f + b"A",
        lambda f: b"",
        lambda f: b"\xff",
        lambda f: b",p=",
        lambda f: b"c=biws,r=csrv,p=" + b64encode(bytes(32)),
    ],
)
def test_a_server_refuses_what_is_not_a_proof(change: Any) -> None:
    with pytest.raises(AuthenticationError) as caught:
        replies(change)
    assert SECRET not in str(caught.value)


@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_typed_error_or_a_step(data: bytes) -> None:
    """Hostile input: one family of errors."""
    machines: list[Any] = [
        server(SCRAM_SHA_256, SECRET),
        PlainServer(lambda user, password: False),
        OAuthBearerServer(lambda token: verify_unsecured(token, TokenRules(), 0)),
    ]
    for machine in machines:
        for _ in range(3):
            try:
                machine.evaluate(data)
            except AuthenticationError:
                break


def test_an_unknown_user_looks_like_a_known_one() -> None:
    """The salt of nobody is always the same for a name, and differs between names."""

    def salt_of(user: str) -> bytes:
        step = server(SCRAM_SHA_512, SECRET).evaluate(f"n,,n={user},r=c".encode())
        assert isinstance(step, Challenge)
        return step.data

    assert salt_of("nobody") == salt_of("nobody")
    assert salt_of("nobody") != salt_of("nobodx")
    with pytest.raises(AuthenticationError, match="wrong name or password"):
        run(ScramClient(SCRAM_SHA_512, "nobody", SECRET, "c"), server(SCRAM_SHA_512, SECRET))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("p=tls-unique,,n=user,r=c", "channel binding"),
        ("n,a=admin,n=user,r=c", "somebody else"),
        ("n,,m=x,n=user,r=c", "extension"),
        ("n,,n=user,r=c,tokenauth=true", "delegation"),
        ("n,,n=user", "'r' is missing"),
        ("n,,n=user,r=", "nonce"),
        ("n,,n=us=er,r=c", "=3D"),
        ("n", "too short"),
    ],
)
def test_a_server_refuses_a_first_message(first: str, why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        server(SCRAM_SHA_256, SECRET).evaluate(first.encode())


def test_a_finished_exchange_takes_nothing_more() -> None:
    other = server(SCRAM_SHA_256, SECRET)
    run(ScramClient(SCRAM_SHA_256, "user", SECRET, "c"), other)
    with pytest.raises(AuthenticationError, match="after the end"):
        other.evaluate(b"n,,n=user,r=c")


def test_salted_passwords_are_computed_once() -> None:
    cache: dict[tuple[str, bytes, int], bytes] = {}
    for _ in range(2):
        client = ScramClient(SCRAM_SHA_256, "user", SECRET, "c", cache)
        run(client, server(SCRAM_SHA_256, SECRET))
    assert len(cache) == 1


def test_no_secret_in_any_repr() -> None:
    credential = kept(SCRAM_SHA_512, SECRET)
    shown = repr(credential)
    assert repr(credential.stored_key) not in shown
    assert repr(credential.server_key) not in shown
    token = Token("abc.def.ghi")
    for thing in (
        token,
        OAuthBearerClient(token),
        PlainClient("user", SECRET),
        ScramClient(SCRAM_SHA_512, "user", SECRET, "c"),
    ):
        assert SECRET not in repr(thing)
        assert "abc.def.ghi" not in repr(thing)
    assert verifies(SCRAM_SHA_512, credential, SECRET)
    assert not verifies(SCRAM_SHA_512, credential, SECRET + " ")


# -- SASLprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX")],
)
def test_the_examples_of_rfc_4013(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u06271", "a\u0007", "\u0221"])
def test_what_rfc_4013_prohibits(text: str) -> None:
    with pytest.raises(ConfigError):
        saslprep(text)


def test_credentials_are_made_in_the_prepared_form_only() -> None:
    assert require_prepared("gr\u00fc\u00df", "the password") == "gr\u00fc\u00df"
    for text in ("", "I\u00adX", "\u2168"):
        with pytest.raises(ConfigError, match="the password") as caught:
            require_prepared(text, "the password")
        assert not text or text not in str(caught.value)


# -- PLAIN


def test_plain() -> None:
    """RFC 4616, section 4."""
    client = PlainClient("tim", "tanstaaftanstaaf")
    assert client.first() == b"\0tim\0tanstaaftanstaaf"
    other = PlainServer(lambda user, password: (user, password) == ("tim", "tanstaaftanstaaf"))
    assert run(client, other).user == "tim"


@pytest.mark.parametrize(
    "message",
    [b"", b"\0", b"\0tim\0", b"\0\0x", b"a\0tim\0x", b"\0tim\0x\0y", b"\0\xff\0x", b"\0tim\0bad"],
)
def test_plain_is_refused(message: bytes) -> None:
    other = PlainServer(lambda user, password: password == "x")
    with pytest.raises(AuthenticationError) as caught:
        other.evaluate(message)
    assert "bad" not in str(caught.value)


# -- OAUTHBEARER


def jws(claims: dict[str, Any], header: dict[str, Any] | None = None, signature: str = "") -> str:
    parts = [header or {"alg": "none"}, claims]
    encoded = [urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return f"{encoded[0]}.{encoded[1]}.{signature}"


NOW_MS = 1_700_000_000_000
GOOD: dict[str, Any] = {"sub": "alice", "exp": NOW_MS / 1000 + 60}


def believing(rules: TokenRules | None = None) -> OAuthBearerServer:
    return OAuthBearerServer(lambda token: verify_unsecured(token, rules or TokenRules(), NOW_MS))


def test_a_bearer_token() -> None:
    """RFC 7628, section 4.1."""
    token = jws(GOOD)
    client = OAuthBearerClient(Token(token, extensions={"logicalCluster": "lkc"}))
    assert client.first() == (f"n,,\x01auth=Bearer {token}\x01logicalCluster=lkc\x01\x01".encode())
    end = run(client, believing())
    assert (end.user, end.expires_ms) == ("alice", NOW_MS + 60_000)


@pytest.mark.parametrize(
    ("claims", "rules"),
    [
        ({"sub": "alice"}, TokenRules()),
        ({**GOOD, "exp": NOW_MS / 1000 - 31}, TokenRules()),
        ({**GOOD, "exp": "soon"}, TokenRules()),
        ({**GOOD, "exp": True}, TokenRules()),
        ({**GOOD, "nbf": NOW_MS / 1000 + 31}, TokenRules()),
        ({**GOOD, "sub": ""}, TokenRules()),
        ({**GOOD, "sub": 7}, TokenRules()),
        (GOOD, TokenRules(issuer="us")),
        (GOOD, TokenRules(audience=("kafka",))),
        ({**GOOD, "aud": ["a", "b"]}, TokenRules(audience=("kafka",))),
        ({**GOOD, "scope": "read"}, TokenRules(required_scope=("read", "write"))),
    ],
)
def test_a_token_that_does_not_hold(claims: dict[str, Any], rules: TokenRules) -> None:
    """RFC 7628, section 3.2.3: JSON, one byte, the end."""
    token = jws(claims)
    client = OAuthBearerClient(Token(token))
    other = believing(rules)
    step = other.evaluate(client.first())
    assert isinstance(step, Challenge)
    assert json.loads(step.data)["status"] == "invalid_token"
    assert client.answer(step.data) == b"\x01"
    with pytest.raises(AuthenticationError, match="the token is refused") as caught:
        other.evaluate(b"\x01")
    assert token not in str(caught.value)


def test_scopes_and_audience_that_hold() -> None:
    rules = TokenRules(audience=("kafka",), required_scope=("read",), issuer="us")
    claims = {**GOOD, "aud": "kafka", "scope": ["read", "x"], "iss": "us"}
    assert verify_unsecured(jws(claims), rules, NOW_MS) == ("alice", NOW_MS + 60_000)


ENDLESS = urlsafe_b64encode(b"[" * 30_000).decode()
"""Nested more deeply than Python reads."""


@pytest.mark.parametrize(
    "token",
    ["a", "a.b", "a.b.c", jws(GOOD, signature="x"), "..", "W10.W10.", f"{ENDLESS}.W10."],
    ids=["a", "a.b", "a.b.c", "signed", "nothing", "no objects", "endless"],
)
def test_what_is_no_unsecured_token(token: str) -> None:
    with pytest.raises(AuthenticationError):
        verify_unsecured(token, TokenRules(), NOW_MS)
    with pytest.raises(AuthenticationError, match="algorithm"):
        verify_unsecured(jws(GOOD, {"alg": "RS256"}), TokenRules(), NOW_MS)


def test_a_signed_token() -> None:
    """Keys of a JWKS document; `none`, shared secrets and foreign keys are refused."""
    jwt = pytest.importorskip("jwt")
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    private = ec.generate_private_key(ec.SECP256R1())
    other = ec.generate_private_key(ec.SECP256R1())
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    shared = {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2Vj", "kid": "s"}
    document = {"keys": [{**key, "kid": "one"}, {**shared, "alg": "HS256"}, {"kty": "odd"}]}
    tokens = SignedTokens(document, TokenRules())
    signed = jwt.encode(GOOD, private, "ES256", headers={"kid": "one"})
    assert tokens.verify(signed, NOW_MS) == ("alice", NOW_MS + 60_000)
    assert tokens.knows(signed)
    foreign = jwt.encode(GOOD, other, "ES256", headers={"kid": "one"})
    unknown = jwt.encode(GOOD, private, "ES256", headers={"kid": "two"})
    assert not tokens.knows(unknown)
    by_secret = jwt.encode(GOOD, b64decode(shared["k"]), "HS256", headers={"kid": "s"})
    unsigned = jws(GOOD, {"alg": "none", "kid": "one"})
    for token in (foreign, unknown, by_secret, unsigned, signed[:-4] + "AAAA"):
        with pytest.raises(AuthenticationError) as caught:
            tokens.verify(token, NOW_MS)
        assert token not in str(caught.value)
    with pytest.raises(AuthenticationError, match="expired"):
        tokens.verify(signed, NOW_MS + 100_000)
    with pytest.raises(ConfigError, match="no public key"):
        SignedTokens({"keys": [shared]}, TokenRules())
