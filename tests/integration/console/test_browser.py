"""The tasks of a bad night in a real browser, on a running instance."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from cellfeed.run_dir import RunDir
from cellfeed.store.http.client import Client
from tests.support.chromium import (
    Driver,
    chromium,
    missing_browser,
    send,
    text_of,
    violations,
)
from tests.support.cli_instance import cellfeed, running
from tests.support.console_thread import running_console
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("browser")]

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "console"
PROGRAM = """
from pathlib import Path
from cellfeed.bridge.triggers.program import RetryPolicy, trigger

@trigger(column="BASE", retry=RetryPolicy(2, 0.01, 0.01), pause_rows=None)
def bill(row_key, *, cell):
    if cell.body.get("poison") and Path(MARK).exists():
        raise ValueError("the card was declined")
"""
CONFIG = """
datastore: {shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
triggers: [{app: PATH, name: billing, lease_s: 1}]
lakes: [{format: delta, commit_age_s: 0.3}]
consoles: [{port: 0}]
"""
PAGES = [
    "/", "/groups", "/groups/billing", "/groups/reset/preview?group=billing&to=earliest",
    "/parked", "/log", "/row", "/query", "/query/index", "/put", "/tokens", "/cluster",
    "/row?key=x",
]  # fmt: skip


class Night(NamedTuple):
    run_dir: Path
    poison: Path
    address: str


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    if (reason := missing_browser()) is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("night")
    program, poison = directory / "bill.py", directory / "poison"
    program.write_text(PROGRAM.replace("MARK", repr(str(poison))))
    poison.touch()
    with running(directory, CONFIG.replace("PATH", str(program))) as run_dir:
        port = RunDir(run_dir).process("console").ports["console"]
        yield Night(run_dir, poison, f"http://127.0.0.1:{port}")


@pytest.fixture
def driver(night: Night, tmp_path: Path) -> Iterator[Driver]:
    with chromium(tmp_path / "profile") as opened:
        yield opened


def put(night: Night, key: UUID, body: dict[str, object]) -> None:
    worker = RunDir(night.run_dir).process("worker").ports["http"]
    with Client(f"http://127.0.0.1:{worker}", "trips") as client:
        client.put_cell(key, "BASE", 1, body)


def is_parked(night: Night, driver: Driver, key: UUID) -> bool:
    driver.get(f"{night.address}/parked")
    return str(key) in text_of(driver)


def test_the_stuck_trigger_and_its_reason_are_on_the_first_page(
    night: Night, driver: Driver
) -> None:
    paused = cellfeed(
        "triggers", "pause", "billing", "--reason", "cards fail", "--run-dir", str(night.run_dir)
    )
    assert paused.returncode == 0, paused.stderr
    try:
        driver.get(night.address)
        # The page follows by itself.
        wait_until(lambda: "cards fail" in text_of(driver), "the page shows the reason")
        row = driver.find_element(By.XPATH, "//tr[th[contains(., 'trigger billing')]]").text
        assert "cellfeed triggers resume billing" in row
        driver.get(f"{night.address}/groups/billing")
        driver.find_element(By.NAME, "reason").send_keys("mended")
        send(driver, "Resume")
        driver.get(night.address)
        wait_until(lambda: "cards fail" not in text_of(driver), "nothing is paused any more")
    finally:
        cellfeed("triggers", "resume", "billing", "--run-dir", str(night.run_dir))


def test_a_parked_cell_is_tried_again(night: Night, driver: Driver) -> None:
    key = UUID(int=11)
    put(night, key, {"poison": True})
    wait_until(lambda: is_parked(night, driver, key), "the cell is parked")
    assert "the card was declined" in text_of(driver)
    night.poison.unlink()
    try:
        driver.find_element(By.CSS_SELECTOR, f"section:has(a[href*='{key}']) input").click()
        send(driver, "Try the chosen ones again")
        wait_until(lambda: not is_parked(night, driver, key), "the cell has run")
    finally:
        night.poison.touch()


def test_a_trigger_is_reset_after_a_preview(night: Night, driver: Driver) -> None:
    put(night, UUID(int=12), {"n": 1})
    driver.get(f"{night.address}/groups/billing")
    send(driver, "Preview the reset")
    assert re.search("[1-9][0-9]* cells run again", text_of(driver))
    driver.find_element(By.NAME, "reason").send_keys("the price was wrong")
    send(driver, "Reset billing")
    shown = text_of(driver)
    assert "reset" in shown
    assert "the price was wrong" in shown


def test_a_row_is_followed_from_its_put_to_the_lake(night: Night, driver: Driver) -> None:
    driver.get(f"{night.address}/put")
    driver.find_element(By.NAME, "column").send_keys("BASE")
    body = driver.find_element(By.NAME, "body")
    body.clear()
    body.send_keys('{"city": "New York"}')
    send(driver, "Preview")
    assert '{"city":"New York"}' in text_of(driver)
    send(driver, "Put the cell")
    assert "stored" in text_of(driver)
    driver.find_element(By.LINK_TEXT, "the row's life").click()
    wait_until(
        lambda: (
            {"trigger billing: passed", "group lake: passed"} <= set(text_of(driver).split("\n"))
        ),
        "the trigger and the lake pass the cell",
        timeout_s=60,
    )
    key = driver.current_url.rpartition("=")[2]
    driver.get(f"{night.address}/query")
    Select(driver.find_element(By.NAME, "table")).select_by_visible_text("lake")
    sql = driver.find_element(By.NAME, "sql")
    sql.clear()
    sql.send_keys(f"SELECT body->>'city' AS city FROM latest WHERE row_key = '{key}'")
    send(driver, "Run")
    assert "New York" in driver.find_element(By.CSS_SELECTOR, "tbody").text


def test_a_trigger_is_paused_with_the_keyboard_alone(night: Night, driver: Driver) -> None:
    driver.get(f"{night.address}/groups/billing")

    def step_to(name: str) -> None:
        for _ in range(60):
            focused = driver.switch_to.active_element
            if name in (focused.get_attribute("name"), focused.text):
                return
            focused.send_keys(Keys.TAB)
        raise AssertionError(f"no key leads to {name}")

    step_to("reason")
    driver.switch_to.active_element.send_keys("by keys", Keys.TAB)
    assert driver.switch_to.active_element.text == "Pause"
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    wait_until(lambda: "by keys" in text_of(driver), "the group is paused")
    step_to("reason")
    driver.switch_to.active_element.send_keys("again by keys", Keys.ENTER)
    wait_until(lambda: "again by keys" in text_of(driver), "the group is resumed")


def test_a_parked_cell_is_skipped_without_scripts(night: Night, tmp_path: Path) -> None:
    key = UUID(int=13)
    with chromium(tmp_path / "profile", scripts=False) as driver:
        put(night, key, {"poison": True})
        wait_until(lambda: is_parked(night, driver, key), "the cell is parked")
        driver.find_element(By.CSS_SELECTOR, f"section:has(a[href*='{key}']) input").click()
        driver.find_element(By.NAME, "reason").send_keys("a test")
        send(driver, "Skip the chosen ones")
        assert str(key) not in text_of(driver)
        driver.get(night.address)
        assert "Looked at" in text_of(driver)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_keeps_the_rules_of_accessibility(
    night: Night, tmp_path: Path, dark: bool
) -> None:
    put(night, UUID(int=14), {"poison": True})
    with chromium(tmp_path / "profile", dark=dark) as driver:
        wait_until(lambda: is_parked(night, driver, UUID(int=14)), "a cell is parked")
        ground = "return getComputedStyle(document.body).backgroundColor"
        assert (driver.execute_script(ground) == "rgb(13, 17, 23)") is dark
        broken = {}
        for path in PAGES:
            driver.get(f"{night.address}{path}")
            if found := violations(driver):
                broken[path] = found
        assert broken == {}
        if os.environ.get("CELLFEED_WRITE_SCREENSHOTS"):
            _take_pictures(night, driver, "dark" if dark else "light")


def _take_pictures(night: Night, driver: Driver, scheme: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    row = f"row?key={UUID(int=14)}"
    for name, path in (("stuck", ""), ("groups", "groups"), ("row", row), ("parked", "parked")):
        driver.get(f"{night.address}/{path}")
        driver.save_screenshot(str(PICTURES / f"{name}-{scheme}.png"))


def test_a_token_is_added_and_revoked(tmp_path: Path) -> None:
    if (reason := missing_browser()) is not None:
        pytest.skip(reason)
    with (
        running_console(tmp_path / "console", tls=False, authentication=False) as console,
        chromium(tmp_path / "profile") as driver,
    ):
        address = f"http://127.0.0.1:{console.port}"
        driver.get(f"{address}/tokens")
        driver.find_element(By.NAME, "principal").send_keys("night-shift")
        driver.find_element(By.NAME, "closes").click()
        send(driver, "Add the token")
        made = driver.find_element(By.ID, "made").text
        assert re.fullmatch(r"cft_[0-9a-f]{12}_[0-9a-f]{64}", made)
        driver.get(f"{address}/tokens")
        assert driver.find_elements(By.ID, "made") == []
        send(driver, "Revoke")
        assert "There are no tokens" in text_of(driver)
