"""Non-blocking retries: retry topics, the dead-letter topic, and the ledger that makes them exact.

Pure parts: `RetryPolicy` (the sequence of delays), `RetryTopics` (names), `Classifier` (permanent
or temporary), `headers` and `copies` (what a copy carries), `DueSchedule` (which records are
due), `topics` (how the topics are created). `App` and `spark` are their shells. A handler raises
`Permanent`, `Temporary` or `RetryAfter`.
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
from kohort.retry.due_schedule import DueSchedule
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy, RetryTopics, Step

__all__ = [
    "DEFAULT_RETRIES",
    "Classifier",
    "Disposition",
    "DueSchedule",
    "Failure",
    "Fatal",
    "HandlerError",
    "Permanent",
    "RetryAfter",
    "RetryPolicy",
    "RetryTopics",
    "Step",
    "Temporary",
]
