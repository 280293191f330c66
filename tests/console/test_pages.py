"""The console over HTTP, without a browser: pages, JSON, who may, actions (spec 8.1, 8.2)."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

from kohort import Admin, Consumer, NewTopic, Producer, TopicPartition
from kohort.broker.faults.faulty_files import ERRORS, OPERATIONS
from kohort.console.web.render import link
from kohort.errors import KohortError, UsageError
from kohort.observe.faults import DISK_ERRORS, DISK_OPERATIONS
from tests.clusters import Embedded
from tests.console.world import (
    HOSTILE,
    LONG,
    TOKEN,
    World,
    console,
    control_port,
    waiting_app,
    world,
)
from tests.patience import until
from tests.reading import read_committed

SCREENS = (
    "/groups",
    "/group?name=billing",
    "/group?name=" + LONG,
    "/group/timeline?name=billing",
    "/group/offsets?name=exporter",
    "/group/offsets?name=exporter&to=earliest",
    "/dlq",
    "/dlq/topic?name=orders.fulfilment.dlt",
    "/dlq/redrive?name=orders.fulfilment.dlt",
    "/dlq/record?name=orders.fulfilment.dlt&partition=0&offset=0",
    "/retries",
    "/retries/group?topic=orders&group=fulfilment",
    "/retries/record?topic=orders&group=fulfilment&at=orders.fulfilment.retry.1h/0/0",
    "/topics",
    "/topic?name=orders",
    "/record",
    "/record?topic=orders&partition=0&offset=1",
    "/cluster",
    "/audit",
    "/processes",
    "/process?name=@process",
    "/pipelines",
    "/pipeline?name=loader&store=0",
    "/group/plan?name=exporter",
    "/group/plan?name=exporter&assignor=uniform&with=3",
    "/broker",
    "/broker/fault?then=fail&api=Heartbeat&errors=NOT_COORDINATOR&times=2&group=" + LONG,
    "/broker/fault?then=delay&api=Metadata&delay_ms=200",
    "/broker/fault?then=disk&operation=sync&error=EIO&path=" + LONG + "&after=3",
    "/broker/fault?then=fail&api=Metadatta&errors=NOT_COORDINATOR",
    "/broker/requests",
    "/broker/requests?api=Metadata",
    "/stories",
    "/stories?q=static",
    "/story?name=crash-4-generation-written",
    "/story?name=crash-4-generation-written&run=4&at=18",
    "/story?seed=1&members=2&faults=cut&at=100000",
)


def path_in(there: World, path: str) -> str:
    """A screen's path in this world: names that differ from run to run filled in."""
    return path.replace("@process", quote(there.agent.process))


@dataclass
class Answer:
    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    def hidden(self, name: str) -> str:
        found = re.search(f'name="{name}" value="([^"]*)"', self.text)
        assert found, f"no field {name}"
        return html.unescape(found[1])


