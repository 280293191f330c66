"""The demo's report page in a real Chromium (spec 8.2): accessible, not too wide, legible.

On a desk and a phone, light and dark; `make console` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from kohort.demo.flights_report import write_report
from tests.console.browser import SIZES, THEMES, Browser, chromium, unavailable
from tests.demo.test_flights_report import GOOD

LEAST_PX = 9
"""Of the text of an axis on a phone."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.extended,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    _, as_html = write_report(
        GOOD, folder, ["kohort console -b localhost:9092 --store " + "x" * 120]
    )
    return Path(as_html).as_uri()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_the_report_is_accessible_and_fits(
    page: str, browser: Browser, size: str, theme: str
) -> None:
    browser.look_like(size, theme)
    browser.driver.get(page)
    browser.picture(f"report-{size}-{theme}")
    assert not browser.wrong()
    smallest = browser.driver.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg text')]"
        ".map(text => text.getBoundingClientRect().height))"
    )
    assert smallest >= LEAST_PX
