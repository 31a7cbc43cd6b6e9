"""A browser without a window, for the pages of `collc show`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Seconds: only a test that fails waits so long.
WAIT = 120.0
# No service of the browser's maker: pages are files, and nothing may be asked of a network.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
# Returns pairs of visible texts, in the picture or the plots, that cover each other. A view must not have any.
_OVERLAPS = """
const texts = [...document.querySelectorAll("section:not([hidden]) svg text")].filter((t) => t.textContent.trim());
const boxes = texts.map((t) => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width && b.height);
const found = [];
for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
  const [a, p] = boxes[i], [b, q] = boxes[j];
  const w = Math.min(p.right, q.right) - Math.max(p.left, q.left);
  const h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
  if (w > 1 && h > 0.25 * Math.min(p.height, q.height)) found.push(`${a} | ${b}`);
}
return found.slice(0, 10);
"""


class Browser:
    """One Chromium, driven by selenium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def size(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """The window that pages see."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, page: Path) -> None:
        """Opens a page and waits until it has drawn its first view."""
        self.driver.get(page.resolve().as_uri())
        # On a busy machine the browser may say that a page is there before its last script has run.
        end = time.monotonic() + WAIT
        while self.js("return document.documentElement.dataset.ready") != "yes":
            assert time.monotonic() < end, self.complaints()
            time.sleep(0.05)
        self.settle()

    def js(self, script: str, *args: object) -> Any:
        """Runs a script in the page and returns its result."""
        return self.driver.execute_script(script, *args)

    def settle(self) -> None:
        """Waits for two frames: sizes are observed in one and drawn in the next."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(1)));"
        )

    def tab(self, name: str) -> None:
        """Chooses a view by its title."""
        found = self.js(
            "const t = [...document.querySelectorAll('[role=tab]')].find((t) => t.textContent === arguments[0]);"
            "t?.click(); return Boolean(t);",
            name,
        )
        assert found, f"no tab {name}"
        self.settle()

    def choose(self, label: str, value: str) -> None:
        """Chooses from a drop-down list of the view that is shown."""
        found = self.js(
            'const s = document.querySelector(`section:not([hidden]) select[aria-label="${arguments[0]}"]`);'
            "s.value = arguments[1]; s.dispatchEvent(new Event('change')); return s.value;",
            label,
            value,
        )
        assert found == value
        self.settle()

    def count(self, selector: str) -> int:
        """How many elements of the view that is shown fit a selector."""
        return int(self.js(f"return document.querySelectorAll('section:not([hidden]) {selector}').length"))

    def text(self, selector: str) -> str:
        """The text of the first such element."""
        return str(self.js(f"return document.querySelector('section:not([hidden]) {selector}')?.textContent ?? ''"))

    def overlaps(self) -> list[str]:
        """Texts of drawings that cover each other."""
        return list(self.js(_OVERLAPS))

    def complaints(self) -> list[str]:
        """Returns the new messages of the browser's console: errors, blocked scripts, requests."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]


def missing() -> str | None:
    """Why there is no browser; None where there is one."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"no {name} (Debian: apt-get install chromium chromium-driver)"
    return None


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Starts Chromium with a new profile; skips where there is none."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    # Without this command, a window in the background gets no focus events.
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    try:
        yield Browser(driver)
    finally:
        driver.quit()