class Visitor:
    """Somebody with a cookie."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc
        self.cookie = ""

    def ask(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        sent = {"cookie": self.cookie, **{k.replace("_", "-"): v for k, v in headers.items()}}
        body = None if form is None else urlencode(form)
        try:
            connection.request("GET" if form is None else "POST", path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
            found = {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return Answer(answer.status, text, found)


@pytest.fixture(scope="module")
def there() -> Iterator[World]:
    with world(allow_actions=True, masks=("secret",)) as made:
        yield made


@pytest.fixture
def visitor(there: World) -> Visitor:
    return Visitor(there.url)


@pytest.mark.parametrize("path", SCREENS)
def test_every_screen_is_a_page_and_json_and_escapes_records(
    path: str, there: World, visitor: Visitor
) -> None:
    wait_for_process(there)
    path = path_in(there, path)
    page = visitor.ask(path)
    assert page.status == 200, page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script>document" not in page.text
    assert "<script>alert" not in page.text
    assert "<em>till" not in page.text
    assert "style=" not in page.text  # the content policy forbids it
    data = visitor.ask(path + ("&" if "?" in path else "?") + "format=json").json
    assert data["schema"] == 1
    fragment = visitor.ask(path, hx_request="true")
    assert "<html" not in fragment.text


def test_half_a_surrogate_pair_is_shown_as_it_was_escaped(there: World, visitor: Visitor) -> None:
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("halves", 1)])
    with Producer(bootstrap_servers=there.cluster.bootstrap) as producer:
        value = b'{"note": "\\ud83d", "whole": "\\ud83d\\ude00"}'
        producer.send("halves", value, b"k").result(60)
    there.sample()
    page = visitor.ask("/record?topic=halves&partition=0&offset=0")
    assert page.status == 200
    assert '"note": "\\ud83d"' in html.unescape(page.text)
    assert '"whole": "\N{GRINNING FACE}"' in html.unescape(page.text)
    assert link("/groups", q="\ud83d") == "/groups?q=%5Cud83d"


def wait_for_process(there: World) -> None:
    """Until the process of this world has published its status."""
    pause = threading.Event()
    while True:
        with contextlib.suppress(UsageError):  # its topic is not there yet
            if there.server.fleet.processes():
                return
        pause.wait(0.05)


def test_a_process_is_paused_and_resumed_and_drained_only_when_confirmed(
    there: World, visitor: Visitor
) -> None:
    wait_for_process(there)
    path = f"/process?name={quote(there.agent.process)}"
    page = visitor.ask(path)
    assert "&lt;script&gt;alert" in page.text
    form = {
        "form_token": page.hidden("form_token"),
        "group": "fulfilment",
        "process": there.agent.process,
    }
    for action, state in (("pause", "paused"), ("resume", "running")):
        assert visitor.ask("/process", form | {"action": action}).status == 303
        found = visitor.ask(path + "&format=json").json
        assert found["row"]["state"] == state
        assert found["results"][0][0] == "done"
    assert visitor.ask("/process", form | {"action": "drain"}).status == 400
    assert visitor.ask("/process", form | {"action": "fly"}).status == 400
    assert visitor.ask("/process", form | {"action": "retry-now"}).status == 400, "it cannot"
    drained = visitor.ask("/process", form | {"action": "drain", "confirm": "fulfilment"})
    assert drained.headers["location"] == "/processes?group=fulfilment"
    rows = audited(visitor)
    assert [row["action"] for row in rows[:4]] == ["drain", "retry-now", "resume", "pause"]
    assert rows[1]["outcome"].startswith("failed: ")
    assert visitor.ask("/process?name=nobody").status == 404


def audited(visitor: Visitor) -> list[Any]:
    """How actions ended, the newest first; each has a line when it begins, too."""
    rows = visitor.ask("/audit?format=json").json["rows"]
    return [row for row in rows if row["outcome"] != "begun"]


def test_a_plan_shows_what_would_move_and_never_loads_a_class(
    there: World, visitor: Visitor
) -> None:
    with Consumer(
        bootstrap_servers=there.cluster.bootstrap, group_id="planned", client_id="p-1"
    ) as consumer:
        consumer.subscribe(["orders"])
        while len(consumer.assignment()) < 3:
            consumer.poll(0.1)
        there.sample()
        ask = "/group/plan?format=json&name=planned"
        found = visitor.ask(ask + "&with=p-2").json
        assert (found["total"], found["avoidable"], found["least"], found["most"]) == (
            1,
            1,
            "1",
            "2",
        )
        assert [row["change"] for row in found["members"]] == ["-1", "joins"]
        assert found["command"].startswith("kohort group plan --group planned --with p-2 -b")
        gone = visitor.ask(ask + "&without=p-1&with=p-2,p-3").json
        assert [row["change"] for row in gone["members"]] == ["leaves", "joins", "joins"]
        assert all(move["needed"] for move in gone["moves"])
    for query, note in (
        ("&assignor=os%3Asystem", "there is no assignor"),
        ("&without=nobody&assignor=range", "nobody in the group is"),
    ):
        assert note in visitor.ask(f"/group/plan?format=json&name=exporter{query}").json["note"]


def test_a_pipeline_shows_its_books_beside_the_group_and_the_log(visitor: Visitor) -> None:
    assert [one["name"] for one in visitor.ask("/pipelines?format=json").json["lines"]] == [
        "loader"
    ]
    found = visitor.ask("/pipeline?name=loader&store=0&format=json").json
    assert found["balanced"]
    assert {one["name"]: one["number"] for one in found["sums"]}["read"] == "10"
    (line,) = found["books"]
    assert (line["fence"], line["end"], line["behind"], line["committed"]) == ("10", "10", "0", "–")
    assert visitor.ask("/pipeline?name=none&store=0").status == 404
    assert visitor.ask("/pipeline?name=loader&store=7").status == 404


def test_the_same_figures_as_the_command_line(
    there: World, visitor: Visitor, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    from kohort.cli.common.root import app, invoke

    rows = visitor.ask("/groups?format=json").json["rows"]
    lags = {row["group"]: row["lag"]["value"] for row in rows}
    bootstrap = there.cluster.bootstrap
    assert invoke(app, ["group", "lag", "exporter", "-o", "json", "-b", bootstrap]) == 0
    printed = json.loads(capsysbinary.readouterr().out)["rows"]
    assert lags["exporter"] == sum(row["lag"] for row in printed) == 22
    assert lags["billing"] == 0


def test_what_failed_and_what_waits(visitor: Visitor) -> None:
    topic = visitor.ask("/dlq/topic?name=orders.fulfilment.dlt&format=json").json
    assert topic["looked_at"] == topic["total"] == 9
    (kind,) = topic["kinds"]
    assert kind["count"] == 9
    assert "no such customer" in kind["message"]
    row = topic["rows"][0]
    record = visitor.ask(
        f"/dlq/record?name=orders.fulfilment.dlt&partition={row['partition']}"
        f"&offset={row['offset']}&format=json"
    ).json
    assert "Permanent" in record["stack"]
    assert json.loads(record["value"]["text"]) == json.loads(HOSTILE)
    waiting = visitor.ask("/retries/group?topic=orders&group=fulfilment&format=json").json
    assert waiting["total"] == 9
    assert waiting["due_now"] == 0
    assert "warehouse" in waiting["rows"][0]["error"]
    journey = visitor.ask("/record?topic=orders&partition=0&offset=1&format=json").json
    assert [step["what"] for step in journey["steps"]] == ["dead letter"]
    folded = visitor.ask("/topics?format=json").json["rows"]
    orders = next(one for one in folded if one["name"] == "orders")
    assert {one["kind"] for one in orders["folded"]} == {"retry", "dead letters"}
    assert {"billing", "fulfilment"} <= set(orders["readers"])


def test_a_partition_that_nobody_answers_for_is_named_and_the_rest_is_shown(
    there: World, visitor: Visitor
) -> None:
    dead, waits = "orders.fulfilment.dlt", "orders.fulfilment.retry.1h"
    for path, topic in (
        (f"/dlq/topic?name={dead}", dead),
        ("/retries/group?topic=orders&group=fulfilment", waits),
        ("/record?topic=orders&partition=1&offset=1", dead),
    ):
        with there.cluster.faults.fail(
            "ListOffsets", "UNKNOWN_SERVER_ERROR", topic=topic, partition=0, times=1_000
        ):
            page = visitor.ask(path)
            assert page.status == 200, page.text
            assert f"No leader answers for {topic}-0." in page.text
            data = visitor.ask(path + "&format=json").json
        assert data["silent"] == [f"{topic}-0"]
        assert data.get("rows") or data["found"]
    with there.cluster.faults.fail(
        "ListOffsets", "UNKNOWN_SERVER_ERROR", topic="orders", partition=0, times=1_000
    ):
        page = visitor.ask("/record?topic=orders&partition=0&offset=1")
    assert page.status == 503
    assert "orders-0 cannot be read now" in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/group/timeline?name=billing",
        "/retries/group?topic=orders&group=fulfilment",
        "/dlq/topic?name=orders.fulfilment.dlt",
    ],
)
def test_a_page_that_reads_whole_topics_does_not_do_so_at_each_sample(
    path: str, visitor: Visitor
) -> None:
    page = visitor.ask(path).text
    assert 'data-live="no"' in page
    assert re.search(r'id="live"[^>]* hidden>', page), "it does not say that it is live"
    assert not re.search(r'id="live"[^>]* hidden>', visitor.ask("/groups").text)


def test_a_search_finds_nothing_that_is_hidden(there: World, visitor: Visitor) -> None:
    """Else answers of yes and no spell a hidden value out, letter by letter."""
    found = "/dlq/topic?name=orders.fulfilment.dlt&format=json&text="
    assert len(visitor.ask(found + "DOCUMENT.title").json["rows"]) == 9
    for rules in (("note",), ("value",), ("other", "value")):
        with console(there.cluster, masks=rules) as server:
            masked = Visitor(server.url.rstrip("/"))
            assert not masked.ask(found + "document.title").json["rows"], rules
            assert len(masked.ask(found + "no+such+CUSTOMER").json["rows"]) == 9
    with console(there.cluster, masks=("key", "other")) as server:
        masked = Visitor(server.url.rstrip("/"))
        assert len(masked.ask(found + "Document.title").json["rows"]) == 9, "it is shown"
        assert not masked.ask(found + "%3Cb%3Ekey").json["rows"]


def test_a_waiting_record_is_retried_and_another_dead_lettered(
    there: World, visitor: Visitor
) -> None:
    """Previewed, confirmed, audited, and done by the process that owns the partition, once."""
    with waiting_app(there.cluster, "tills") as handled:
        there.sample()
        path = "/retries/group?topic=tills&group=tills-app"
        rows = visitor.ask(path + "&format=json").json["rows"]
        at = {json.loads(row["origin"].rpartition("/")[2]): row["at"] for row in rows}
        assert len(at) == 5
        page = "/retries/record?topic=tills&group=tills-app&at="
        until(lambda: visitor.ask(page + at[3] + "&format=json").json["able"])
        shown = visitor.ask(page + at[3])
        assert "dead_lettered_by_hand" in shown.text
        assert "the till is &lt;b&gt;closed" in shown.text
        form = {"topic": "tills", "group": "tills-app", "at": at[3], "action": "retry-record"}
        token = {"form_token": shown.hidden("form_token")}
        assert visitor.ask("/retries/record", form | {"confirm": "yes"}).status == 403
        assert visitor.ask("/retries/record", form | token).status == 400, "not confirmed"
        assert handled == []
        form |= token | {"confirm": "yes"}
        assert visitor.ask("/retries/record", form).headers["location"] == path
        until(lambda: handled == [b'{"till": 3}'])
        twice = visitor.ask("/retries/record", form)
        assert (twice.status, "was handled" in twice.text) == (400, True)
        dead = form | {"at": at[1], "action": "dead-letter-record"}
        assert visitor.ask("/retries/record", dead).status == 303
        # Worker threads fail the records, so their order in the retry topic is not that of `tills`.
        left = {at[0], at[2], at[4]}
        until(lambda: {r["at"] for r in visitor.ask(path + "&format=json").json["rows"]} == left)
        (letter,) = visitor.ask("/dlq/topic?name=tills.tills-app.dlt&format=json").json["rows"]
        assert letter["reason"] == "dead_lettered_by_hand"
        audit = audited(visitor)[:3]
        assert [row["action"] for row in audit] == [
            "dead-letter-record",
            "retry-record",
            "retry-record",
        ]
        assert [row["target"] for row in audit] == [at[1], at[3], at[3]]
        wrong = visitor.ask("/retries/record", form | {"action": "drain"})
        assert wrong.status == 400
    for odd in ("x", at[0] + "9", "orders/0/0", "tills.tills-app.retry.1h/0/99"):
        assert visitor.ask(page + odd).status == 404


def test_a_rebalance_has_its_cause(visitor: Visitor) -> None:
    view = visitor.ask("/group/timeline?name=billing&format=json").json
    assert view["rows"]
    assert any("till" in row["came"] for row in view["rows"])
    assert view["lanes"]


def test_rebalances_that_the_coordinator_has_forgotten_are_read_from_the_log(
    there: World, visitor: Visitor
) -> None:
    """Its memory begins empty after a restart, and where the group moves to."""
    path = "/group/timeline?name=billing&format=json"
    before = [row["number"] for row in visitor.ask(path).json["rows"]]
    there.cluster.move_coordinator("billing")
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:
        assert admin.group_timeline("billing") == []
    assert [row["number"] for row in visitor.ask(path).json["rows"]] == before != []


def test_what_is_not_there_says_so(visitor: Visitor) -> None:
    for path, status, text in (
        ("/group?name=bling", 404, "Did you mean &#39;billing&#39;"),
        ("/nowhere", 404, "no page"),
        ("/group", 400, "needs name"),
        ("/dlq/topic?name=orders", 404, "dead-letter topic"),
        ("/record?topic=orders&partition=0&offset=x", 400, "whole number"),
        ("/record?topic=orders&partition=9&offset=0", 404, "no partition"),
        ("/group/offsets?name=exporter&to=never", 503, "earliest, latest"),
    ):
        answer = visitor.ask(path)
        assert (answer.status in (status, 400), text in answer.text) == (True, True), path


def test_offsets_are_previewed_confirmed_audited_and_undone(there: World, visitor: Visitor) -> None:
    path = "/group/offsets?name=exporter&to=shift%3A%2B3"
    page = visitor.ask(path)
    form = {
        "form_token": page.hidden("form_token"),
        "name": "exporter",
        "plan": page.hidden("plan"),
        "was": page.hidden("was"),
        "confirm": "exporter",
    }
    assert json.loads(form["plan"]) == {"clicks:0": 7, "clicks:1": 7}
    assert visitor.ask("/group/offsets", form | {"form_token": "made up"}).status == 403
    assert visitor.ask("/group/offsets", form, origin="http://evil.example").status == 403
    assert visitor.ask("/group/offsets", form | {"confirm": "no"}).status == 400
    done = visitor.ask("/group/offsets", form)
    assert done.status == 303
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:
        at = admin.list_group_offsets("exporter")
        assert at[TopicPartition("clicks", 0)].offset == 7
        there.sample()
        undo = re.search(r"undo=(\d+)", visitor.ask(done.headers["location"]).text)
        assert undo
        again = visitor.ask(f"/group/offsets?name=exporter&undo={undo[1]}")
        back = {name: again.hidden(name) for name in ("plan", "was")}
        assert visitor.ask("/group/offsets", form | back).status == 303
        assert admin.list_group_offsets("exporter")[TopicPartition("clicks", 0)].offset == 4
    rows = audited(visitor)
    assert [row["action"] for row in rows[:2]] == ["set offsets", "set offsets"]
    assert "127.0.0.1" in rows[0]["who"]


def test_offsets_whose_answer_is_lost_are_audited_and_can_be_undone(there: World) -> None:
    with (
        console(there.cluster, allow_actions=True) as server,
        Admin(bootstrap_servers=there.cluster.bootstrap) as admin,
    ):
        try:
            with there.cluster.faults.cut("OffsetCommit", handled=True, group="exporter"):
                lost = skip_one(server.url)
            assert admin.list_group_offsets("exporter")[TopicPartition("clicks", 0)].offset == 5
            assert lost.status == 503
            assert "set offsets exporter: it is not known whether it was done" in lost.text
            visitor = Visitor(server.url.rstrip("/"))
            assert len(visitor.ask("/group/offsets?name=exporter&format=json").json["undos"]) == 1
            last, first = visitor.ask("/audit?format=json").json["rows"]
            assert first["outcome"] == "begun"
            assert json.loads(first["details"])["before"] == {"clicks:0": 4, "clicks:1": 4}
            assert last["outcome"].startswith("not known: ")
        finally:
            admin.alter_group_offsets("exporter", {("clicks", n): 4 for n in (0, 1)})


def test_offsets_of_partitions_that_no_leader_answers_for_stay(
    there: World, visitor: Visitor
) -> None:
    """At a time, "no answer" is not "no record since": such a group would continue at the end."""
    for place in ("@-1h", "earliest"):
        with there.cluster.faults.fail(
            "ListOffsets", "UNKNOWN_SERVER_ERROR", topic="clicks", partition=0, times=1_000
        ):
            page = visitor.ask(f"/group/offsets?name=exporter&to={place}")
        assert page.status == 200, page.text
        assert "No leader answers for clicks-0." in page.text
        assert json.loads(page.hidden("plan")) == {"clicks:1": 0}
    times = there.cluster.faults.fail(
        "ListOffsets", ["NONE"] * 2 + ["UNKNOWN_SERVER_ERROR"] * 9, topic="clicks", partition=0
    )
    with times:
        page = visitor.ask("/group/offsets?name=exporter&to=@-1h")
    assert json.loads(page.hidden("plan")) == {"clicks:1": 0}, "only the time is not answered"


def test_records_that_are_not_there_are_not_read_again_or_skipped(there: World) -> None:
    """A topic made again, and one whose first records are gone."""
    tp = TopicPartition("short", 0)
    with (
        console(there.cluster) as server,
        Admin(bootstrap_servers=there.cluster.bootstrap) as admin,
    ):
        admin.create_topics([NewTopic(tp.topic, 1)])
        with Producer(bootstrap_servers=there.cluster.bootstrap) as producer:
            for _ in range(8):
                producer.send(tp.topic, b"v")
        admin.delete_records({tp: 5})
        visitor = Visitor(server.url.rstrip("/"))
        for committed, place, figures in (
            (900, "latest", (0, 0, 1)),
            (900, "earliest", (3, 0, 1)),
            (2, "earliest", (0, 0, 1)),
            (2, "latest", (0, 3, 1)),
            (6, "shift:+1", (0, 1, 1)),
        ):
            admin.alter_group_offsets("shortened", {tp: committed})
            server.sampler.sample()
            view = visitor.ask(f"/group/offsets?name=shortened&to={quote(place)}&format=json").json
            assert (view["again"], view["skipped"], view["changes"]) == figures, place


def test_offsets_that_have_moved_since_the_preview_are_not_set(
    there: World, visitor: Visitor
) -> None:
    page = visitor.ask("/group/offsets?name=exporter&to=shift%3A%2B2")
    form = {each: page.hidden(each) for each in ("form_token", "name", "plan", "was")}
    form["confirm"] = "exporter"
    assert json.loads(form["was"]) == {"clicks:0": 4, "clicks:1": 4}
    for odd in ({}, {"clicks:0": 4}, {"clicks:0": 4, "clicks:1": 4, "orders:0": 1}):
        assert visitor.ask("/group/offsets", form | {"was": json.dumps(odd)}).status == 400
    place = TopicPartition("clicks", 1)
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:
        try:
            admin.alter_group_offsets("exporter", {place: 5})
            moved = visitor.ask("/group/offsets", form)
            admin.delete_group_offsets("exporter", [place])
            gone = visitor.ask("/group/offsets", form)
            assert admin.list_group_offsets("exporter")[TopicPartition("clicks", 0)].offset == 4
        finally:
            admin.alter_group_offsets("exporter", {place: 4})
    for refused in (moved, gone):
        assert refused.status == 400
        assert "the group has moved since the preview (clicks-1); look again" in refused.text


def test_an_audit_that_cannot_be_written_is_said_before_or_after(
    there: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is done that cannot be noted; what was done all the same is said to be done."""
    place, path = TopicPartition("clicks", 0), tmp_path / "folder" / "audit.jsonl"
    with (
        pytest.raises(KohortError, match=r"audit\.jsonl cannot be written: No such file"),
        console(there.cluster, audit=path),
    ):
        pass
    path.parent.mkdir()
    with (
        console(there.cluster, allow_actions=True, audit=path) as server,
        Admin(bootstrap_servers=there.cluster.bootstrap) as admin,
    ):
        path.unlink()
        path.mkdir()
        refused = skip_one(server.url)
        assert refused.status == 503
        assert "nothing was done" in refused.text
        assert "Is a directory" in refused.text
        assert admin.list_group_offsets("exporter")[place].offset == 4
    with (
        console(there.cluster, allow_actions=True, audit=tmp_path / "full.jsonl") as server,
        Admin(bootstrap_servers=there.cluster.bootstrap) as admin,
    ):
        alter, full = server.admin.alter_group_offsets, Path("/dev/full")

        def fill_the_disk(*offsets: Any) -> None:
            alter(*offsets)
            (tmp_path / "full.jsonl").unlink()
            (tmp_path / "full.jsonl").symlink_to(full)

        monkeypatch.setattr(server.admin, "alter_group_offsets", fill_the_disk)
        try:
            done = skip_one(server.url)
            assert done.status == 503
            assert "set offsets exporter: done" in done.text
            assert "full.jsonl cannot be written: No space left" in done.text
            assert admin.list_group_offsets("exporter")[place].offset == 5
            assert "set offsets" in Visitor(server.url.rstrip("/")).ask("/audit").text
        finally:
            admin.alter_group_offsets("exporter", {("clicks", n): 4 for n in (0, 1)})


