"""The message of each API key; modules are imported when first requested."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from kohort.errors import UnsupportedVersionError
from kohort.wire._base import Message
from kohort.wire.messages import APIS

API_NAMES: Final[dict[int, str]] = {key: api[0] for key, api in APIS.items()}
"""API key -> Kafka's name, as `18: "ApiVersions"`."""

_CLASSES: dict[str, type[Message]] = {}
_REQUESTS: dict[int, type[Message]] = {}


def message_class(name: str) -> type[Message]:
    """The class of the message with Kafka's name `name`, as `JoinGroupRequest`."""
    cls = _CLASSES.get(name)
    if cls is None:
        from kohort.wire._schema import snake

        module: Any = import_module(f"kohort.wire.messages.{snake(name)}")
        cls = _CLASSES[name] = getattr(module, name)
    return cls


def request_class(api_key: int) -> type[Message]:
    """The request class of an API. Raises `UnsupportedVersionError` for an unknown key."""
    cls = _REQUESTS.get(api_key)
    if cls is None:
        cls = _REQUESTS[api_key] = message_class(_api_name(api_key) + "Request")
    return cls


def response_class(api_key: int) -> type[Message]:
    """The response class of an API. Raises `UnsupportedVersionError` for an unknown key."""
    return message_class(_api_name(api_key) + "Response")


def _api_name(api_key: int) -> str:
    name = API_NAMES.get(api_key)
    if name is None:
        raise UnsupportedVersionError(f"API key {api_key} is not known here")
    return name
