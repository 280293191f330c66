"""SASL mechanisms for both sides, as machines: bytes in, bytes out. See `mechanism`.

The names only: a client that does not log in must not pay for the import of the mechanisms.
"""

from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""Every mechanism that both sides know."""
