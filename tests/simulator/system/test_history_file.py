"""Histories as files: live and offline verdicts are the same, and damaged files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.simulator.checks.violation import Violation
from kohort.simulator.files import SimFile
from kohort.simulator.system import history_file
from kohort.simulator.system.checks import Final, check
from kohort.simulator.system.history import Fate, History, Kind, Operation
from kohort.simulator.system.history_file import (
    Recorded,
    judge,
    lines_of,
    parse,
    read_history,
    record,
)
from kohort.simulator.system.plan import SystemPlan, plan_of
from tests.effort import examples
from tests.simulator.system import test_model, test_worlds

WRONG = {
    **test_worlds.broken_promises(),
    **test_worlds.WRONG_ENDS,
    **test_worlds.WRONG_REDRIVES,
    **test_worlds.WRONG_STARTS,
    **{
        f"SY18 {name}": (History(operations=operations), test_worlds.broken_promises()["SY16"][1])
        for name, operations in test_model.WRONG.items()
    },
}
SMALL = SystemPlan(
    1, (("load", 1), ("read", 1), ("watch", 1)), (), 0, 1_000, 1, 1, "classic", "fsync"
)


def verdict(judged: Callable[[], None]) -> tuple[str, str] | None:
    """The code and the text of the first Violation."""
    try:
        judged()
    except Violation as violation:
        return violation.code, str(violation)
    return None


def through_lines(run: Recorded) -> Recorded:
    """Written and read."""
    return parse([line.encode() for line in lines_of(run)], "run.jsonl")


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_violation_is_found_offline_as_well(name: str) -> None:
    """SY1 to SY18: the same code and the same message, from the same history."""
    history, final = WRONG[name]
    live = verdict(lambda: check(history, final))
    assert live is not None
    run = Recorded(SMALL, live[0], live[1], history, final)
    copy = through_lines(run)
    assert copy == run
    assert verdict(lambda: judge(copy)) == live


def assert_same_verdict(plan: SystemPlan, path: Path) -> tuple[str, str] | None:
    """Run it and read its history; the verdict of both."""
    outcome = record(plan, path)
    live = None if outcome.code is None else (outcome.code, outcome.what)
    assert verdict(lambda: judge(read_history(path))) == live
    return live


@pytest.mark.rows(1)
@pytest.mark.parametrize("seed", [6, 7, 9, *range(2_000, 2_020)])
def test_a_run_that_held_holds_offline(seed: int, tmp_path: Path) -> None:
    assert assert_same_verdict(plan_of(seed), tmp_path / "run.jsonl") is None


def test_a_run_that_failed_fails_alike_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that lies: runs whose logs lack what was acknowledged, and some that never end."""

    def lie(self: SimFile, size: int) -> None:
        self.unsynced = self.size > size

    monkeypatch.setattr(SimFile, "sync_to", lie)
    programs = (("load", 1), ("read", 1), ("watch", 1))
    found = {
        assert_same_verdict(
            SystemPlan(seed, programs, ("power_cut",), 2, 2_000, 1, 1, "classic", "fsync"),
            tmp_path / "run.jsonl",
        )
        for seed in range(4)
    }
    assert {one[0] for one in found if one is not None} & {"SY1", "CRASH", "SY10"}


def test_a_run_without_an_end_keeps_its_verdict() -> None:
    """SY10: what was judged while it ran is not judged again."""
    run = Recorded(SMALL, "SY10", "a program does not end", History(), None)
    assert verdict(lambda: judge(through_lines(run))) == ("SY10", "a program does not end")


# -- damage


def _lines() -> list[str]:
    operations = [Operation("r/1", "g", Kind.COMMIT, {test_worlds.P0: 5}, 1, 1, 2, 2, Fate.DONE)]
    final: Final = test_worlds.broken_promises()["SY1"][1]
    sent = test_worlds.broken_promises()["SY1"][0].sent
    return list(lines_of(Recorded(SMALL, None, "", History(sent, operations=operations), final)))


def _changed(line: str, **values: Any) -> str:
    return json.dumps({**json.loads(line), **values})


