"""Arrays of Python values without pandas: equal to what pyarrow makes."""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.spark.formats.plain_arrays import plain_array
from tests.effort import examples

VALUES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
}


@settings(max_examples=examples(100))
@given(
    st.sampled_from(list(VALUES)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(st.none() | VALUES[kind]))
    )
)
def test_it_is_what_pyarrow_makes(case: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = case
    made = plain_array(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        plain_array([2**31], pa.int32())
