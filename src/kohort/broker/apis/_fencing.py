"""PRODUCER_FENCED for clients that do not know it yet: they get INVALID_PRODUCER_EPOCH
(KIP-588)."""

from __future__ import annotations

from typing import Protocol, TypeVar

from kohort.broker.base.request import Call, FanIn, Responder, SubRequest
from kohort.errors import ErrorCode


class _WithCode(Protocol):
    error_code: int


R = TypeVar("R", bound=_WithCode)


def as_known(call: Call, response: type[R], fenced_from: int) -> Responder:
    """Who hears an answer of type `response` in the words that its version has."""
    if call.api_version >= fenced_from:
        return call

    def put(answers: list[R]) -> None:
        answers[0].error_code = code_known(answers[0].error_code, call.api_version, fenced_from)
        call.answer(answers[0])  # type: ignore[arg-type]

    del response
    return SubRequest(FanIn(1, put), call)


def code_known(code: int, version: int, fenced_from: int) -> int:
    """A code in the words that a version has."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return code
