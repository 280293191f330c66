"""Which parts of records are not shown: rules by name, in keys, values and headers.

Rules: a rule is a name with `*`, matched without regard to case against the names of JSON fields
and of headers; a matching value is replaced by `•••`. The rule `value` hides whole values, `key`
whole keys. A value that is not JSON cannot be masked by field: with any field rule it is hidden as
a whole. A record is shown up to `SHOWN_BYTES`.
"""

from __future__ import annotations

import fnmatch
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

MASK: Final = "•••"
SHOWN_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes as they are shown: as text, JSON or hex, maybe cut or masked."""

    form: str
    text: str
    size: int
    cut: bool = False
    masked: bool = False


@dataclass(frozen=True)
class Masks:
    """The rules of a console."""

    rules: tuple[str, ...] = ()

    def hides(self, name: str) -> bool:
        """Whether a rule matches a name."""
        return any(fnmatch.fnmatchcase(name.lower(), rule.lower()) for rule in self.rules)

    def key(self, raw: bytes | None) -> Content:
        """A record's key."""
        return self._hidden(raw) if "key" in self.rules else self._shown(raw)

    def value(self, raw: bytes | None) -> Content:
        """A record's value."""
        return self._hidden(raw) if "value" in self.rules else self._shown(raw)

    def editable(self, raw: bytes | None) -> str:
        """A value as a form can show and return it unchanged.

        It is empty where a rule hides parts of the value, or where it is too long or no plain text.
        """
        shown = self.value(raw)
        if raw is None or shown.masked or shown.cut or shown.form not in ("text", "json"):
            return ""
        if self._fields and _repeats_a_name(raw):
            return ""
        return _plain_text(raw)

    def header(self, name: str, raw: bytes | None) -> Content:
        """A record's header."""
        return self._hidden(raw) if self.hides(name) else content(raw)

    def finds(self, text: str, key: bytes | None, value: bytes | None) -> bool:
        """Whether a record's key or value has a text, in any case; never by what a rule hides."""
        if not self.rules:
            return text.lower().encode() in ((key or b"") + b" " + (value or b"")).lower()
        shown = f"{self.key(key).text} {self.value(value).text}"
        return text.lower() in shown.lower()

    @property
    def _fields(self) -> list[str]:
        return [rule for rule in self.rules if rule not in ("key", "value")]

    def _hidden(self, raw: bytes | None) -> Content:
        if raw is None:
            return content(raw)
        return Content("hidden", MASK, len(raw), masked=True)

    def _shown(self, raw: bytes | None) -> Content:
        if raw is None or not self._fields:
            return content(raw)
        if len(raw) > SHOWN_BYTES:
            return self._hidden(raw)
        try:
            document = json.loads(raw)
            if not isinstance(document, dict | list):
                return self._hidden(raw)
            masked = self._masked(document)
            text = json.dumps(masked, indent=2, ensure_ascii=False)
            return Content("json", text, len(raw), masked=masked != document)
        except (ValueError, RecursionError):
            return self._hidden(raw)

    def _masked(self, document: Any) -> Any:
        if isinstance(document, dict):
            fields = cast("dict[str, Any]", document)
            return {k: MASK if self.hides(k) else self._masked(v) for k, v in fields.items()}
        if isinstance(document, list):
            return [self._masked(one) for one in cast("Sequence[Any]", document)]
        return document


def _repeats_a_name(raw: bytes) -> bool:
    """Whether an object of JSON has a name twice: the mask has only seen the last one's value."""
    repeated = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        fields = dict(pairs)
        repeated = repeated or len(fields) < len(pairs)
        return fields

    json.loads(raw, object_pairs_hook=look)
    return repeated


def _plain_text(raw: bytes) -> str:
    """Text without control characters, which a browser may change; else empty."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:  # JSON may be UTF-16
        return ""
    plain = all(c in "\n\t" or unicodedata.category(c) != "Cc" for c in text)
    return text if plain else ""


def content(raw: bytes | None) -> Content:
    """Bytes as pretty JSON, as text, or as hex; only the first 64 KiB."""
    if raw is None:
        return Content("null", "null", 0)
    cut = len(raw) > SHOWN_BYTES
    part = raw[:SHOWN_BYTES]
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError as error:
        if not (cut and error.start >= SHOWN_BYTES - 4):
            return Content("hex", part[: SHOWN_BYTES // 8].hex(" "), len(raw), cut)
        text = part.decode("utf-8", "ignore")
    if not all(c.isprintable() or c in "\n\t\r" for c in text):
        text = "".join(c if c.isprintable() or c in "\n\t\r" else repr(c)[1:-1] for c in text)
    if not cut and text[:1] in "{[":
        try:
            pretty = json.dumps(json.loads(part), indent=2, ensure_ascii=False)
            return Content("json", pretty, len(raw))
        except (ValueError, RecursionError):
            pass
    return Content("text", text, len(raw), cut)
