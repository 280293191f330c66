"""Keys of settings: their spelling, which ones are secret, and the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kohort.errors import ConfigError

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


def check_keywords(
    owner: str, keywords: Iterable[str], settings: Iterable[str], own: Iterable[str]
) -> None:
    """Refuse a keyword that is neither an argument of `owner` nor a client's setting.

    Raises ConfigError, which names the nearest known one.
    """
    known = {*settings, *own}
    for key in keywords:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{owner} has no argument or client setting {key!r}{hint}")


def is_secret(name: str) -> bool:
    """True for a key whose value must not be shown."""
    return name.endswith(_SECRET)
