"""The console in a real Chromium: no violation of axe-core, nothing too wide, no complaint of the
browser, at two sizes and in two themes; live updates, keys, hostile records (spec 8.2).

`make console` runs all of them and says why they are skipped where there is no Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Admin, TopicPartition
from tests.console.browser import SIZES, THEMES, Browser, chromium, unavailable
from tests.console.test_pages import SCREENS, path_in, wait_for_process
from tests.console.world import World, world

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
def test_every_screen_is_accessible_and_fits(there: World, browser: Browser, size: str) -> None:
    wrong: dict[str, object] = {}
    wait_for_process(there)
    for number, path in enumerate(path_in(there, each) for each in SCREENS):
        theme = THEMES[number % 2]
        browser.look_like(size, theme)
        browser.driver.get(there.url + path)
        browser.picture(f"{path.strip('/').replace('/', '-').partition('?')[0]}-{number}-{size}")
        found = [*browser.violations(), *browser.complaints()]
        if (wide := browser.too_wide()) > 0:
            found.append(f"{wide} px too wide")
        assert browser.driver.title != "taken"
        if found:
            wrong[f"{path} {theme}"] = found
    assert not wrong


def test_both_themes_of_the_first_screen(there: World, browser: Browser) -> None:
    for theme in THEMES:
        browser.look_like("desk", theme)
        browser.driver.get(there.url + "/groups")
        assert not browser.violations()
    browser.driver.find_element("id", "theme").click()
    assert browser.driver.execute_script("return document.documentElement.dataset.theme") == "light"
    browser.driver.execute_script("localStorage.clear()")


def test_a_page_lives_and_waits_while_somebody_types(there: World, browser: Browser) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    driver = browser.driver
    browser.look_like("desk", "light")
    driver.get(there.url + "/group?name=exporter")
    wait = WebDriverWait(driver, 30)

    def committed() -> str:
        return driver.find_element("css selector", 'td[data-label="Committed"]').text

    before = committed()
    driver.find_element("id", "find").click()
    with Admin(bootstrap_servers=there.cluster.bootstrap) as admin:
        admin.alter_group_offsets("exporter", {TopicPartition("clicks", n): 9 for n in (0, 1)})
    there.sample()
    wait.until(lambda _: driver.find_element("id", "live-text").text == "waiting")
    assert committed() == before
    driver.execute_script("document.activeElement.blur()")
    there.sample()
    wait.until(lambda _: committed() == "9")


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
