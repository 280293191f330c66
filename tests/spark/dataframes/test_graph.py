"""Sources, references and steps, and the stages they form (spec 6.2)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.broker.log.directory import topic_name_fault
from kohort.errors import ConfigError
from kohort.spark.dataframes.graph import (
    Graph,
    Reference,
    Source,
    TableTarget,
    ValueFormat,
    identifier,
    intermediate_topic,
    mode_of,
)


def graph(*sources: str, references: tuple[str, ...] = ()) -> Graph:
    made = Graph()
    for name in sources:
        made.add_source(Source(name, f"t-{name}", ValueFormat("text")))
    for name in references:
        made.add_reference(Reference(name, f"t-{name}", ValueFormat("text"), ("key",), 1))
    return made


def table(name: str, *key: str) -> TableTarget:
    return TableTarget(name, key, "upsert" if key else "append", None, ())


def add(made: Graph, code: str, target: TableTarget | None = None, mode: str | None = None) -> None:
    """Register a function of this signature, such as `clean(matches, teams)`."""
    scope: dict[str, Any] = {}
    exec(f"def {code}: ...", scope)
    made.add_step(scope[code.partition("(")[0]], target, mode)


def shape(made: Graph, *stateful: str) -> list[tuple[str, list[str], list[str], list[str]]]:
    stages = made.stages({name: name in stateful for name in made.steps})
    return [(s.name, s.reads, [step.name for step in s.steps], s.forwards) for s in stages]


def test_narrow_steps_are_one_stage_and_a_stateful_one_reads_an_intermediate_topic() -> None:
    made = graph("matches", references=("teams",))
    add(made, "changes(standings)")
    add(made, "standings(clean)", table("standings", "team"))
    add(made, "clean(matches, teams)", table("matches"))
    made.check()
    assert shape(made, "standings") == [
        ("matches", ["matches"], ["clean"], ["clean"]),
        ("standings", ["clean"], ["standings", "changes"], []),
    ]


def test_a_stateful_step_on_a_source_reads_what_the_source_hands_on() -> None:
    made = graph("a")
    add(made, "counts(a)", table("t", "k"))
    assert shape(made, "counts") == [("a", ["a"], [], ["a"]), ("counts", ["a"], ["counts"], [])]


def test_a_union_of_sources_makes_one_stage_of_both() -> None:
    made = graph("a", "b", "c")
    add(made, "clean_a(a)")
    add(made, "both(clean_a, b)", table("t"))
    add(made, "alone(c)", table("u"))
    assert shape(made) == [("a", ["a", "b"], ["clean_a", "both"], []), ("c", ["c"], ["alone"], [])]


def test_a_join_of_two_streams_reads_both_intermediate_topics() -> None:
    made = graph("a", "b")
    add(made, "pairs(a, b)", table("t"))
    assert shape(made, "pairs") == [
        ("a", ["a"], [], ["a"]),
        ("b", ["b"], [], ["b"]),
        ("pairs", ["a", "b"], ["pairs"], []),
    ]


def test_a_source_that_nothing_reads_is_no_stage() -> None:
    made = graph("a", "b")
    add(made, "clean(a)", table("t"))
    assert [name for name, *_ in shape(made)] == ["a"]


def test_results_that_change_are_not_counted_again() -> None:
    """A stateful step over update-mode results would count a group once for each change."""
    made = graph("a")
    add(made, "counts(a)", table("t", "k"))
    add(made, "again(counts)", table("u", "k"))
    with pytest.raises(ConfigError, match="counted more than once"):
        shape(made, "counts", "again")
    made = graph("a")
    add(made, "counts(a)", table("t", "k"), "append")
    add(made, "again(counts)", table("u", "k"))
    assert [name for name, *_ in shape(made, "counts", "again")] == ["a", "counts", "again"]


def test_a_step_that_keeps_state_joins_no_reference() -> None:
    """It would never see a later row of it."""
    made = graph("a", references=("teams",))
    add(made, "counts(a, teams)", table("t", "k"))
    with pytest.raises(ConfigError, match="step counts keeps state and reads reference teams"):
        shape(made, "counts")


def test_rows_of_a_stateful_step_are_not_mixed_with_others() -> None:
    made = graph("a")
    add(made, "counts(a)", table("t", "k"))
    add(made, "mixed(counts, a)", table("u"))
    with pytest.raises(ConfigError, match="step mixed reads rows of a stateful step together"):
        shape(made, "counts")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("clean(matchs)", "step clean reads 'matchs', which is not there; matches, teams are"),
        ("clean(clean)", "in a circle: clean"),
        ("clean()", "has no parameters"),
        ("matches(x)", "the name matches is used twice"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(code: str, message: str) -> None:
    made = graph("matches", references=("teams",))
    with pytest.raises(ConfigError, match=message):  # noqa: PT012 - some are found when added
        add(made, code)
        made.check()
        shape(made)


def test_a_step_needs_a_source() -> None:
    made = graph("a", references=("teams",))
    add(made, "x(a)", table("t"))
    add(made, "only(teams)")
    with pytest.raises(ConfigError, match="only reads references only"):
        shape(made)


def test_a_source_that_no_step_reads_is_refused() -> None:
    """Its records would be owed for ever: `until_idle` never ended."""
    made = graph("a", "b", references=("teams",))
    add(made, "x(a)", table("t"))
    with pytest.raises(ConfigError, match="source b is read by no step"):
        made.check()


def test_two_steps_into_one_table_are_refused() -> None:
    made = graph("a")
    add(made, "x(a)", table("t"))
    add(made, "y(a)", table("t"))
    with pytest.raises(ConfigError, match="steps x and y fill one table t"):
        made.check()


def test_the_output_mode_follows_the_key() -> None:
    made = graph("a")
    add(made, "x(a)", table("t", "k"))
    add(made, "y(a)", table("u"))
    add(made, "z(a)", table("v"), "complete")
    assert [mode_of(made.steps[n]) for n in "xyz"] == ["update", "append", "complete"]
    with pytest.raises(ConfigError, match="one of append, update, complete"):
        add(made, "w(a)", table("w"), "replace")


def test_names_of_topics_become_names_of_parameters() -> None:
    assert identifier("league.matches-2013") == "league_matches_2013"
    assert intermediate_topic("my pipeline", "clean") == "kohort.my_pipeline.clean.intermediate"
    assert topic_name_fault(intermediate_topic("tägliche-tore", "größe", "höhe")) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "jsn"}, "rows: format 'jsn'.*did you mean 'json'"),
        ({}, "rows: format=json needs schema, as DDL"),
        ({"format": "avro"}, "rows: format=avro needs schema; or schema_registry"),
        ({"format": "text", "schema": "n INT"}, "rows: format text has no schema"),
        ({"schema": 5}, "rows: schema= is text"),
        ({"schema": "n INT", "schema_evolution": "widen"}, "schema_evolution=widen is for avro"),
        ({"schema": "n INT", "schema_evolution": "x"}, "schema_evolution='x': one of ignore"),
    ],
)
def test_a_format_that_cannot_be_is_refused_when_it_is_registered(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ValueFormat.of("rows", "t", settings)


def test_the_subject_of_a_source_is_its_topics() -> None:
    decoded = ValueFormat.of("rows", "t", {"format": "avro", "schema_registry": "http://r"}).decoded
    assert decoded is not None
    assert (decoded.subject, decoded.schema, decoded.evolution) == ("t-value", None, "ignore")


def test_each_reader_of_handed_on_rows_has_a_topic_of_its_own() -> None:
    """Positions are kept by topic: two queries over one topic would move each other's."""
    made = graph("a")
    add(made, "clean(a)", table("t"))
    add(made, "sums(clean)", table("sums", "k"))
    add(made, "counts(clean)", table("counts", "k"))
    stages = made.stages({"clean": False, "sums": True, "counts": True})
    assert stages[0].forwarded_to("p") == {
        "kohort.p.clean.intermediate": "clean",
        "kohort.p.clean.counts.intermediate": "clean",
    }
