"""SASL mechanisms of client and broker, as state machines over bytes. See `mechanism`.

Only their names: a client that does not log in does not import the mechanisms.
"""

from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""Every mechanism that both sides know."""