def skip_one(url: str) -> Answer:
    visitor = Visitor(url.rstrip("/"))
    page = visitor.ask("/group/offsets?name=exporter&to=shift%3A%2B1")
    form = {each: page.hidden(each) for each in ("form_token", "name", "plan", "was")}
    return visitor.ask("/group/offsets", form | {"confirm": "exporter"})


def test_a_redrive_whose_begin_cannot_be_noted_is_not_begun(there: World) -> None:
    with console(there.cluster, allow_actions=True, audit=Path("/dev/full")) as server:
        visitor = Visitor(server.url.rstrip("/"))
        page = visitor.ask("/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A1")
        form = {each: page.hidden(each) for each in ("form_token", "name", "id", "offsets")}
        refused = visitor.ask("/dlq/redrive", form | {"confirm": "yes"})
        assert refused.status == 503
        assert "nothing was done" in refused.text
        assert visitor.ask(f"/job?id={form['id']}").status == 404


def test_a_redrive_is_previewed_sent_and_done_once(there: World, visitor: Visitor) -> None:
    none = visitor.ask("/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A1-0")
    assert none.status == 400, "a range from its end sent nothing"
    page = visitor.ask("/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A0-1")
    assert "<strong>2</strong>" in page.text
    form = {name: page.hidden(name) for name in ("form_token", "name", "id", "offsets")}
    other = {**form, "offsets": "0:0", "confirm": "yes"}
    assert visitor.ask("/dlq/redrive", other).status == 400  # another choice under the same id
    assert visitor.ask("/dlq/redrive", form).status == 400  # not confirmed
    for _ in range(2):
        begun = visitor.ask("/dlq/redrive", form | {"confirm": "yes"})
        assert begun.status == 303, begun.text
        while not (job := visitor.ask(begun.headers["location"] + "&format=json").json)["outcome"]:
            pass
        assert job["outcome"].startswith("done"), job
    found = read_committed(there.cluster.bootstrap, "orders.fulfilment.retry.0s", 3)
    assert len(found) == 2
    assert found[0].value == HOSTILE


