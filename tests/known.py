"""What the types of a test cannot know: that a value is not None, that an object is a fake."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value; the test fails where it is None."""
    assert value is not None
    return value


def of_type(value: object, kind: type[T]) -> T:
    """The value; the test fails where it is of another type."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value


def fake(value: object) -> Any:
    """A test double, or a wrong value on purpose, for a parameter of another type."""
    return value
