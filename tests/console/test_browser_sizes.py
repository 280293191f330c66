"""The groups page in a real Chromium with no group, one, and 2,000 (spec 8.2): it fits, it is
accessible, and its memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kohort import Admin, NewTopic, TopicPartition
from kohort.console.views.groups import ROWS
from tests.clusters import Embedded
from tests.console.browser import SIZES, THEMES, Browser, chromium, unavailable
from tests.console.world import LONG, console

pytestmark = [
    pytest.mark.browser,
    pytest.mark.extended,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-"),
]
UPDATES = 20


@dataclass(frozen=True)
class Crowd:
    """A console with so many groups."""

    groups: int
    url: str


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module", params=(0, 1, 2_000))
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    with Embedded() as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("clicks", 2)])
            for n in range(request.param):
                name = LONG if n == 0 else f"group-{n:04}"
                admin.alter_group_offsets(name, {TopicPartition("clicks", 0): 0})
        with console(cluster) as server:
            yield Crowd(request.param, server.url.rstrip("/"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_so_many_groups(crowd: Crowd, browser: Browser, size: str, theme: str) -> None:
    browser.look_like(size, theme)
    for path in ("/groups", "/groups?sort=name&page=40", "/topics", "/dlq", "/retries"):
        browser.driver.get(crowd.url + path)
        assert not browser.wrong()
        browser.picture(f"{crowd.groups}-groups-{path[1:7]}-{size}-{theme}")
    browser.driver.get(crowd.url + "/groups")
    rows = browser.driver.execute_script("return document.querySelectorAll('tr.row').length")
    assert rows == min(ROWS, crowd.groups)


def test_live_updates_leave_nothing_behind(crowd: Crowd, browser: Browser) -> None:
    browser.driver.get(crowd.url + "/groups")
    update = (
        "const done = arguments[0];"
        "document.addEventListener('htmx:afterSettle', () => done(), {once: true}); refresh();"
    )
    browser.driver.execute_async_script(update)
    nodes, heap = browser.size_of_page()
    for _ in range(UPDATES):
        browser.driver.execute_async_script(update)
    after, heap_after = browser.size_of_page()
    assert after < nodes * 1.5, (nodes, after)
    assert heap_after < heap * 2, (heap, heap_after)
