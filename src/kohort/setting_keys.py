"""Keys of settings: their spelling, which ones are secret, and the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SECRET = (
    "password",
    "secret",
    "token",
    "jaas_config",
    "private_key",
    "keystore_key",
    "sasl_users",
)


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, or None when nothing is near."""
    import difflib  # only errors need it

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def plain(key: str) -> str:
    """A key as configurations are written in Python: `group.id` -> `group_id`."""
    return key.replace(".", "_").replace("-", "_")


def merged(mapping: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a mapping and of keywords under their Python names; keywords win."""
    return {plain(key): value for key, value in (mapping or {}).items()} | dict(keywords)


def is_secret(name: str) -> bool:
    """True for a key whose value must not be shown."""
    return name.endswith(_SECRET)
