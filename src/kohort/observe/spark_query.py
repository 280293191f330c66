"""What a Spark query writes beside the offsets that it commits, and what that says of it later.

Rules: the text is JSON under one key, so that other committers' metadata is never taken for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from kohort.config import format_duration

KEY: Final = "kohort.spark"
RUNS: Final = "runs"
WAITS: Final = "waits"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
STATES: Final = (RUNS, WAITS, STOPPED, FAILED)
WORDS_MOST: Final = 500
"""A broker keeps 4 KiB of metadata beside an offset."""


@dataclass(frozen=True)
class QueryNote:
    """What a query did when it committed.

    Args:
        state: `runs`: a batch that begins here was planned; `waits`: fewer records than it wants
            were there; `stopped` and `failed`: it has ended.
        at_ms: when, in milliseconds since 1970.
        name: the query's name; empty where the source does not know it.
        words: the error of a query that failed.
    """

    state: str
    at_ms: int
    name: str = ""
    words: str = ""

    def __str__(self) -> str:
        """The metadata to commit."""
        fields: dict[str, object] = {"state": self.state, "at": self.at_ms}
        if self.name:
            fields["name"] = self.name
        if self.words:
            fields["words"] = self.words[:WORDS_MOST]
        return json.dumps({KEY: fields}, separators=(",", ":"))


def note_of(metadata: str) -> QueryNote | None:
    """The note in a commit's metadata; None where a Spark query did not write it."""
    if KEY not in metadata:
        return None
    try:
        note: Any = json.loads(metadata)[KEY]
        state, at_ms = str(note["state"]), int(note["at"])
    except (ValueError, KeyError, TypeError):
        return None
    fields = cast(dict[str, Any], note)
    if state not in STATES:
        return None
    return QueryNote(state, at_ms, str(fields.get("name", "")), str(fields.get("words", "")))


def why_unmoved(note: QueryNote, now_ms: int | None) -> tuple[bool, str]:
    """Why a query has read nothing beyond what it committed with this note.

    Args:
        note: what it committed.
        now_ms: the present time, in milliseconds since 1970; None when it is not known.

    Returns:
        Whether an operator must act, and the reason.
    """
    who = f"Spark query {note.name}" if note.name else "its Spark query"
    ago = "" if now_ms is None else f" {format_duration(max(0, now_ms - note.at_ms))} ago"
    if note.state == FAILED:
        return True, f"{who} failed{ago}: {note.words or 'see its log'}. Start it again"
    if note.state == STOPPED:
        return True, f"{who} was stopped{ago}; started again, it continues from here"
    if note.state == WAITS:
        return False, (
            f"{who} saw too few records{ago}, and waits for more (minOffsetsPerTrigger) or until "
            "maxTriggerDelay is over"
        )
    return False, (
        f"{who} began a batch from here{ago} and has not ended it: it is slow (the SQL tab of "
        "Spark's UI shows the batch), its tasks fail and are tried again, or its driver has ended. "
        "Progress is published between batches: `--for` watches longer than one takes"
    )
