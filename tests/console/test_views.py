"""What screens show, without a browser: figures, masks, the groups page."""

from __future__ import annotations

import pytest

from kohort.console.views.embedded import fault_words
from kohort.console.views.figures import age, duration, paging, records, spark
from kohort.console.views.group import group_page
from kohort.console.views.groups import groups_view
from kohort.console.views.masks import MASK, Masks, content
from kohort.observe.lag import Figure, Total
from kohort.observe.overview import Evidence, overview
from tests.observe.worlds import look, member, seen, snapshot

AT = ("orders", 0)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (400, "0.4 s"),
        (59_000, "59 s"),
        (252_000, "4 m 12 s"),
        (7_200_000, "2 h"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_durations(ms: int | None, text: str) -> None:
    assert duration(ms) == text


def test_an_unknown_figure_is_a_dash_with_its_reason() -> None:
    assert records(Figure(None, "nothing is committed yet")).text == "–"
    assert records(Figure(None, "nothing is committed yet")).title == "nothing is committed yet"
    assert age(Figure(None, "too old", at_least=60_000)).text == "≥ 1 m"
    assert records(Total(5, 2, True)).text == "≥ 5"
    assert records(Total(None, 1, True)).text == "–"
    assert records(Total(1_234, 0, False)).text == "1,234"


def test_pages_and_sparks() -> None:
    assert (paging(0, 7, 50).page, paging(0, 7, 50).pages) == (1, 1)
    place = paging(120, 3, 50)
    assert (place.first, place.last, place.pages) == (100, 120, 3)
    assert spark([1]) == spark([None, 2, None]) == ""
    assert spark([0, 0]).count(",") == 2
    assert len(spark(list(range(500))).split()) <= 80


def test_what_a_rule_matches_is_not_shown() -> None:
    masks = Masks(("*email*", "authorization"))
    shown = masks.value(b'{"id": 1, "user": {"Email": "a@b"}, "list": [{"work_email": 2}]}')
    assert shown.masked
    assert "a@b" not in shown.text
    assert shown.text.count(MASK) == 2
    assert '"id": 1' in shown.text
    assert masks.value(b"not json a@b").text == MASK
    assert masks.value(b"x" * 100_000).text == MASK
    assert masks.header("Authorization", b"secret").text == MASK
    assert masks.header("other", b"open").text == "open"
    assert Masks(("value",)).value(b"{}").text == MASK
    assert Masks(("value",)).key(b"k").text == "k"
    assert Masks(("key",)).key(b"k").text == MASK
    deep = b'{"a":' * 600 + b"1" + b"}" * 600
    assert masks.value(deep).text == MASK, "nested too deep to be masked by name"


def test_only_what_comes_back_as_it_was_is_offered_for_editing() -> None:
    plain, masks = Masks(), Masks(("*email*",))
    for raw in (b'{"a":1,  "a":"\\u00e4"}', b"two\n\tlines", b'\n["x"]', "ä".encode()):
        assert plain.editable(raw) == raw.decode()
    for raw in (None, b"\xff", b"a\r\nb", b"a\x00b", b"a\x1bb", b"x" * 100_000):
        assert plain.editable(raw) == ""
    assert masks.editable(b'{"a":1}') == '{"a":1}'
    for raw in (b"text", b'{"email": 1}', b'{"a": {"email": "a@b"}, "a": 2}'):
        assert masks.editable(raw) == "", "a name that is there twice may hide what a rule matches"
    assert masks.editable('{"a":1}'.encode("utf-16")) == ""
    assert Masks(("value",)).editable(b"{}") == ""
    assert Masks(("key",)).editable(b"text") == "text"


def test_contents_are_text_json_or_hex_and_bounded() -> None:
    assert content(None).form == "null"
    assert content(b"\xff\x00").form == "hex"
    assert content(b'{"a":1}').text == '{\n  "a": 1\n}'
    assert content(b"a\x1b[31m").text == "a\\x1b[31m"
    big = content("ä".encode() * 100_000)
    assert big.cut
    assert len(big.text) <= 64 << 10
    assert content(b"[" * 50_000).form == "text"


def test_the_groups_page_filters_sorts_and_pages() -> None:
    looks = [look(0, f"g{n:04}", {AT: seen(n, 3_000)}, member("m", AT)) for n in range(2_000)]
    found = overview(snapshot(0, *looks), None, Evidence())
    view = groups_view(found.lines, lambda _: (), {"sort": "lag", "page": "2"}, 0)
    assert len(view.rows) == 50
    assert view.rows[0].group == "g0050"
    assert view.paging.total == 2_000
    only = groups_view(found.lines, lambda _: (), {"q": "G1999"}, 0)
    assert [row.group for row in only.rows] == ["g1999"]
    none = groups_view(found.lines, lambda _: (), {"health": "stuck", "page": "x"}, 0)
    assert not none.rows
    assert none.paging.page == 1


def test_a_group_shows_the_worst_partition_first_and_a_cure() -> None:
    partitions = {("orders", n): seen(5, 50 + n) for n in range(150)}
    before = snapshot(0, look(0, "g", partitions, member("gone", AT)))
    now = snapshot(40, look(40, "g", partitions))
    later = snapshot(80, look(80, "g", partitions))
    assert before.groups
    found = overview(later, now, Evidence())
    page = group_page(found.groups["g"], (), {}, 80_000)
    assert page.health == "stuck"
    assert "nobody reads" in page.why
    assert page.partitions[0].partition == 149
    assert len(page.partitions) == 100
    assert any("/group/offsets" in cure.to for cure in page.cures)
    assert any(cure.command.startswith("kohort group timeline g") for cure in page.cures)


def test_a_fault_is_a_sentence() -> None:
    assert fault_words({"then": "fail", "api": ["Fetch"], "errors": ["NONE"], "handled": True}) == (
        "Fetch: answered with NONE after the request is carried out."
    )
    assert fault_words({"then": "delay", "delay_ms": 1_500}) == "Every API: answered 1,500 ms late."
    assert fault_words({"then": "silence", "api": ["Fetch", "Produce"]}) == (
        "Fetch and Produce: carried out and never answered."
    )