def test_a_rate_that_is_no_number_is_refused(visitor: Visitor) -> None:
    page = visitor.ask("/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A1")
    form = {each: page.hidden(each) for each in ("form_token", "name", "id", "offsets")}
    for rate in ("1,5", "fast", "nan", "0", "-1", "1e10"):
        refused = visitor.ask("/dlq/redrive", form | {"confirm": "yes", "rate": rate})
        assert refused.status == 400
        assert "records a second, more than 0" in refused.text


def test_all_selected_records_are_redriven_not_only_the_last(visitor: Visitor) -> None:
    chosen = "offsets=0%3A0&offsets=0%3A1&offsets=1%3A0"
    found = visitor.ask(f"/dlq/redrive?name=orders.fulfilment.dlt&{chosen}&format=json").json
    assert found["sent"] == 3
    assert found["chosen"]["offsets"] == "0:0 0:1 1:0"
    page = visitor.ask(f"/dlq/redrive?name=orders.fulfilment.dlt&{chosen}&edit=a%0D%0Ab")
    assert page.status == 400, "one value for several records"
    page = visitor.ask("/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A0&edit=a%0D%0Ab")
    assert page.hidden("edit") == "a\nb"
    form = {each: page.hidden(each) for each in ("form_token", "name", "id", "offsets")}
    sent = visitor.ask("/dlq/redrive", form | {"edit": "a\r\nb", "confirm": "yes"})
    assert sent.status == 303, "a browser ends lines with CR LF: it is the same choice"
    while not (job := visitor.ask(sent.headers["location"] + "&format=json").json)["outcome"]:
        pass
    assert job["outcome"].startswith("done: 1 sent"), job


