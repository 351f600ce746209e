"""The console's log-in: sessions, their ends, guesses, and the doors that stay closed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.console.attempts import FAILED_MAX
from cellfeed.store.security.tokens import revoke_token
from cellfeed.store.security.users import put_user
from tests.support.cli_instance import cellfeed
from tests.support.console_thread import RunningConsole, running_console
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture
def token(console: RunningConsole) -> str:
    return console.token("ada", ("operate", "datastore", console.datastore.name))


def test_a_page_leads_to_the_login_and_back(console: RunningConsole, token: str) -> None:
    browser = console.browser()
    shown = browser.get("/log?column=BASE")
    assert (shown.status, shown.headers["location"]) == (303, "/login?next=%2Flog%3Fcolumn%3DBASE")
    answer = browser.log_in(token, wanted="/log?column=BASE")
    assert (answer.status, answer.headers["location"]) == (303, "/log?column=BASE")
    assert "ada" in browser.get("/").text


def test_the_cookie_of_a_session_is_for_this_site_and_no_script(
    console: RunningConsole, token: str
) -> None:
    browser = console.browser()
    browser.log_in(token)
    [name] = [each for each in browser.cookies if "form" not in each]
    said = browser.attributes[name].lower()
    assert name.startswith("__Host-")
    assert {"httponly", "secure", "samesite=strict", "path=/"} <= {
        each.strip() for each in said.split(";")
    }
    assert token not in browser.cookies[name]
    number, _, signature = browser.cookies[name].partition(".")
    for wrong in (number, f"{number}.{'0' * 64}", f".{signature}", "", "é"):
        other = console.browser()
        other.cookies[name] = wrong
        assert other.get("/").status in (303, 400)


def test_every_page_and_form_is_closed_to_strangers(console: RunningConsole) -> None:
    stranger = console.browser()
    for path in ("/", "/groups", "/log", "/row", "/query", "/query/index", "/put", "/tokens"):
        answer = stranger.get(path)
        assert (answer.status, "location" in answer.headers) == (303, True), path
    assert stranger.get("/metrics").status == 401
    assert stranger.get("/changes").status == 401
    assert stranger.get("/", {"HX-Request": "true"}).headers["hx-redirect"].startswith("/login")
    for path in ("/parked/retry", "/groups/pause", "/put", "/query", "/tokens", "/tokens/revoke"):
        assert stranger.send(path, {"group": "x"}).status == 401, path
    assert stranger.get("/static/console.css").status == 200


@pytest.mark.parametrize("wanted", ["//evil.example/", "/\\evil.example", "https://evil.example"])
def test_a_login_leads_to_no_other_site(console: RunningConsole, token: str, wanted: str) -> None:
    assert console.browser().log_in(token, wanted=wanted).headers["location"] == "/"


def test_a_logout_ends_every_copy_of_the_cookie(console: RunningConsole, token: str) -> None:
    browser = console.browser()
    browser.log_in(token)
    copied = console.browser()
    copied.cookies.update(browser.cookies)
    assert copied.get("/").status == 200
    assert browser.send("/logout", {}, page="/").status == 303
    assert browser.get("/").status == 303
    assert copied.get("/").status == 303


def test_a_revoked_token_ends_its_sessions(console: RunningConsole) -> None:
    token = console.token("eve", ("operate", "datastore", console.datastore.name))
    browser = console.browser()
    browser.log_in(token)
    assert browser.get("/").status == 200
    revoke_token(console.datastore.state, token)
    wait_until(lambda: browser.get("/").status == 303, "the session ends", timeout_s=10)


def test_a_password_begins_a_session_and_ends_it_when_it_is_changed(
    console: RunningConsole,
) -> None:
    put_user(console.datastore.state, "grace", "a secret", is_new=True)
    browser = console.browser()
    wait_until(lambda: browser.log_in("a secret", "grace").status == 303, "she is let in")
    put_user(console.datastore.state, "grace", "another", is_new=False)
    wait_until(lambda: browser.get("/").status == 303, "the session ends")


def test_a_request_with_a_token_needs_no_session(console: RunningConsole, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    answer = console.browser().get("/metrics", headers)
    assert (answer.status, "cellfeed_stuck_known" in answer.text) == (200, True)


def test_a_login_form_without_the_token_of_a_page_is_refused(
    console: RunningConsole, token: str
) -> None:
    assert (
        console.browser().send("/login", {"secret": token}, page="/static/icon.svg").status == 403
    )


def test_log_ins_are_in_the_audit_log_without_secrets(console: RunningConsole, token: str) -> None:
    browser = console.browser()
    browser.log_in(token)
    browser.send("/logout", {}, page="/")
    lines = [json.loads(each) for each in console.audit_lines().splitlines()]
    assert {"log in", "log out"} <= {each["did"] for each in lines if each["who"] == "ada"}
    assert token not in console.audit_lines()
    assert not re.search("[0-9a-f]{64}", console.audit_lines())


def test_guesses_are_few(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        token = console.token("ada", ("operate", "datastore", console.datastore.name))
        browser = console.browser()
        answers = [browser.log_in(f"guess {number}").status for number in range(FAILED_MAX)]
        assert answers == [401] * FAILED_MAX
        assert browser.log_in("one more").status == 429
        assert browser.log_in(token).status == 429


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{host: 0.0.0.0}", "not loopback"),
        ("{host: 0.0.0.0, authentication: true}", "not loopback"),
        ("{host: 0.0.0.0, tls: {certificate: c, key: k}, authentication: false}", "not loopback"),
        (
            "{oidc: {issuer: 'https://i', client_id: c, redirect: 'https://c/login/answer'}}",
            "log-in",
        ),
        (
            "{authentication: true,"
            " oidc: {issuer: 'https://i', client_id: c, redirect: 'https://c/login/answer'}}",
            "none of `issuers`",
        ),
    ],
)
def test_an_entry_that_would_let_anybody_in_is_refused(
    tmp_path: Path, entry: str, said: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"consoles: [{entry}]\n")
    checked = cellfeed("config", "check", str(config))
    assert checked.returncode in (2, 3)
    assert said in checked.stderr
