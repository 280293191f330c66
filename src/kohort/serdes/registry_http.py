"""Requests to a schema registry: its addresses in turn, credentials, and what an answer means.

Rules:
- The first address that answers counts. One that does not, is too busy, or whose answer is cut off
  is passed over; where none is left that is a ConnectionFailedError, which is retriable.
- A registry that refuses is a SchemaRegistryError. It is not retriable, unless the schema that was
  asked for is not at fault: credentials, a redirect, an answer that is no registry's.
- Redirects are not followed: credentials go only to the configured host. No error contains them.

Shell: HTTP.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Callable
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.request import Request

from kohort.errors import ConfigError, ConnectionFailedError, KohortError, SchemaRegistryError
from kohort.http_opener import body_of, http_opener

if TYPE_CHECKING:
    import ssl

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404
_ANSWER_BYTES_MAX: Final = 16 << 20
_REDIRECTS: Final = range(300, 400)
_NOT_ADMITTED: Final = frozenset({401, 403, 407})
_NOT_NOW: Final = frozenset({408, 429})
_SERVER_FAULT: Final = 500
_TOKEN: Final = re.compile(r"[\x21-\x7E]+")


class RegistryHttp:
    """The REST API of a schema registry. Arguments as of `SchemaRegistry`.

    Raises:
        ConfigError: an address or the token is none.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str] | None,
        timeout_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._bases = _addresses(url)
        fixed = token is not None and not callable(token)
        if fixed and (wrong := _wrong_token(token)):
            raise ConfigError(f"the token for the schema registry {wrong}; check it")
        self._token, self._timeout_s = token, timeout_s
        self._opener = http_opener(tls)

    def call(
        self, path: str, body: dict[str, Any] | None = None, *, everywhere: bool = False
    ) -> dict[str, Any]:
        """GET, or POST of a body.

        Args:
            path: what is asked for, from its slash on.
            body: what is posted, as JSON.
            everywhere: what one address does not have is asked of the others, too.

        Returns:
            The answer's fields.

        Raises:
            ConnectionFailedError: no address answers.
            SchemaRegistryError: one refuses, or does not answer as a registry does.
        """
        failed: list[str] = []
        absent: SchemaRegistryError | None = None
        bearer = self._bearer()
        for base, credentials in self._bases:
            try:
                return self._request(base, path, body, bearer or credentials)
            except ConnectionFailedError as error:
                failed.append(f"{base}: {error}")
            except SchemaRegistryError as error:
                if not (everywhere and is_absent(error)):
                    raise
                absent = absent or error
        if absent is not None:
            raise absent
        raise ConnectionFailedError(f"no schema registry answers: {'; '.join(failed)}")

    def _request(
        self, base: str, path: str, body: dict[str, Any] | None, authorization: str
    ) -> dict[str, Any]:
        """The answer of one address."""
        request = Request(
            base + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE},
        )
        if authorization:
            request.add_header("Authorization", authorization)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                data = body_of(response, _ANSWER_BYTES_MAX)
        except HTTPError as error:
            with error:
                raise _refusal(base, path, error) from None
        except OSError as error:  # URLError is one
            raise ConnectionFailedError(f"{getattr(error, 'reason', error)}") from None
        except HTTPException as error:
            raise ConnectionFailedError(f"its answer is no HTTP or cut off: {error!r}") from None
        return _parsed(path, data)

    def _bearer(self) -> str:
        """The header with the token; "" where there is none."""
        if self._token is None:
            return ""
        token: object = self._token
        if callable(token):
            token = _from_function(token)
            if wrong := _wrong_token(token):
                raise _no_fault_of_the_schema(
                    f"the token function for the schema registry gave a token that {wrong}; fix it"
                )
        return f"Bearer {token}"


def is_absent(error: KohortError) -> bool:
    """Whether a registry answered that it does not have what was asked for."""
    return isinstance(error, SchemaRegistryError) and error.status == _NOT_FOUND


def misread(path: str) -> SchemaRegistryError:
    """The error for an answer that has not the form of a registry's."""
    return _no_fault_of_the_schema(
        f"what answers {path} is no schema registry, or its answer is damaged; check its address"
    )