def test_a_value_is_offered_for_editing_exactly_as_it_is(visitor: Visitor) -> None:
    page = visitor.ask("/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A0")
    field = re.search(r"<textarea [^>]*>(.*?)</textarea>", page.text, re.DOTALL)
    assert field
    assert html.unescape(field[1]) == "\n" + HOSTILE.decode(), "a browser drops the first line end"


def test_a_console_without_actions_changes_nothing(there: World) -> None:
    with console(there.cluster) as server:
        visitor = Visitor(server.url)
        page = visitor.ask("/groups")
        assert page.status == 200
        token = server.desk and visitor.cookie
        form = {
            "form_token": "",
            "name": "exporter",
            "plan": '{"clicks:0": 0}',
            "confirm": "exporter",
        }
        assert token
        assert visitor.ask("/group/offsets", form).status == 403
        record = "/retries/record?topic=orders&group=fulfilment&at=orders.fulfilment.retry.1h/0/0"
        assert "Retry now" not in visitor.ask(record).text
        assert "Set the offsets" not in visitor.ask("/group/offsets?name=exporter&to=earliest").text


def test_a_login_is_needed_where_there_is_a_token(there: World) -> None:
    with console(there.cluster, token=TOKEN) as server:
        visitor = Visitor(server.url)
        turned = visitor.ask("/groups")
        assert turned.status == 303
        assert turned.headers["location"].startswith("/login")
        assert visitor.ask("/events").status == 401
        assert visitor.ask("/login", {"token": "wrong"}).status == 403
        assert visitor.ask("/groups", authorization=f"Bearer {TOKEN}").status == 200
        came = visitor.ask("/login?to=//evil.example", {"token": TOKEN})
        assert came.headers["location"] == "/groups"
        assert visitor.ask("/groups").status == 200


