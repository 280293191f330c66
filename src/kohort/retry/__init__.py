"""Retries that block nobody: delay tiers, the failed topic, and the ledger that makes them exact.

Pure parts: `RetryPolicy` (the sequence of delays), `RetryTopics` (names), `Classifier` (permanent
or temporary), `headers` and `copies` (what a copy carries), `TierGate` (what is due), `topics` (how
the topics are made). `spark` is their shell; a handler raises `Permanent`, `Temporary` or
`RetryAfter`.
"""

from kohort.retry.classify import (
    Classifier,
    Disposition,
    Failure,
    Fatal,
    HandlerError,
    Permanent,
    RetryAfter,
    Temporary,
)
from kohort.retry.gate import TierGate
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy, RetryTopics, Step, Tier

__all__ = [
    "DEFAULT_RETRIES",
    "Classifier",
    "Disposition",
    "Failure",
    "Fatal",
    "HandlerError",
    "Permanent",
    "RetryAfter",
    "RetryPolicy",
    "RetryTopics",
    "Step",
    "Temporary",
    "Tier",
    "TierGate",
]
