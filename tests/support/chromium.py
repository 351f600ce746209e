"""A real browser for tests: Chromium, headless, driven by Selenium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import wait_until

Driver = webdriver.Chrome
WCAG: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def missing_browser() -> str | None:
    """The reason why there is no browser here; None where there is one."""
    missing = [each for each in ("chromium", "chromedriver") if shutil.which(each) is None]
    return f"needs {' and '.join(missing)}: `make services` installs them" if missing else None


@contextmanager
def chromium(directory: Path, *, dark: bool = False, scripts: bool = True) -> Iterator[Driver]:
    """A browser with a profile of its own. ``scripts``: whether it runs JavaScript."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for each in (
        "--headless=new",
        "--no-sandbox",  # tests run as root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1100,760",
        f"--user-data-dir={directory}",
        *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []),
    ):
        options.add_argument(each)
    if not scripts:
        setting = "profile.managed_default_content_settings.javascript"
        options.add_experimental_option("prefs", {setting: 2})
    driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
    try:
        driver.set_page_load_timeout(60)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield driver
    finally:
        driver.quit()


def button(driver: Driver, text: str) -> WebElement:
    """The first button with this text."""
    return driver.find_element(By.XPATH, f"//button[contains(normalize-space(.), {text!r})]")


def send(driver: Driver, text: str) -> None:
    """Presses a button that sends a form, and waits for the next page."""
    page = driver.find_element(By.TAG_NAME, "html").id
    button(driver, text).click()
    wait_until(lambda: driver.find_element(By.TAG_NAME, "html").id != page, f"a page after {text}")


def text_of(driver: Driver) -> str:
    """The text of the page's content, read at once: a live page changes between two reads."""
    return str(driver.find_element(By.TAG_NAME, "body").text)


def violations(driver: Driver) -> list[str]:
    """The rules of WCAG 2.1 AA that the page breaks, by axe."""
    axe = files("axe_core_python") / "axe.min.js"
    driver.execute_script(axe.read_text(encoding="utf-8"))
    found: Any = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        f"axe.run(document, {{runOnly: {json.dumps(WCAG)}}})"
        ".then(result => done(result), error => done({error: String(error)}));"
    )
    assert "error" not in found, found
    assert found["passes"], "axe has looked at nothing"
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} ({len(each['nodes'])})"
        for each in found["violations"]
    ]
