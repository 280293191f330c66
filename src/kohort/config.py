"""Configuration: one frozen dataclass a role, read from any mapping, refused with a reason.

Rules:
- A field is Kafka's own name with `.` written `_` (`session_timeout_ms`), in Kafka's own unit.
- `from_mapping` takes dotted or snake_case names; an unknown key is an error naming the nearest,
  one of another role an error naming that role.
- Secrets (passwords, tokens, private keys) are shown as `***`, in `repr` and in errors.
- Cross-field checks run at construction (`__post_init__`), before anything is started.
- Durations of our own may be written `5m`, `1h30m`, `250ms`; sizes `64MiB`, `1MB`.
"""

from __future__ import annotations

import functools
import os
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Self

from kohort.errors import ConfigError
from kohort.lean import dataclass, fields, replace
from kohort.setting_keys import is_secret, nearest, plain

_DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_SIZE = re.compile(r"(\d+)\s*([a-z]*)")
_SIZES = ("batch_size", "buffer_memory", "max_request_size", "sasl_server_max_receive_size")
"""Settings in bytes whose names (Kafka's) do not say so."""
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def parse_duration_ms(text: str | int) -> int:
    """Milliseconds of `"5m"`, `"1h30m"`, `"250ms"`; an int is milliseconds already."""
    if isinstance(text, int):
        return text
    compact = text.strip().lower().replace(" ", "")
    parts = _DURATION.findall(compact)
    if not parts or "".join(n + u for n, u in parts) != compact:
        raise ConfigError(
            f"{text!r} is not a duration; write for example 250ms, 5s, 30m, 1h30m, 7d"
        )
    return round(sum(float(n) * _DURATION_UNITS_MS[u] for n, u in parts))


def format_duration(ms: int) -> str:
    """The shortest exact text of a duration: 300000 -> `5m`, 5400000 -> `90m`, 250 -> `250ms`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _DURATION_UNITS_MS[unit] == 0:
            return f"{ms // _DURATION_UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def format_elapsed(ms: int) -> str:
    """About how long something has lasted, for people: `250ms`, `5.4s`, `1m1s`, `2h30m`, `3d4h`."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms // 100 / 10:g}s"
    large, small = ("m", "s") if ms < 3_600_000 else ("h", "m") if ms < 86_400_000 else ("d", "h")
    whole, rest = divmod(ms, _DURATION_UNITS_MS[large])
    parts = rest // _DURATION_UNITS_MS[small]
    return f"{whole}{large}{parts}{small}" if parts else f"{whole}{large}"


def parse_size_bytes(text: str | int) -> int:
    """Bytes of `"64MiB"`, `"1MB"`, `"512"`; an int is bytes already."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ConfigError(f"{text!r} is not a size; write for example 512, 64KiB, 16MiB, 1GB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


@dataclass(frozen=True)
class Config:
    """The base of every role's configuration.

    A subclass is a frozen dataclass; its name without `Config`, in lower case, is its role.
    """

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Config.__repr__  # so that `dataclass` makes none, which would show secrets

    def __repr__(self) -> str:
        """What differs from the defaults, without secrets."""
        values = [
            f"{f.name}={'***' if is_secret(f.name) else repr(value)}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default
        ]
        return f"{type(self).__name__}({', '.join(values)})"

    @classmethod
    def field_names(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    @classmethod
    def role(cls) -> str:
        return cls.__name__.removesuffix("Config").lower()

    @classmethod
    @functools.cache
    def _hints(cls) -> dict[str, Any]:
        """The fields' types; to evaluate them takes longer than all else of a client's making."""
        return typing.get_type_hints(cls)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from dotted or snake_case keys; text values are converted to the field's type.

        Raises ConfigError for an unknown key (naming the nearest), a key given twice in two
        spellings, or a value that does not convert. Nothing is started before that.
        """
        known, hints = set(cls.field_names()), cls._hints()
        seen: dict[str, Any] = {}
        for key, value in values.items():
            name = plain(key)
            if name not in known:
                raise cls.unknown(key)
            if name in seen:
                raise ConfigError(f"{cls.role()} configuration key {key!r} is given twice")
            seen[name] = _convert(cls.role(), name, value, hints[name])
        return cls(**seen)

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **explicit: Any,
    ) -> Self:
        """Build from the user's and the project's files (or `file` alone), `KOHORT_*`, `explicit`.

        Later ones win; `kohort.settings` has the search order. `environ` is the process's
        environment by default. Raises ConfigError for a key that no role knows, in any source.
        """
        from kohort import settings  # most processes read no files

        around = os.environ if environ is None else environ
        origins = settings.gather(None if file is None else os.fspath(file), around, cls)
        own = [settings.Setting(key, value, "caller") for key, value in explicit.items()]
        chosen = settings.choose(cls, origins, strict=own)
        return cls.from_mapping({name: setting.value for name, setting in chosen.items()})

    @classmethod
    def relatives(cls) -> list[type[Config]]:
        """The configurations that may share a file with this one: all on its branch of the tree."""
        root = next(c for c in cls.__mro__ if Config in c.__bases__)
        return [root, *root.__subclasses__()]

    @classmethod
    def unknown(cls, key: str, origin: str = "") -> ConfigError:
        """The error for a key that this role does not have: another role's, or unknown."""
        name = plain(key)
        where = f" ({origin})" if origin else ""
        others = [other for other in cls.relatives() if other is not cls]
        owners = [other.role() for other in others if name in other.field_names()]
        if owners:
            return ConfigError(
                f"{cls.role()} configuration key {key!r}{where} is for a {' or '.join(owners)}; "
                f"it does nothing for this {cls.role()}: leave it out"
            )
        anybody = cls is cls.relatives()[0]
        near = nearest(name, {n for c in (cls, *others * anybody) for n in c.field_names()})
        hint = f"; did you mean {near.replace('_', '.') if '.' in key else near!r}?" if near else ""
        return ConfigError(f"unknown {cls.role()} configuration key {key!r}{where}{hint}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new one."""
        return replace(self, **changes)


def _convert(role: str, name: str, value: Any, hint: Any) -> Any:
    """Text to the field's type; values that are not text pass as they are."""
    if not isinstance(value, str):
        return value
    shown = "***" if is_secret(name) else repr(value)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    try:
        if bool in kinds and value.strip().lower() in _TRUE | _FALSE:
            return value.strip().lower() in _TRUE
        if int in kinds and value.strip().lstrip("-").isdigit():
            return int(value)
        if int in kinds and name.endswith("_ms"):
            return parse_duration_ms(value)
        if int in kinds and ("bytes" in name or name in _SIZES):
            return parse_size_bytes(value)
        if float in kinds:
            return float(value)
    except ValueError as error:
        raise ConfigError(f"{role} configuration {name}={shown}: {error}") from error
    if any(typing.get_origin(k) is tuple for k in kinds):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if str in kinds:
        return value
    if bool in kinds:
        needed = "true or false is needed"
    elif int in kinds:
        needed = "a whole number is needed"
    else:
        needed = "a Python function is needed; give it where the client is made"
    raise ConfigError(f"{role} configuration {name}={shown}: {needed}")
