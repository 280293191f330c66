"""`auto.offset.reset`: what to do where there is no offset to start from (KIP-842, KIP-1106).

Rules: `earliest`, `latest` (Kafka's default), `none`, or `by_duration:D`, where D is ISO 8601 as
Kafka writes it (`P3D`, `PT1H`) or our own short form (`3d`, `1h30m`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, UnsupportedVersionError
from kohort.setting_keys import nearest

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
BY_DURATION = -1_000
FIRST_VERSION: Final = {MAX_TIMESTAMP: 7, -4: 8, -5: 9}
"""Of ListOffsets, for offsets by name: KIP-734, KIP-405, KIP-1005. A broker before them takes the
name for a time."""

_NAMED: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def require_version(version: int, names: Iterable[int]) -> None:
    """Raises UnsupportedVersionError where ListOffsets of a version lacks one of the names."""
    needed = max((FIRST_VERSION.get(name, 0) for name in names), default=0)
    if version < needed:
        raise UnsupportedVersionError(
            f"the broker serves ListOffsets up to version {version}; an offset by this name needs "
            f"{needed}"
        )


class ResetPolicy(NamedTuple):
    """A parsed policy. `target` is None for `none`; `duration_ms` serves `by_duration` alone."""

    text: str
    target: int | None
    duration_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> ResetPolicy:
        """ConfigError, naming the nearest policy, for anything that is not one."""
        name, _, duration = text.strip().partition(":")
        if not duration and name.lower() in _NAMED:
            return cls(name.lower(), _NAMED[name.lower()])
        if name.lower() == "by_duration" and duration:
            try:
                return cls(text.strip(), BY_DURATION, _duration_ms(duration))
            except ConfigError as error:
                raise ConfigError(f"auto_offset_reset={text!r}: {error}") from None
        near = nearest(name.lower(), [*_NAMED, "by_duration"])
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"auto_offset_reset={text!r} is not a policy{hint}; "
            "choose earliest, latest, none or by_duration:P3D"
        )

    def timestamp(self, target: int, wall_ms: int) -> int:
        """What ListOffsets is asked: a sentinel as it is, a duration back from the wall clock."""
        return max(0, wall_ms - self.duration_ms) if target == BY_DURATION else target


def _duration_ms(text: str) -> int:
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        return parse_duration_ms(text)
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000)