DAMAGED: dict[str, Callable[[list[str]], list[str]]] = {
    "the file is cut off": lambda lines: lines[:-1],
    "line 0: the file is cut off": lambda lines: [],
    "this is no line of JSON": lambda lines: [*lines[:-1], lines[-1][:-1]],
    "line 2: this is no line": lambda lines: [lines[0], "[" * 100_000, *lines[1:]],
    "line 2: this is no object": lambda lines: [lines[0], "[]", *lines[1:]],
    "the end counts": lambda lines: [*lines[:2], *lines[3:]],
    "there is more behind the end": lambda lines: [*lines, lines[1]],
    "line 1: this is no history": lambda lines: lines[1:],
    "version 2; 1 is known here": lambda lines: [_changed(lines[0], version=2), *lines[1:]],
    "plan lacks": lambda lines: [_changed(lines[0], plan={}), *lines[1:]],
    "ended may not be 1": lambda lines: [_changed(lines[0], ended=1), *lines[1:]],
    "there is no field": lambda lines: [lines[0], '{"history.others":1}', *lines[1:]],
    "history.sent may not be 7": lambda lines: [lines[0], '{"history.sent":7}', *lines[1:]],
    "number may not be True": lambda lines: [
        lines[0],
        lines[1].replace('"number":0', '"number":true'),
        *lines[2:],
    ],
    "fate may not be 'perhaps'": lambda lines: [
        lines[0],
        lines[1].replace('"done"', '"perhaps"'),
        *lines[2:],
    ],
    "offset may not be so large": lambda lines: [
        lines[0],
        lines[1].replace('"offset":0', f'"offset":{1 << 63}'),
        *lines[2:],
    ],
    "value is no text of bytes": lambda lines: [
        lines[0],
        lines[1].replace('"value":"x"', '"value":"\\u20ac"'),
        *lines[2:],
    ],
    "partition may not have 3 parts": lambda lines: [
        lines[0],
        lines[1].replace('["input",0]', '["input",0,0]'),
        *lines[2:],
    ],
    "final.at_ms is there 2 times": lambda lines: [
        *lines[:-1],
        '{"final.at_ms":1}',
        json.dumps({"end": len(lines)}),
    ],
    "the run held and has no end": lambda lines: [_changed(lines[0], ended=False), *lines[1:]],
}


@pytest.mark.parametrize("wrong", DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(wrong: str) -> None:
    parse([line.encode() for line in _lines()], "run.jsonl")
    with pytest.raises(ConfigError, match=wrong) as refused:
        parse([line.encode() for line in DAMAGED[wrong](_lines())], "run.jsonl")
    assert str(refused.value).startswith("run.jsonl, line ")
    assert "\n" not in str(refused.value)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    """The record's transaction is not there."""
    sent = test_worlds.broken_promises()["SY4"][0].sent
    final = test_worlds.broken_promises()["SY4"][1]
    with pytest.raises(ConfigError, match="do not fit together"):
        judge(through_lines(Recorded(SMALL, None, "", History(sent), final)))


def test_limits_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(_lines()), encoding="ascii")
    read_history(path)
    monkeypatch.setattr(history_file, "MAX_LINE_BYTES", 100)
    with pytest.raises(ConfigError, match="line 1: more than 100 bytes"):
        read_history(path)
    monkeypatch.setattr(history_file, "MAX_FILE_BYTES", 1_000)
    with pytest.raises(ConfigError, match="more than 1000 bytes"):
        read_history(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_history(tmp_path / "nothing")


def test_no_damage_ends_otherwise() -> None:
    """Changed bytes, lines left out or twice: refused, or judged, and nothing else."""
    whole = "\n".join(_lines()).encode()
    for seed in range(examples(3_000)):
        chance, damaged = Random(seed), bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(damaged))
            if chance.random() < 0.5:
                damaged[at] = chance.choice(b'0123456789"[]{},:nulltrue\x00\xff')
            else:
                del damaged[at : at + chance.randint(1, 40)]
        try:
            judge(parse(bytes(damaged).splitlines(), "run.jsonl"))
        except (ConfigError, Violation):
            continue


def test_fields_that_came_later_have_their_defaults() -> None:
    """A file of before a field, which has a default, is read."""
    run = Recorded(SMALL, None, "", History(), replace(test_worlds.broken_promises()["SY1"][1]))
    lines = [line for line in lines_of(run) if "final.lost_power" not in line]
    lines[-1] = json.dumps({"end": len(lines) - 1})
    assert parse([line.encode() for line in lines], "run.jsonl").final == run.final
