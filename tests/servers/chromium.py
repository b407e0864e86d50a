"""A headless Chromium, driven by WebDriver."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_S = 60.0


@contextlib.contextmanager
def running_chromium(profile: Path, *, width: int = 1360, height: int = 900) -> Iterator[Any]:
    """Run a browser while the block runs; skip the test if none is installed.

    Args:
        profile: an empty folder.
        width: of the window, in pixels.
        height: of the window, in pixels.
    """
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield running
    finally:
        running.quit()


class Page:
    """The page of a service, used like by a person.

    Args:
        browser: that shows the page.
        url: of the service, without a slash at the end.
    """

    def __init__(self, browser: Any, url: str) -> None:
        self.browser, self.url = browser, url

    def open(self, fragment: str = "") -> None:
        """Reload the page at a dataset or a folder of it."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/{'#' * bool(fragment)}{fragment}")

    def script(self, text: str, *arguments: Any) -> Any:
        return self.browser.execute_script(text, *arguments)

    def until(self, condition: str, *arguments: Any) -> Any:
        """Wait until an expression of JavaScript is true, and return its value."""
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.browser, WAIT_S, poll_frequency=0.05)
        return wait.until(lambda _: self.script(f"return {condition}", *arguments), f"never: {condition}")

    def text(self, selector: str) -> str:
        found: str = self.until("document.querySelector(arguments[0])?.textContent", selector)
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.script(
            "return [...document.querySelectorAll(arguments[0])].map((element) => element.textContent)", selector
        )
        return found

    def element(self, selector: str) -> Any:
        return self.until("document.querySelector(arguments[0])", selector)

    def click(self, selector: str) -> None:
        self.element(selector).click()

    def choose(self, which: str, *paths: Path) -> None:
        """Choose files, or a folder, like in the browser's dialog."""
        self.element(f"[data-of={which}]").send_keys("\n".join(map(str, paths)))

    def drop(self, files: dict[str, str]) -> None:
        """Drop files with these names and texts onto the page."""
        self.script(
            """const transfer = new DataTransfer();
            for (const [name, text] of Object.entries(arguments[0])) transfer.items.add(new File([text], name));
            const target = document.querySelector("[data-of=drop]");
            for (const kind of ["dragenter", "dragover", "drop"]) {
              target.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
            }""",
            files,
        )

    def wait_for_uploads(self, num_files: int) -> None:
        """Wait until this number of files is uploaded since the page was opened."""
        self.until("document.querySelector('[data-of=all-text]').textContent.startsWith(arguments[0])",
                   f"{num_files:,} of {num_files:,} file")  # fmt: skip

    def complaints(self) -> list[str]:
        """Return new messages of the console: errors, also of the content security policy."""
        return [entry["message"] for entry in self.browser.get_log("browser")]
