"""SASL mechanisms for both sides, as machines: bytes in, bytes out. See `mechanism`."""

from kohort.sasl.mechanism import Accepted, Challenge, ClientExchange, ServerExchange
from kohort.sasl.oauthbearer import OAUTHBEARER, OAuthBearerClient, OAuthBearerServer, Token
from kohort.sasl.plain import PLAIN, PlainClient, PlainServer
from kohort.sasl.scram import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramClient,
    ScramCredential,
    ScramServer,
    credential_of,
    salted_password,
    verifies,
)

MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""Every mechanism that both sides know."""

__all__ = [
    "HASHES", "MAX_ITERATIONS", "MECHANISMS", "MIN_ITERATIONS", "OAUTHBEARER", "PLAIN",
    "SCRAM_SHA_256", "SCRAM_SHA_512", "Accepted", "Challenge", "ClientExchange",
    "OAuthBearerClient", "OAuthBearerServer", "PlainClient", "PlainServer", "ScramClient",
    "ScramCredential", "ScramServer", "ServerExchange", "Token", "credential_of",
    "salted_password", "verifies",
]  # fmt: skip
