"""A headless Chromium for tests of the console: Debian's packages `chromium`, `chromium-driver`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIZES = {"desk": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")


def unavailable() -> str:
    """Why there is no browser to test with; empty when there is one."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "no Chromium here: apt-get install chromium chromium-driver"
    try:
        import axe_core_python  # noqa: F401
        import selenium  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed; it is in the dev group"
    return ""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    driver.implicitly_wait(30)  # an element of the page that a click leads to
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What tests do with a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._axe = _axe()
        self._pictures = os.environ.get("KOHORT_SCREENSHOTS", "")

    def look_like(self, size: str, theme: str) -> None:
        """Of a desk or a phone, light or dark."""
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def violations(self) -> list[Any]:
        """What axe-core finds wrong with the page."""
        self.driver.execute_script(self._axe)
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then(r => done(r.violations.map("
            "v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200))])))"
        )
        return list(found)

    def too_wide(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(
            self.driver.execute_script(
                "return document.documentElement.scrollWidth - window.innerWidth"
            )
        )

    def complaints(self) -> list[str]:
        """What the browser's console says, errors of scripts and of the content policy included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, name: str) -> None:
        """Keep a screenshot in $KOHORT_SCREENSHOTS, where that is set."""
        if self._pictures:
            Path(self._pictures).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(self._pictures) / f"{name}.png"))

    def wrong(self) -> list[Any]:
        """All that is wrong with the page shown: for axe-core, for the browser, in its width."""
        found = [*self.violations(), *self.complaints()]
        if (wide := self.too_wide()) > 0:
            found.append(f"{wide} px too wide")
        if self.driver.title == "taken":
            found.append("a record's script has run")
        return found

    def text(self, css: str) -> str:
        """The text of the first element, in one call: an update may replace it between two."""
        return str(
            self.driver.execute_script(
                "const one = document.querySelector(arguments[0]); return one ? one.innerText : ''",
                css,
            )
        )

    def click(self, css: str) -> None:
        """Click the first element that matches; again, where an update has just replaced it."""
        from selenium.common.exceptions import StaleElementReferenceException

        while True:
            element = self.driver.find_element("css selector", css)
            with contextlib.suppress(StaleElementReferenceException):
                self.driver.execute_script(
                    "arguments[0].scrollIntoView({block: 'center'})", element
                )
                return element.click()

    def submit(self, css: str) -> None:
        """Click what sends a form and wait for the page that answers: a reload before that one
        begins takes the click back."""
        loaded = "return performance.timeOrigin"
        before = self.driver.execute_script(loaded)
        self.click(css)
        self.until(lambda: self.driver.execute_script(loaded) != before)

    def write(self, css: str, text: str) -> None:
        """Write into a field, instead of what is there."""
        field = self.driver.find_element("css selector", css)
        field.clear()
        field.send_keys(text)

    def until(self, what: Callable[[], object]) -> None:
        """Wait until something holds."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60).until(lambda _: what())

    def size_of_page(self) -> tuple[int, int]:
        """Nodes of the page, and bytes of its scripts' memory, after a garbage collection."""
        driver = self.driver
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        figures = {one["name"]: int(one["value"]) for one in found}
        return figures["Nodes"], figures["JSHeapUsedSize"]

    def json(self, url: str) -> Any:
        """A page as JSON, with the cookies of this browser."""
        self.driver.get(url)
        return json.loads(self.driver.find_element("tag name", "body").text)


def _axe() -> str:
    import axe_core_python

    folder = Path(axe_core_python.__file__).parent
    return next(folder.rglob("axe.min.js")).read_text(encoding="utf-8")