def _no_fault_of_the_schema(text: str, status: int | None = None) -> SchemaRegistryError:
    """Retriable: else the records of a whole topic count as undecodable."""
    error = SchemaRegistryError(text)
    error.status, error.retriable = status, True
    return error


def _from_function(token: Callable[[], object]) -> object:
    """The token that the user's function returns."""
    try:
        return token()
    except OSError as error:
        if isinstance(error, KohortError):
            raise
        raise ConnectionFailedError(
            f"no token for the schema registry could be got: {error!r}; is its source up?"
        ) from None
    except Exception as error:  # the user's own code; its text might hold the token
        if isinstance(error, KohortError) and error.retriable:
            raise
        raise _no_fault_of_the_schema(
            f"the token function for the schema registry raised {type(error).__name__}; call it by "
            "itself to see why"
        ) from None


def _wrong_token(token: object) -> str:
    """Why a token cannot be sent; "" when it can. Its text stays hidden."""
    if not isinstance(token, str):
        return f"is of type {type(token).__name__}, not str"
    if not _TOKEN.fullmatch(token):
        return "is empty or has characters that no token may have (the end of a line?)"
    return ""


def _addresses(url: str) -> list[tuple[str, str]]:
    """Each address without its credentials, and the header that they make."""
    found: list[tuple[str, str]] = []
    for number, part in enumerate((p.strip() for p in url.split(",") if p.strip()), 1):
        address = _address(part)
        if address is None:
            shown = "" if "@" in url else f" ({part!r})"  # it may have a password
            raise ConfigError(
                f"address {number} of the schema registry{shown} is none; write http://host:8081, "
                "and a password with its commas, slashes and the like as %2C, %2F"
            )
        found.append(address)
    if not found:
        raise ConfigError("the schema registry has no address; write http://host:8081")
    return found


def _address(url: str) -> tuple[str, str] | None:
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises for what is no number
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    if "@" in parts.path + parts.query + parts.fragment:  # a password was taken for a path
        return None
    if parts.username is None:
        return url.rstrip("/"), ""
    name, password = (urllib.parse.unquote(p or "") for p in (parts.username, parts.password))
    host = parts.netloc.rpartition("@")[2]
    packed = base64.b64encode(f"{name}:{password}".encode()).decode()
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/"), f"Basic {packed}"


def _refusal(base: str, path: str, error: HTTPError) -> KohortError:
    """What a status that is no success means."""
    code = error.code
    if code in _REDIRECTS:
        return _no_fault_of_the_schema(
            f"the schema registry {base} answers {path} with {code}, a redirect"
            f"{_place(base, path, error.headers.get('Location'))}; no redirect is followed",
            code,
        )
    message = _message_of(error)
    if code >= _SERVER_FAULT or code in _NOT_NOW:
        return ConnectionFailedError(message)
    text = f"the schema registry {base} refused {path}: {message}{_cure(code)}"
    if code in _NOT_ADMITTED:
        return _no_fault_of_the_schema(text, code)
    refused = SchemaRegistryError(text)
    refused.status = code
    return refused


def _place(base: str, path: str, location: str | None) -> str:
    """Where a redirect leads, as an address to configure."""
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(base + path, location or ""))
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    target = f"{parts.scheme}://{host}{parts.path}"  # the query may hold a secret
    if target == base + path:
        return ""
    return f"; use {target.removesuffix(path)}, if that is the registry"


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    try:
        if len(data) <= _ANSWER_BYTES_MAX:
            return dict(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        pass  # reported below
    raise misread(path)


def _message_of(error: HTTPError) -> str:
    try:
        body = json.loads(error.read(_ANSWER_BYTES_MAX))
        return f"{body['message']} ({body['error_code']})"
    except (ValueError, TypeError, KeyError, OSError, HTTPException, RecursionError):
        return f"{error.code} {error.reason}"


def _cure(code: int) -> str:
    if code == _NOT_FOUND:
        return "; was it written with another registry?"
    return "; check the user and password, or the token" if code in _NOT_ADMITTED else ""
