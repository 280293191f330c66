"""HTTP requests to services that are configured: token endpoints, key sets, schema registries.

Rules:
- http and https and nothing else; no redirect is followed, since credentials are for one host.

Shell: HTTP.
"""

from __future__ import annotations

from http.client import HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
)

if TYPE_CHECKING:
    import ssl


def http_opener(context: ssl.SSLContext | None = None) -> OpenerDirector:
    """Opens http and https addresses, through the proxy that the environment names.

    Args:
        context: the certificates that https trusts; the system's by default.

    Returns:
        An opener that raises `HTTPError` for a redirect as for every refusal.
    """
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(context=context),
        HTTPErrorProcessor(),
        HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener


def body_of(answer: HTTPResponse, bytes_max: int) -> bytes:
    """The body of an answer.

    Args:
        answer: what was opened.
        bytes_max: where reading ends.

    Returns:
        The body; one byte more than `bytes_max` where it is longer.

    Raises:
        IncompleteRead: the answer is cut off; `read` with a limit keeps silent about most of these.
    """
    data = answer.read(bytes_max + 1)
    if answer.length and len(data) <= bytes_max:
        raise IncompleteRead(data, answer.length)
    return data