def test_two_consoles_on_one_host_keep_their_own_sessions(there: World) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    with console(there.cluster) as other:
        jar: dict[str, str] = {}
        fresh: list[bool] = []
        for url in (there.url, other.url.rstrip("/")) * 2:
            visitor = Visitor(url)
            visitor.cookie = "; ".join(f"{name}={value}" for name, value in jar.items())
            answer = visitor.ask("/groups")
            fresh.append("set-cookie" in answer.headers)
            if fresh[-1]:
                name, _, value = visitor.cookie.partition("=")
                jar[name] = value
    assert fresh == [True, True, False, False]


def test_another_host_is_refused(visitor: Visitor) -> None:
    assert visitor.ask("/groups", host="evil.example").status == 421


def test_a_broker_that_is_away_leaves_the_rest_of_the_page_under_a_banner(
    there: World, visitor: Visitor
) -> None:
    home = there.cluster.coordinator_of("exporter")
    away = 3 - home
    with there.cluster.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=1, node=away):
        there.sample()
    page = visitor.ask("/groups")
    assert page.status == 200
    assert "Shown in part." in page.text
    assert f"broker {away} does not answer" in page.text
    rows = {row["group"] for row in visitor.ask("/groups?format=json").json["rows"]}
    assert "exporter" in rows
    there.sample()
    assert "Shown in part." not in visitor.ask("/groups").text


