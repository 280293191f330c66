"""The generated modules are what the generator writes, and the facts hold together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kohort.wire import Message, message_class
from kohort.wire import _schema as schema
from kohort.wire.messages import APIS, GROUP_RECORD_KEYS, GROUP_RECORD_VALUES
from tests.wire.values import ALL_NAMES

ROOT = Path(__file__).resolve().parent.parent.parent


def test_generating_again_changes_nothing() -> None:
    command = [sys.executable, "tools/generate_wire.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ALL_NAMES)
def test_classes_say_what_the_facts_say(name: str) -> None:
    facts = schema.load(name)
    cls = message_class(name)
    assert issubclass(cls, Message)
    assert (name, facts.key) == (cls.NAME, cls.API_KEY)
    assert (facts.versions.first, facts.versions.last) == (cls.MIN_VERSION, cls.MAX_VERSION)
    assert [field.name for field in facts.root.fields] == list(cls.FIELDS)
    assert not hasattr(cls(), "__dict__")
    with pytest.raises(TypeError):
        cls("positional")  # type: ignore[call-arg]


def test_the_client_facing_apis_are_there_and_no_internal_one() -> None:
    assert len(APIS) >= 70
    for key in (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 68, 69, 76, 77, 78, 79):
        assert key in APIS
    for key in (4, 5, 6, 7, 52, 56, 58, 62, 63):
        assert key not in APIS
    assert APIS[22][2:4] == (6, 5), "InitProducerId v6 is not stable"


def test_records_of_the_group_log_come_in_pairs() -> None:
    assert set(GROUP_RECORD_KEYS) == set(GROUP_RECORD_VALUES)
    assert GROUP_RECORD_KEYS[1] == "OffsetCommitKey"
    assert GROUP_RECORD_VALUES[2] == "GroupMetadataValue"


def test_importing_the_package_loads_no_message() -> None:
    code = (
        "import sys, kohort.wire, kohort.wire.messages as m;"
        "print([n for n in sys.modules if n.startswith('kohort.wire.messages.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.strip() == "[]"


# What each API needs at least: the versions that aiokafka 0.14 speaks (key -> its newest version).
AIOKAFKA = {
    0: 8,
    1: 11,
    2: 5,
    3: 5,
    8: 3,
    9: 3,
    10: 1,
    11: 5,
    12: 1,
    13: 1,
    14: 3,
    15: 3,
    16: 2,
    17: 1,
    18: 2,
    19: 3,
    20: 3,
    21: 2,
    22: 0,
    24: 0,
    25: 0,
    26: 0,
    28: 0,
    29: 2,
    30: 1,
    31: 1,
    32: 2,
    33: 1,
    36: 1,
    37: 1,
    42: 1,
    45: 0,
    46: 0,
    48: 0,
}


def test_aiokafka_shares_a_version_of_every_api() -> None:
    for key, newest in AIOKAFKA.items():
        assert APIS[key][1] <= newest, APIS[key][0]
