"""Every action of the console, in a real Chromium, on a desk and on a phone (spec 8.2).

Each is carried out as somebody would: from a link to the preview, the confirmation and its outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kohort import Admin, TopicPartition
from tests.console.browser import SIZES, Browser, chromium, unavailable
from tests.console.test_pages import path_in, wait_for_process
from tests.console.world import TOKEN, World, console, waiting_app, world

pytestmark = [
    pytest.mark.browser,
    pytest.mark.extended,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-"),
]
FAILED = "/dlq/topic?name=orders.fulfilment.dlt"
OUTCOME = "section.verdict .sentence"


@pytest.fixture(scope="module")
def there() -> Iterator[World]:
    with world(allow_actions=True) as made:
        yield made


@pytest.fixture(scope="module")
def only() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(params=SIZES)
def browser(only: Browser, request: pytest.FixtureRequest) -> Browser:
    only.look_like(request.param, "light" if request.param == "desk" else "dark")
    return only


def send(browser: Browser) -> None:
    """Confirm the preview of a redrive."""
    browser.click('input[name="confirm"]')
    browser.submit("form .primary")


def test_a_kind_of_failure_is_redriven(there: World, browser: Browser) -> None:
    browser.driver.get(there.url + FAILED)
    browser.click('td[data-label="Redrive"] a')
    browser.until(lambda: "would be sent" in browser.text(OUTCOME))
    send(browser)
    assert not browser.wrong()
    browser.until(lambda: browser.text(OUTCOME).startswith("done"))
    browser.picture("job")


def test_chosen_records_are_redriven_slowly_paused_and_continued(
    there: World, browser: Browser
) -> None:
    browser.driver.get(there.url + FAILED)
    browser.click('input[data-select="offsets"]')
    browser.click('form[action="/dlq/redrive"] button')
    browser.write('input[name="rate"]', "0.01")
    send(browser)
    browser.until(lambda: browser.text(OUTCOME) == "running")
    browser.submit('form[action="/job/pause"] button')
    browser.until(lambda: _reloaded(browser).startswith("paused"))
    browser.click("section.verdict a.button")
    send(browser)
    browser.until(lambda: _reloaded(browser).startswith("done"))


def _reloaded(browser: Browser) -> str:
    browser.driver.refresh()
    return browser.text(OUTCOME)


def test_a_record_is_edited_and_redriven(there: World, browser: Browser) -> None:
    browser.driver.get(there.url + FAILED)
    browser.click('form th[scope="row"] a.open')
    browser.driver.get(browser.driver.current_url)
    browser.click("ul.cures li:nth-child(2) a")
    browser.write("#edit", '{"note": "mended"}')
    browser.click('form[method="get"] button:not([type])')
    field = '{"note": "mended"}'
    browser.until(lambda: field in browser.driver.find_element("id", "edit").text)
    send(browser)
    browser.until(lambda: _reloaded(browser).startswith("done"))


def test_offsets_are_set_and_set_back(there: World, browser: Browser) -> None:
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:

        def at() -> int:
            return admin.list_group_offsets("exporter")[TopicPartition("clicks", 0)].offset

        was = at()
        browser.driver.get(there.url + "/group?name=exporter")
        browser.click('nav.tabs a[href^="/group/offsets"]')
        browser.write('input[name="to"]', "shift:+2")
        browser.click("form.filters button")
        browser.until(lambda: "are skipped" in browser.text(OUTCOME))
        assert not browser.wrong()
        browser.write('input[name="confirm"]', "exporter")
        browser.click("form .primary")
        browser.until(lambda: at() == was + 2)
        browser.click('ul a[href*="undo="]')
        browser.write('input[name="confirm"]', "exporter")
        browser.click("form .primary")
        browser.until(lambda: at() == was)


def test_a_process_is_paused_resumed_and_drained(there: World, browser: Browser) -> None:
    wait_for_process(there)
    for action, state in (("pause", "paused"), ("resume", "running")):
        browser.driver.get(there.url + "/processes")
        browser.click("tbody a.open")
        browser.click(f'form:has(input[value="{action}"]) button')
        browser.until(lambda: browser.text("section.verdict .chip") == state)  # noqa: B023
    assert not browser.wrong()
    browser.driver.get(there.url + path_in(there, "/process?name=@process"))
    browser.write('form:has(input[value="drain"]) input[name="confirm"]', "fulfilment")
    browser.click('form:has(input[value="drain"]) button')
    browser.until(lambda: "/processes?group=fulfilment" in browser.driver.current_url)
    browser.driver.get(there.url + "/audit")
    assert browser.text('tbody td[data-label="What"]') == "drain"
    assert not browser.wrong()


def test_a_waiting_record_is_retried_and_another_dead_lettered(
    there: World, browser: Browser
) -> None:
    """From the list to the record, confirmed, and back to the list, where it is gone."""
    name = f"tills-{browser.driver.execute_script('return innerWidth')}"
    with waiting_app(there.cluster, name) as handled:
        there.sample()
        page = f"{there.url}/retries/group?topic={name}&group={name}-app"
        for action, left in (("retry-record", 4), ("dead-letter-record", 3)):
            browser.driver.get(page)
            browser.click('td[data-label="Do"] a')
            form = f'form:has(input[value="{action}"])'
            browser.until(lambda: _asked(browser, form))  # noqa: B023
            assert not browser.wrong()
            browser.picture(f"retry-record-{action}")
            browser.click(f'{form} input[name="confirm"]')
            browser.click(f"{form} button")
            browser.until(lambda: "/retries/group" in browser.driver.current_url)
            browser.until(lambda: _waits(browser) == left)  # noqa: B023
        assert len(handled) == 1
    browser.driver.get(there.url + "/audit")
    assert browser.text('tbody td[data-label="What"]') == "dead-letter-record"
    assert not browser.wrong()


def _asked(browser: Browser, form: str) -> bool:
    """Whether the page knows a process that can be asked; its status may come in a moment."""
    if browser.driver.find_elements("css selector", form):
        return True
    browser.driver.refresh()
    return False


def _waits(browser: Browser) -> int:
    browser.driver.refresh()
    return len(browser.driver.find_elements("css selector", 'td[data-label="Do"] a'))


def test_a_command_is_copied_and_updates_are_paused(there: World, browser: Browser) -> None:
    browser.driver.get(there.url + "/groups")
    browser.click("button.copy")
    browser.until(
        lambda: (
            browser.text("button.copy") == "Copied"
            or browser.driver.execute_script("return getSelection().toString()")
        )
    )
    browser.click("#live")
    assert browser.text("#live-text") == "paused"
    browser.click("#live")


def test_a_plan_is_asked_for(there: World, browser: Browser) -> None:
    browser.driver.get(there.url + "/group/plan?name=exporter")
    browser.write('input[name="with"]', "2")
    browser.click("form.filters button")
    assert not browser.wrong()


def test_a_fault_is_previewed_set_and_removed(there: World, browser: Browser) -> None:
    def ids() -> list[int]:
        return [fault["id"] for fault in browser.json(there.url + "/broker?format=json")["faults"]]

    before = ids()
    browser.driver.get(there.url + "/broker")
    browser.write('input[name="api"]', "FindCoordinator")
    browser.write('input[name="errors"]', "COORDINATOR_NOT_AVAILABLE")
    browser.write('input[name="client_id"]', "nobody")
    browser.click('form[action="/broker/fault"] button')
    browser.until(lambda: "answered with COORDINATOR_NOT_AVAILABLE" in browser.text(OUTCOME))
    assert not browser.wrong()
    browser.picture("fault")
    send(browser)
    browser.until(lambda: "client_id=nobody" in browser.text("main"))
    assert not browser.wrong()
    [made] = set(ids()) - set(before)
    browser.driver.get(there.url + "/broker")
    browser.click(f'button[aria-label="Remove fault {made}"]')
    browser.until(lambda: "client_id=nobody" not in browser.text("main"))
    assert ids() == before


def test_a_node_is_brought_down_and_started(there: World, browser: Browser) -> None:
    browser.driver.get(there.url + "/broker")
    browser.click('form:has(input[name="node"][value="2"]) input[name="confirm"]')
    browser.click('button[aria-label="Bring down node 2"]')
    browser.click('button[aria-label="Start node 2"]')
    browser.until(lambda: browser.text('button[aria-label="Bring down node 2"]'))
    assert not browser.wrong()


def test_a_story_is_played_to_its_end(there: World, browser: Browser) -> None:
    """Every line in order, until the last; then it stops by itself, and the URL names the line."""
    browser.driver.get(there.url + "/stories?q=crash-4-generation")
    browser.click("tbody th a.open")
    browser.until(lambda: browser.text("#play") == "Play")
    assert "line 1 of" in browser.text("nav.pages")
    browser.driver.execute_script("document.getElementById('play').dataset.every = '1'")
    browser.click("#play")
    browser.until(lambda: "all held" in browser.text(OUTCOME))
    browser.until(lambda: browser.text("#play") == "Play")
    assert re.search(r"at=\d+$", browser.driver.current_url)
    browser.picture("story")
    assert not browser.wrong()
    browser.click('nav.pages a[rel="prev"]')
    browser.until(lambda: "all held" not in browser.text(OUTCOME))
    assert not browser.wrong()


def test_somebody_logs_in(there: World, browser: Browser) -> None:
    with console(there.cluster, token=TOKEN) as server:
        browser.driver.get(server.url + "topics")
        assert not browser.wrong()
        browser.write("#token", "not this one, no")
        browser.click("form .primary")
        browser.until(lambda: "not the token" in browser.text('[role="alert"]'))
        browser.complaints()  # of the 403
        browser.write("#token", TOKEN)
        browser.click("form .primary")
        browser.until(lambda: re.search(r"/(topics|groups)$", browser.driver.current_url))
