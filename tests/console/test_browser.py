"""The console in a real Chromium: no violation of axe-core, nothing too wide, no complaint of the
browser, at two sizes and in two themes; live updates, keys, hostile records (spec 8.2).

`make console` runs all of them and says why they are skipped where there is no Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Admin, TopicPartition
from kohort.console.screens import SCREENS as SERVED
from kohort.console.screens.desk import Screen
from kohort.errors import KohortError
from tests.console.browser import SIZES, THEMES, Browser, chromium, unavailable
from tests.console.test_pages import SCREENS, path_in, wait_for_process
from tests.console.world import World, world

ELSEWHERE = (
    "/dlq/redrive?name=orders.fulfilment.dlt&offsets=0%3A0",
    "/dlq/topic?name=orders.fulfilment.dlt&text=nowhere",
    "/group?name=nobody",
    "/groups?q=none-of-them",
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.extended,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-"),
]


@pytest.fixture(scope="module")
def there() -> Iterator[World]:
    with world(allow_actions=True) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_every_screen_is_accessible_and_fits(
    there: World, browser: Browser, size: str, theme: str
) -> None:
    wrong: dict[str, object] = {}
    wait_for_process(there)
    browser.look_like(size, theme)
    for number, path in enumerate(path_in(there, each) for each in (*SCREENS, *ELSEWHERE)):
        browser.driver.get(there.url + path)
        name = path.strip("/").replace("/", "-").partition("?")[0]
        browser.picture(f"{number:02}-{name}-{size}-{theme}")
        found = [one for one in browser.wrong() if "404 (Not Found)" not in str(one)]
        if found:
            wrong[path] = found
    assert not wrong


def test_the_theme_is_changed_and_kept(there: World, browser: Browser) -> None:
    browser.look_like("desk", "dark")
    browser.driver.get(there.url + "/groups")
    browser.click("#theme")
    browser.driver.get(there.url + "/topics")
    assert browser.driver.execute_script("return document.documentElement.dataset.theme") == "light"
    browser.driver.execute_script("localStorage.clear()")


def test_a_page_lives_and_waits_while_somebody_types(there: World, browser: Browser) -> None:
    driver = browser.driver
    browser.look_like("desk", "light")
    driver.get(there.url + "/group?name=exporter")

    def committed() -> str:
        return browser.text('td[data-label="Committed"]')

    before = committed()
    assert before
    browser.click("#find")
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:
        admin.alter_group_offsets("exporter", {TopicPartition("clicks", n): 9 for n in (0, 1)})
    there.sample()
    browser.until(lambda: browser.text("#live-text") == "waiting")
    assert committed() == before
    driver.execute_script("document.activeElement.blur()")
    there.sample()
    browser.until(lambda: committed() == "9")


def test_an_answer_that_comes_while_somebody_types_changes_nothing(
    there: World, browser: Browser
) -> None:
    """The request went out before the first key."""
    driver = browser.driver
    driver.get(there.url + "/groups")
    driver.execute_script(
        "document.querySelector('#part').dataset.mark = 'old';"
        "document.querySelector('#part').prepend(document.createElement('mark'));"
        "window.answered = 0;"
        "document.addEventListener('htmx:afterRequest', () => { window.answered += 1; });"
        "refresh(); document.getElementById('find').focus();"
    )
    browser.until(lambda: driver.execute_script("return window.answered"))
    assert driver.execute_script("return document.querySelectorAll('#part > mark').length") == 1
    driver.execute_script("document.activeElement.blur()")
    browser.until(lambda: driver.execute_script("return !document.querySelector('#part > mark')"))


def test_a_refresh_that_fails_takes_the_place_of_the_figures(
    there: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> Screen:
        raise KohortError("the coordinator is away")

    driver = browser.driver
    driver.get(there.url + "/groups")
    with monkeypatch.context() as patched:
        patched.setitem(SERVED, ("GET", "/groups"), failing)
        driver.execute_script("document.activeElement.blur(); refresh()")
        browser.until(lambda: "the coordinator is away" in browser.text("#part"))
        assert browser.text("#part tbody") == ""
    driver.execute_script("refresh()")
    browser.until(lambda: "exporter" in browser.text("#part"))
    browser.complaints()


def test_a_console_that_does_not_answer_is_not_live(there: World, browser: Browser) -> None:
    driver = browser.driver
    driver.get(there.url + "/groups")
    driver.execute_cdp_cmd("Network.enable", {})
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
    try:
        driver.execute_script("document.activeElement.blur(); refresh()")
        browser.until(lambda: browser.text("#live-text") == "no answer")
    finally:
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **network})
    driver.execute_script("refresh()")
    browser.until(lambda: browser.text("#live-text") == "live")
    browser.complaints()


def test_a_sample_between_the_page_and_its_stream_is_not_missed(
    there: World, browser: Browser
) -> None:
    """A page that was rendered before the last sample is updated as soon as its stream begins."""
    driver = browser.driver
    driver.get(there.url + "/groups")
    driver.execute_script(
        "const part = document.querySelector('#part');"
        "part.dataset.sample = String(Number(part.dataset.sample) - 1);"
        "part.prepend(document.createElement('mark')); document.activeElement.blur(); listen();"
    )
    browser.until(lambda: driver.execute_script("return !document.querySelector('#part > mark')"))


def test_keys(there: World, browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    driver = browser.driver
    driver.get(there.url + "/groups")
    body = driver.find_element("tag name", "body")
    body.send_keys("/")
    assert driver.switch_to.active_element.get_attribute("id") == "find"
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    body.send_keys("j")
    first = driver.switch_to.active_element.text
    assert first in driver.find_element("css selector", "tbody th").text
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert "/group?name=" in driver.current_url