def test_no_groups_at_all() -> None:
    with Embedded() as cluster, console(cluster) as server:
        visitor = Visitor(server.url)
        page = visitor.ask("/groups")
        assert "No groups" in page.text
        for path in ("/dlq", "/retries", "/topics", "/cluster"):
            assert visitor.ask(path).status == 200


def test_a_fault_is_previewed_set_met_and_removed(there: World, visitor: Visitor) -> None:
    """Screen 13: nothing is set by looking; it meets requests until it is removed; audited."""
    query = "then=fail&api=FindCoordinator&errors=COORDINATOR_NOT_AVAILABLE&client_id=probe"
    path = f"/broker/fault?{query}"
    before = visitor.ask("/broker?format=json").json["faults"]
    page = visitor.ask(path)
    assert "FindCoordinator: answered with COORDINATOR_NOT_AVAILABLE." in page.text
    assert visitor.ask("/broker?format=json").json["faults"] == before
    form = {"form_token": page.hidden("form_token"), "fault": page.hidden("fault")}
    assert visitor.ask("/broker/fault", form).status == 400
    assert visitor.ask("/broker/fault", {**form, "form_token": "x", "confirm": "yes"}).status == 403
    assert visitor.ask("/broker/fault", {**form, "confirm": "yes"}).status == 303
    made = visitor.ask("/broker?format=json").json["faults"][-1]
    assert made["about"] == "client_id=probe"
    with Consumer(
        bootstrap_servers=there.cluster.bootstrap, group_id="probed", client_id="probe"
    ) as consumer:
        consumer.subscribe(["orders"])
        until(lambda: consumer.poll(0.1) is not None and consumer.assignment())
    seen = visitor.ask("/broker/requests?api=FindCoordinator&client=probe&format=json").json["rows"]
    assert [one["outcome"] for one in seen if one["fault"] == f"fault {made['id']}"] == [
        "COORDINATOR_NOT_AVAILABLE"
    ]
    assert visitor.ask("/broker?format=json").json["faults"][-1]["spent"]
    remove = {"form_token": form["form_token"], "id": str(made["id"])}
    assert visitor.ask("/broker/fault/remove", remove).status == 303
    assert visitor.ask("/broker?format=json").json["faults"] == before
    rows = audited(visitor)
    assert [row["action"] for row in rows[:2]] == ["remove fault", "add fault"]
    assert rows[1]["target"] == f"fault {made['id']}"


