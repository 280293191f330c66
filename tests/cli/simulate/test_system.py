"""`kohort simulate system`: exit codes, and what it prints of a run."""

from __future__ import annotations

import logging
import os
import re

import pytest

from kohort.cli.common.root import invoke
from kohort.cli.simulate import seeds
from kohort.cli.simulate.commands import simulate
from kohort.simulator.system import checks

SMALL = ["system", "--programs", "load:1", "--faults", "none", "--work-ms", "500"]


def test_one_seed_is_counted_with_the_time_that_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The clock began behind the run: 30,000 seeds a second."""
    assert invoke(simulate, [*SMALL, "--seed", "5", "--coverage"]) == 0
    assert logging.getLogger("kohort").isEnabledFor(logging.ERROR), "logging stays off"
    printed = capsys.readouterr()
    assert re.search("^not reached: .*fault block", printed.out, re.MULTILINE)
    rate = re.search(r"1 seeds, 0 failed; ([\d.]+) seeds/s", printed.err)
    assert rate
    assert float(rate[1]) < 1_000


def test_a_broken_promise_is_an_exit_code_and_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise checks.Violation("SY1", "planted")

    monkeypatch.setattr("kohort.simulator.system.world.check", broken)
    assert invoke(simulate, [*SMALL, "--seeds", "3", "--keep-going", "--no-shrink"]) == 3
    printed = capsys.readouterr()
    assert printed.out.count("BROKEN SY1 planted") == 3
    assert "again with: kohort simulate system --seed 2" in printed.out


@pytest.mark.parametrize("wrong", [("--programs", "paint:1"), ("--faults", "rain")])
def test_an_unknown_word_is_refused(
    wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(simulate, ["system", "--seed", "1", *wrong]) == 2
    assert wrong[1].split(":")[0] in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "system"])
@pytest.mark.parametrize(
    ("option", "ignored"),
    [
        (["--seed", "1"], ["--seeds", "3"]),
        (["--seed", "1"], ["--minutes", "3"]),
        (["--seed", "1"], ["--first", "3"]),
        (["--seed", "1"], ["--jobs", "3"]),
        (["--minutes", "0.001"], ["--seeds", "3"]),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    command: str, option: list[str], ignored: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(simulate, [command, *option, *ignored]) == 2
    printed = capsys.readouterr()
    assert f"{ignored[0]} does nothing with {option[0]}" in printed.err


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_processes_are_replaced_from_time_to_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of killed programs would fill the memory of a night."""
    monkeypatch.setattr(seeds, "_SEEDS_A_PROCESS", 2)
    ran = list(seeds.outcomes(range(count), own_process, jobs=2, until_s=None))
    assert [number for number, _ in ran] == list(range(count))
    blocks = [{process for _, process in ran[at : at + 4]} for at in range(0, count, 4)]
    assert sum(map(len, blocks)) == len(set().union(*blocks)), "no process serves two blocks"


def own_process(number: int) -> tuple[int, int]:
    return number, os.getpid()
