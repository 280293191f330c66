"""The documentation site in Chromium, opened from disk: light, dark, desk, phone, search.

`make console` says why it skips.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browser import SIZES, THEMES, Browser, chromium, unavailable
from tests.docs.site import make_ours

MISSING = unavailable()
pytestmark = [
    pytest.mark.extended,
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]
PAGES = ("index", "tutorial", "concepts/groups", "api/clients", "benchmarks", "diagrams/member")
BACKGROUND = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


@pytest.fixture(scope="module", name="site")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    make_ours(site)
    return site


@pytest.fixture(scope="module", name="browser")
def _browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("page", PAGES)
def test_a_page_follows_the_system_and_loads_all_that_it_needs(
    page: str, site: Path, browser: Browser
) -> None:
    for size in SIZES:
        for theme in THEMES:
            browser.look_like(size, theme)
            browser.driver.get(f"file://{site}/{page}.html")
            browser.picture(f"site-{page.replace('/', '-')}-{size}-{theme}")
            light = min(browser.driver.execute_script(BACKGROUND)[:3]) > 128
            assert light == (theme == "light"), (size, theme)
            assert browser.too_wide() <= 0, (size, theme)
            assert browser.complaints() == [], (size, theme)


def test_the_search_finds_a_page_from_disk(site: Path, browser: Browser) -> None:
    browser.look_like("desk", "light")
    browser.driver.get(f"file://{site}/index.html")
    browser.click(".md-search__input")
    browser.write(".md-search__input", "dead letter")
    browser.until(lambda: "dead letter" in browser.text(".md-search-result__list").lower())
    assert browser.complaints() == []
