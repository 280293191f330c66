"""`kohort topic delete-records` (spec 8.1): a plan first, then exactly what is before a place."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_records_before_a_place_are_deleted_only_when_told_to(kohort: Run) -> None:
    kohort("topic", "create", "logs", "-p", "2")
    kohort("produce", "logs", "--partition", "1", stdin=b"a\nb\nc\n")
    plan = ("topic", "delete-records", "logs", "--before", "-1", "-o", "csv")
    ran = kohort(*plan)
    assert ran.lines[1:] == ["logs,0,0,0,0", "logs,1,0,2,2"]
    assert "nothing was changed; add --execute" in ran.err
    assert len(kohort("consume", "logs", "--from-beginning", "--until-end").lines) == 3
    assert kohort(*plan, "--execute").err == ""
    left = kohort("consume", "logs", "--from-beginning", "--until-end", "--format", "value")
    assert left.lines == ["c"]
    again = kohort("topic", "delete-records", "logs:0", "--before", "latest", "--execute")
    assert again.code == 0, "nothing to delete is no error"


def test_a_place_that_is_none_is_refused_before_anything_is_deleted(kohort: Run) -> None:
    kohort("topic", "create", "kept")
    kohort("produce", "kept", stdin=b"a\n")
    for args, code, message in (
        (("kept", "--before", "9"), 1, "offset 9 is not in kept-0, which holds 0 to 1"),
        (("kept", "--before", "soon"), 2, "--before 'soon': write earliest"),
        (("kept:7", "--before", "latest"), 1, "no partition '7'; it has 1"),
        (("kept:", "--before", "latest"), 1, "'kept:' names no partition; write kept:0,2, or kept"),
        (("kpet", "--before", "latest"), 1, "Did you mean 'kept'?"),
    ):
        ran = kohort("topic", "delete-records", *args, "--execute")
        assert ran.code == code
        assert message in ran.err
    assert len(kohort("consume", "kept", "--from-beginning", "--until-end").lines) == 1
