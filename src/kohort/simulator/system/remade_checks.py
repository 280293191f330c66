"""What must hold of a topic that is deleted and created again.

SY17 It begins empty: no record and no committed offset of the topic before it is there; what was
     acknowledged since then is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.client.common.types import TopicPartition
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system.history import Fate, History, Look, Round, Sent
from kohort.simulator.system.remade import PLACE


def check_remade(history: History, stored: Mapping[int, bytes], now_ms: int) -> None:
    """Raise the first Violation; `stored` is what the log has at the end, by offset."""
    if not history.rounds:
        return
    sent = [one for one in history.sent if one.partition == PLACE]
    for one in history.looks:
        assert one.ended_ms is not None, "it has come to its end"
        _judge(one.label, one.values, sent, history.rounds, one.began_ms, one.ended_ms)
        _committed(one, history.looks, history.rounds)
    _judge("the last reader", stored, sent, history.rounds, now_ms, now_ms)


def _judge(
    who: str,
    values: Mapping[int, bytes],
    sent: Iterable[Sent],
    rounds: list[Round],
    began_ms: int,
    ended_ms: int,
) -> None:
    """One reading, from the beginning to the end."""
    places: dict[bytes, list[int]] = {}
    for offset, value in values.items():
        places.setdefault(value, []).append(offset)
    deleted = [one.asked_ms for one in rounds if one.deleted_ms and one.deleted_ms < began_ms]
    for one in sent:
        at = places.get(one.value, [])
        if len(at) > 1:
            raise Violation("SY2", f"{who} was given {one.value!r} at {at}")
        if one.fate is not Fate.DONE or one.done_ms >= began_ms:
            continue
        if at and deleted and one.done_ms < max(deleted):
            raise Violation(
                "SY17",
                f"{who} was given {one.value!r} at {at[0]}, which was acknowledged at "
                f"{one.done_ms} ms; the topic was deleted after {max(deleted)} ms",
            )
        is_of_this = one.asked_ms >= 0 and not any(
            r.ended_ms is None or (r.ended_ms >= one.asked_ms and r.asked_ms <= ended_ms)
            for r in rounds
        )
        if is_of_this and at != [one.offset]:
            raise Violation(
                "SY1",
                f"{one.value!r} was acknowledged at {_name(PLACE)}@{one.offset}; {who} has found "
                f"it at {at or 'no place'}",
            )


def _committed(look: Look, looks: list[Look], rounds: list[Round]) -> None:
    """What a group has committed was committed since the topic was created last."""
    deleted = [r.asked_ms for r in rounds if r.deleted_ms and r.deleted_ms < look.began_ms]
    if look.committed is None or not deleted:
        return
    since_ms = max(deleted)
    may_be = {o.commits for o in looks if o.commits_done_ms is None or o.commits_done_ms > since_ms}
    if look.committed not in may_be:
        raise Violation(
            "SY17",
            f"{look.label} finds offset {look.committed} committed for {_name(PLACE)}, which was "
            f"deleted after {since_ms} ms, and nothing of that was committed since",
        )


def _name(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"
