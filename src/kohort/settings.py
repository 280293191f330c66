"""Where settings come from: files, the environment, the caller; each remembers its origin.

Rules:
- Weakest first: defaults, the user's file (`~/.config/kohort/config.toml`), the project's
  (`kohort.toml`, else `[tool.kohort]` of `pyproject.toml`), the environment, the caller. A file
  that the caller names takes the place of the user's and the project's.
- `.properties` files are read as Java reads them. In TOML, tables `[consumer]`, `[producer]` and
  `[admin]` are for one role alone, and `[profiles.NAME]` counts when that profile is chosen: by the
  caller, by `KOHORT_PROFILE`, or by `profile = "NAME"` in the user's file.
- `KOHORT_GROUP_ID` is `group.id`; `KOHORT_CONSUMER__GROUP_ID` is the consumer's alone.
- `KEY.file` of a secret names a file that holds it. Secrets are never shown.

Shell: files, the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from kohort.errors import ConfigError
from kohort.setting_keys import is_secret, nearest, plain

if TYPE_CHECKING:
    from pathlib import Path

COMMAND_LINE: Final = "command line"
DEFAULT: Final = "default"
ROLES: Final = ("consumer", "producer", "admin")
_PREFIX: Final = "KOHORT_"
_CHOSEN: Final = "profile"
_PROFILES: Final = "profiles"
_NEAR: Final = 0.85
_ENTRY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)\s*(?:[=:]|(?<=\s)(?=\S))\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_TOML_KEY: Final = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[\w\"'.-]+)*)\s*=")
_TOML_TABLE: Final = re.compile(r"\s*\[([^\[\]]+)\]")


class Setting(NamedTuple):
    """One key's value and where it was given; `role` is the one it is for, "" for all."""

    key: str
    value: Any
    origin: str
    role: str = ""

    @property
    def name(self) -> str:
        """The key as a configuration's field is called."""
        return plain(self.key)


class Role(Protocol):
    """A class of configuration, as `ConsumerConfig`."""

    def role(self) -> str:
        """`consumer`, `producer`, ..."""
        ...

    def field_names(self) -> list[str]:
        """The names of its settings."""
        ...

    def relatives(self) -> Sequence[Role]:
        """The classes that may share a file with it; the first is their common base."""
        ...

    def unknown(self, key: str, origin: str = "") -> ConfigError:
        """The error for a key that this role does not have."""
        ...


def shown(name: str, value: Any) -> Any:
    """A value as it may be printed."""
    return "***" if value is not None and is_secret(name) else value


# -- files


def read_settings(path: Path, profile: str | None = None) -> list[Setting]:
    """The settings of a `.toml` file or a Java `.properties` file, in order.

    Raises ConfigError for a file that cannot be read, or without the `profile` that is asked for.
    """
    text = _text(path)
    if path.suffix != ".toml":
        return list(_properties(path, text))
    return _of_toml(path, text, _tables(path, text), profile)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as settings: {error}") from error


def _properties(path: Path, text: str) -> Iterator[Setting]:
    """Logical lines of a `.properties` file: `\\` at the end continues one, `#` and `!` are
    comments."""
    pending, started = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.lstrip()
        if not pending and (not entry or entry[0] in "#!"):
            continue
        started = started if pending else number
        pending += entry
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        yield _property(path, started, pending.rstrip())
        pending = ""
    if pending:
        yield _property(path, started, pending.rstrip())


def _property(path: Path, number: int, entry: str) -> Setting:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ConfigError(f"{path}:{number}: {entry.split('=')[0]!r} is not key=value")
    return Setting(_unescaped(match[1]), _unescaped(match[2]), f"{path}:{number}")


def _unescaped(text: str) -> str:
    plain_of = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else plain_of.get(code, code)

    return _ESCAPE.sub(one, text)


def _tables(path: Path, text: str, table: tuple[str, ...] = ()) -> dict[str, Any]:
    """What one table of a TOML file holds; nothing when there is no such table."""
    import tomllib  # most processes read none

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for part in table:
        tables = _table(tables.get(part))
    return tables


def _of_toml(
    path: Path,
    text: str,
    tables: Mapping[str, Any],
    profile: str | None,
    table: tuple[str, ...] = (),
) -> list[Setting]:
    """The settings of one table of a TOML file, and those of a profile in it."""
    lines = _toml_lines(text)
    profiles = _table(tables.get(_PROFILES))
    own = {key: value for key, value in tables.items() if key not in (_PROFILES, _CHOSEN)}
    settings = list(_leaves(path, own, table, lines))
    if profile is not None:
        if profile not in profiles:
            near = nearest(profile, profiles)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{path} has no profile {profile!r}{hint}")
        chosen = _table(profiles[profile])
        settings += _leaves(path, chosen, (*table, _PROFILES, profile), lines)
    return settings


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _leaves(
    path: Path,
    tree: Mapping[str, Any],
    above: tuple[str, ...],
    lines: Mapping[tuple[str, ...], int],
) -> Iterator[Setting]:
    """Bare dotted keys (`group.id = "g"`) are nested tables in TOML: they are joined again."""

    def walk(branch: Mapping[str, Any], way: tuple[str, ...]) -> Iterator[Setting]:
        for key, value in branch.items():
            here = (*way, key)
            if isinstance(value, dict):
                yield from walk(cast("dict[str, Any]", value), here)
                continue
            number = lines.get(tuple(".".join((*above, *here)).split(".")))
            origin = str(path) if number is None else f"{path}:{number}"
            role = here[0] if len(here) > 1 and here[0] in ROLES else ""
            if isinstance(value, list):
                value = ",".join(str(part) for part in cast("list[Any]", value))
            yield Setting(".".join(here[1:] if role else here), value, origin, role)

    yield from walk(tree, ())


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key, where it has a line; for messages only."""
    lines: dict[tuple[str, ...], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TOML_TABLE.match(line):
            table = match[1] + "."
        elif match := _TOML_KEY.match(line):
            bare = re.sub(r"[\"'\s]", "", table + match[1])
            lines.setdefault(tuple(bare.split(".")), number)
    return lines


def user_file(environ: Mapping[str, str]) -> Path:
    """The user's own settings: `~/.config/kohort/config.toml`, whether it exists or not."""
    from pathlib import Path  # here, because the help of a command must not pay for it

    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return Path(home, "kohort", "config.toml")


