"""`kohort.lean` is `dataclasses` as far as it goes: the same behaviour, side by side."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kohort
from kohort import lean
from kohort.records import KERNEL


@lean.dataclass(frozen=True, slots=True)
class Point:
    """Frozen, with slots."""

    x: int
    y: int = 2
    seen: list[int] = lean.field(default_factory=list, compare=False, repr=False)
    KINDS: ClassVar[int] = 3


@lean.dataclass
class Base:
    """Neither."""

    a: int = 1

    def __post_init__(self) -> None:
        self.a += 1


@lean.dataclass
class Derived(Base):
    """With a field more."""

    b: str = "b"


@dataclasses.dataclass
class Standard(Base):
    """A standard one on top."""

    c: float = 0.5


@lean.dataclass(eq=False, slots=True)
class Thing:
    """Equal to itself alone."""

    name: str


def test_making_comparing_showing():
    assert Point(1) == Point(1, 2) != Point(1, 3)
    assert Point(1) != (1, 2)
    assert hash(Point(1)) == hash(Point(1, 2, [5]))
    assert repr(Point(1)) == "Point(x=1, y=2)"
    assert Point(1).seen is not Point(1).seen
    assert Thing("a") != Thing("a")
    assert len({Thing("a"), Thing("a")}) == 2
    assert Point.__match_args__ == ("x", "y", "seen")
    assert Point.KINDS == 3
    with pytest.raises(TypeError, match="missing 1 required"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Base())


def test_post_init_and_inheritance():
    assert (Derived(5).a, Derived(5, "c").b) == (6, "c")
    assert repr(Standard(5, 0.1)) == "Standard(a=6, c=0.1)"


def test_frozen_and_slots():
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x  # type: ignore[misc]
    assert not hasattr(point, "__dict__")
    assert pickle.loads(pickle.dumps(point)) == point == copy.copy(point)


def test_dataclasses_takes_them_for_its_own():
    assert dataclasses.is_dataclass(Point)
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "seen"]
    assert [f.name for f in dataclasses.fields(Standard(1))] == ["a", "c"]
    assert dataclasses.replace(Point(1), y=9) == Point(1, 9) == lean.replace(Point(1), y=9)
    assert dataclasses.asdict(Derived()) == {"a": 2, "b": "b"}
    assert str(inspect.signature(Thing)) == "(name)"


def test_a_lean_class_on_a_standard_one_is_refused():
    with pytest.raises(TypeError, match="make that lean"):
        lean.dataclass(type("Sub", (Standard,), {}))


def test_a_mutable_default_is_refused():
    def make() -> Any:
        @lean.dataclass
        class Wrong:
            """Shares its list."""

            items: list[int] = []  # noqa: RUF012

        return Wrong

    with pytest.raises(ValueError, match="mutable default"):
        make()


def test_importing_the_clients_stays_lean():
    """No dataclasses, inspect, asyncio, ssl, logging, and no group machine before there is one.

    From 3.12 on the compiled modules bring `inspect`: that is how Cython learns, under the stable
    ABI, which bits of a code object say what.
    """
    by_the_kernel = {"inspect"} if KERNEL == "cython" and sys.version_info >= (3, 12) else set()
    code = (
        "import sys; from kohort import Consumer, Producer; "
        "heavy = {'asyncio', 'dataclasses', 'inspect', 'ssl', 'logging', 'json', 'urllib.request',"
        " 'kohort.group.member.classic', 'kohort.group.assignors',"
        " 'kohort.client.producer.plan.transaction_manager',"
        " 'pyarrow', 'numpy'}; "
        "print(*sorted(heavy & sys.modules.keys()))"
    )
    root = str(Path(kohort.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(ran.stdout.split()) <= by_the_kernel