def test_the_preview_of_a_fault_counts_the_requests_that_it_would_have_met(
    there: World, visitor: Visitor
) -> None:
    with Admin(bootstrap_servers=there.cluster.bootstrap, client_id="counted") as admin:
        admin.list_topics()
    met = sum(1 for one in there.cluster.requests if one.client_id == "counted")
    path = "/broker/fault?then=delay&delay_ms=200&api=Metadata"
    view = visitor.ask("/broker/fault?then=cut&client_id=counted&format=json").json
    assert view["met"] == met > 0
    view = visitor.ask(f"{path}&format=json").json
    assert view["met"] > 0
    assert "kohort faults add delay Metadata --ms 200 --control" in view["command"]
    assert visitor.ask(f"{path}&group={LONG}&format=json").json["met"] == 0
    wrong = visitor.ask("/broker/fault?then=fail&api=Metadatta&errors=NONE&format=json").json
    assert "did you mean 'Metadata'" in wrong["note"]


def test_a_node_is_brought_down_and_up_and_never_the_last_one(
    there: World, visitor: Visitor
) -> None:
    page = visitor.ask("/broker")
    form = {"form_token": page.hidden("form_token"), "node": "2", "action": "down"}
    assert visitor.ask("/broker/node", form).status == 400
    assert visitor.ask("/broker/node", {**form, "confirm": "yes"}).status == 303
    assert not visitor.ask("/broker?format=json").json["nodes"][1]["running"]
    last = visitor.ask("/broker/node", {**form, "node": "1", "confirm": "yes"})
    assert last.status == 400
    assert "the last one" in last.text
    assert visitor.ask("/broker/node", {**form, "action": "up"}).status == 303
    assert visitor.ask("/broker?format=json").json["nodes"][1]["running"]


def test_a_page_names_the_sample_that_came_before_it(there: World, visitor: Visitor) -> None:
    """What the browser compares with the event stream: a later sample is news."""
    there.sample()
    number = there.server.sampler.number
    assert f'data-sample="{number}"' in visitor.ask("/groups").text


def test_a_story_is_stepped_through(there: World, visitor: Visitor) -> None:
    """Owners follow the lines: nothing at the first, everything at the last."""
    name = "/story?name=crash-4-generation-written&format=json"
    first = visitor.ask(name).json
    assert first["number"] == 1
    assert [one["count"] for one in first["owners"]] == [0, 0, 0]
    last = visitor.ask(f"{name}&at={first['total']}").json
    assert sorted(one["count"] for one in last["owners"]) == [2, 2, 2]
    assert last["ending"] == "every promise holds"
    step = visitor.ask(f"{name}&at={first['next_step']}").json
    assert next(line["kind"] for line in step["lines"] if line["now"]) == "step"
    assert visitor.ask("/story?name=../../etc/passwd").status == 404
    assert visitor.ask("/story?name=b1-given-back-while-given-up&run=9999").status == 404
    assert visitor.ask("/story?seed=1&faults=nothing-like-it").status == 400
    assert visitor.ask("/story?seed=-1").status == 400


def test_a_console_without_a_control_port_says_how_to_get_one(there: World) -> None:
    with console(there.cluster) as server:
        alone = Visitor(server.url)
        assert "kohort broker run --control" in alone.ask("/broker").text
        assert "kohort broker run --control" in alone.ask("/broker/requests").text
        assert alone.ask("/broker/fault?then=cut").status == 400
        assert alone.ask("/story?seed=1&members=1&faults=none").status == 200
        assert 'href="/broker"' not in alone.ask("/groups").text


def test_a_fault_of_the_disk_is_previewed_set_met_and_removed() -> None:
    """Screen 13 has the faults that the command line has."""
    with (
        Embedded(request_log=100) as cluster,
        control_port(cluster) as control,
        console(cluster, control=control, allow_actions=True) as server,
    ):
        visitor = Visitor(server.url)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("written", 1)])
        path = "/broker/fault?then=disk&operation=append&error=ENOSPC&path=written-0/*&times=1"
        page = visitor.ask(path)
        assert "The next append of written-0/* fails with ENOSPC." in page.text
        command = visitor.ask(f"{path}&after=2&format=json").json["command"]
        assert "disk append --error ENOSPC --path 'written-0/*' --after 2 --times 1" in command
        form = {"form_token": page.hidden("form_token"), "fault": page.hidden("fault")}
        assert visitor.ask("/broker/fault", form).status == 400, "not confirmed"
        assert visitor.ask("/broker/fault", {**form, "confirm": "yes"}).status == 303
        made = visitor.ask("/broker?format=json").json["faults"][-1]
        assert (made["id"], made["about"], made["left"]) == (None, "path=written-0/*", "1")
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("written", b"not written at first").result(60)
        assert visitor.ask("/broker?format=json").json["faults"][-1]["spent"]
        assert visitor.ask("/audit?format=json").json["rows"][0]["target"] == "fault of the disk"
        remove = {"form_token": form["form_token"], "id": "all", "confirm": "yes"}
        assert visitor.ask("/broker/fault/remove", remove).status == 303
        assert visitor.ask("/broker?format=json").json["faults"] == []
        wrong = visitor.ask("/broker/fault?then=disk&operation=write&format=json").json
        assert "append, sync, read" in wrong["note"]


def test_the_disk_fails_by_the_words_of_the_broker() -> None:
    assert (OPERATIONS, tuple(ERRORS)) == (DISK_OPERATIONS, DISK_ERRORS)