def chosen_profile(environ: Mapping[str, str]) -> str | None:
    """The profile of `KOHORT_PROFILE`, or the one that the user's file chooses; None: no profile.

    Raises ConfigError for a file that is not TOML.
    """
    if named := environ.get("KOHORT_PROFILE"):
        return named
    path = user_file(environ)
    if not os.path.isfile(path):  # False, too, where another user's directory may not be read
        return None
    import tomllib

    try:
        chosen = tomllib.loads(path.read_text(encoding="utf-8")).get(_CHOSEN)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as settings: {error}") from error
    return str(chosen) if chosen else None


def found_settings(
    environ: Mapping[str, str], directory: Path, profile: str | None
) -> list[Setting]:
    """The user's settings and the project's in `directory`, where there are any."""
    settings: list[Setting] = []
    places: list[tuple[Path, tuple[str, ...]]] = [(user_file(environ), ())]
    if os.path.isfile(own := directory / "kohort.toml"):
        places.append((own, ()))
    else:
        places.append((directory / "pyproject.toml", ("tool", "kohort")))
    chosen = False
    for path, table in places:
        if not os.path.isfile(path):
            continue
        text = _text(path)
        tables = _tables(path, text, table)
        here = profile in _table(tables.get(_PROFILES))
        settings += _of_toml(path, text, tables, profile if here else None, table)
        chosen = chosen or here
    if profile is not None and not chosen:
        raise ConfigError(
            f"profile {profile!r} is in none of {', '.join(str(path) for path, _ in places)}"
        )
    return settings


# -- the environment


def environment_settings(environ: Mapping[str, str], known: Iterable[str]) -> list[Setting]:
    """Settings of `KOHORT_*`. Other programs' variables are left alone, near misses refused."""
    names = set(known)
    settings: list[Setting] = []
    # A role's own variables come last, so that they win.
    for variable, value in sorted(environ.items(), key=lambda pair: "__" in pair[0]):
        if not variable.startswith(_PREFIX) or not value:
            continue
        role, nested, rest = variable.removeprefix(_PREFIX).lower().partition("__")
        name = rest if nested and role in ROLES else variable.removeprefix(_PREFIX).lower()
        origin = f"environment {variable}"
        if _known(name, names):
            settings.append(Setting(name, value, origin, role if nested else ""))
        elif near := nearest(name, names, cutoff=_NEAR):
            meant = variable.removesuffix(name.upper()) + near.upper()
            raise ConfigError(
                f"unknown setting in the environment, {variable}: did you mean {meant}?"
            )
    return settings


# -- together


def gather(
    file: Path | str | None,
    environ: Mapping[str, str],
    role: Role,
    directory: Path | None = None,
) -> list[Setting]:
    """All settings but the caller's own, weakest first; keys that no relative of `role` knows are
    refused.

    `file` is the one the caller names (or `KOHORT_CONFIG` does); `KOHORT_PROFILE` is its profile.
    """
    from pathlib import Path

    names = {name for each in role.relatives() for name in each.field_names()}
    named = file or environ.get("KOHORT_CONFIG") or None
    if named is not None:
        settings = read_settings(Path(named), environ.get("KOHORT_PROFILE") or None)
    else:
        settings = found_settings(environ, directory or Path.cwd(), chosen_profile(environ))
    refuse_unknown(settings, role)
    return settings + environment_settings(environ, names)


def refuse_unknown(settings: Iterable[Setting], role: Role) -> None:
    """Raise ConfigError for a key that neither `role` nor any relative of it knows."""
    relatives = role.relatives()
    names = {name for each in relatives for name in each.field_names()}
    for setting in settings:
        if not _known(setting.name, names):
            raise relatives[0].unknown(setting.key, setting.origin)


def choose(
    role: Role, settings: Iterable[Setting], *, strict: Iterable[Setting] = ()
) -> dict[str, Setting]:
    """What holds for a role, by field. Keys of other roles are skipped, in `strict` refused."""
    known = set(role.field_names())
    chosen: dict[str, Setting] = {}
    for setting in settings:
        if setting.role in ("", role.role()) and _known(setting.name, known):
            _put(chosen, setting, known)
        elif setting.role == role.role():
            raise role.unknown(setting.key, setting.origin)
    for setting in strict:
        if not _known(setting.name, known):
            raise role.unknown(setting.key)
        _put(chosen, setting, known)
    return chosen


def _put(chosen: dict[str, Setting], setting: Setting, known: set[str]) -> None:
    name = setting.name
    if name not in known and name.endswith("_file"):
        name = name.removesuffix("_file")
        try:
            with open(setting.value, encoding="utf-8") as held_in:
                held = held_in.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            text = f"{setting.key} ({setting.origin}): {setting.value} cannot be read: {why}"
            raise ConfigError(text) from error
        setting = setting._replace(value=held, origin=f"{setting.value}, by {setting.origin}")
    chosen.pop(name, None)
    chosen[name] = setting._replace(key=name)


def _known(name: str, known: set[str]) -> bool:
    if name in known or name.startswith(("ssl_", "sasl_")):
        return True
    stem = name.removesuffix("_file")
    return stem != name and stem in known and is_secret(stem)
