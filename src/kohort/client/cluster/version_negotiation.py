"""Which version of an API to speak to a broker. Pure.

Rules:
- The newest version that both sides know; ours end at the newest stable one.
- No common version is an error that names both ranges; nothing is sent then.
- Brokers of one release report the same versions: they are kept once for all connections.
- `kohort.wire.api_versions` handles the versions of ApiVersions itself (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from kohort.errors import UnsupportedVersionError
from kohort.wire import API_NAMES, Message, local_files
from kohort.wire.messages.api_versions_response import ApiVersionsResponse

Ranges = Mapping[int, tuple[int, int]]
"""API key to the oldest and the newest version that a broker serves."""


def ranges_of(response: ApiVersionsResponse) -> Ranges:
    """What an ApiVersions answer says; equal answers give the same object."""
    return _shared(tuple((k.api_key, k.min_version, k.max_version) for k in response.api_keys))


@lru_cache(maxsize=16)
def _shared(ranges: tuple[tuple[int, int, int], ...]) -> Ranges:
    return {key: (low, high) for key, low, high in ranges}


def features_of(response: ApiVersionsResponse) -> dict[str, int]:
    """The finalized levels of features that an ApiVersions answer names (KIP-584)."""
    return {feature.name: feature.max_version_level for feature in response.finalized_features}


def directory_of(response: ApiVersionsResponse) -> str | None:
    """Where a broker of ours on this machine lets its files be read (ADR 0015)."""
    directory = local_files.found(response.unknown_tags)
    return None if directory is None else local_files.decode_directory(directory)


def pick(api: type[Message], theirs: Ranges, broker: str, at_most: int | None = None) -> int:
    """The version to send a request of class `api` in; raises UnsupportedVersionError.

    `at_most` lowers our newest version, for a caller that knows a newer one does not suit it.
    """
    name = API_NAMES[api.API_KEY]
    if api.API_KEY not in theirs:
        raise UnsupportedVersionError(
            f"{broker} does not serve {name}; it needs a newer or differently configured broker"
        )
    low, high = theirs[api.API_KEY]
    newest = api.STABLE_VERSION if at_most is None else min(api.STABLE_VERSION, at_most)
    version = min(newest, high)
    if version < max(api.MIN_VERSION, low):
        raise UnsupportedVersionError(
            f"{broker} serves {name} versions {low} to {high} and this client speaks "
            f"{api.MIN_VERSION} to {newest}; upgrade the older of the two"
        )
    return version
