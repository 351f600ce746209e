"""Log-in at the console by a real OpenID Connect provider: authorization code with PKCE."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from cellfeed.config.http import IssuerConfig, OidcConfig
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.users import allow
from tests.support.console_thread import Browser, RunningConsole, running_console
from tests.support.free_ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

REDIRECT = "http://127.0.0.1:1/login/answer"
"""The provider only sends browsers there; tests follow with the console's own port."""


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The provider: a process of its own."""
    port = free_port()
    log = tmp_path_factory.mktemp("provider") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)],
            stdout=output,
            stderr=output,
        )
    try:
        address = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            with suppress(OSError):
                urllib.request.urlopen(f"{address}/.well-known/openid-configuration", timeout=5)
                return True
            return False

        wait_until(answers, "the provider answers", timeout_s=120)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, issuer: str) -> Iterator[RunningConsole]:
    directory = tmp_path_factory.mktemp("console")
    keys = directory / "keys.json"
    with urllib.request.urlopen(f"{issuer}/jwks", timeout=5) as answer:
        keys.write_bytes(answer.read())
    config = Config(
        datastore=DatastoreConfig(shards=4),
        issuers=[IssuerConfig(issuer, "somebody-else", str(keys), principal_prefix="sso-")],
    )
    secret = directory / "secret"
    secret.write_text("a secret\n")
    oidc = OidcConfig(issuer, "the-console", REDIRECT, f"${{file:{secret}}}", ["email"])
    with running_console(directory, tls=False, config=config, oidc=oidc) as running:
        name = running.datastore.name
        allow(running.datastore.state, Acl("sso-ada", "datastore", name, "read"))
        yield running


def begun(console: RunningConsole, wanted: str = "/row") -> tuple[Browser, str]:
    """A browser that was sent to the provider, and the address there."""
    browser = console.browser()
    there = browser.get(f"/login/provider?{urlencode({'next': wanted})}")
    assert there.status == 303, there.text
    return browser, there.headers["location"]


def back(address: str, user: str = "ada") -> str:
    """The path and the query by which the provider sends a browser back that has logged in."""

    class Stays(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(Stays)
    try:
        opener.open(address, urlencode({"sub": user}).encode(), timeout=10)
    except urllib.error.HTTPError as redirection:
        found = urlsplit(redirection.headers["location"])
        redirection.close()
        return f"{found.path}?{found.query}"
    raise AssertionError("the provider sends nobody back")


def test_a_login_at_the_provider_begins_a_session_of_its_principal(
    console: RunningConsole,
) -> None:
    assert "Log in with" in console.browser().get("/login").text
    browser, address = begun(console)
    query = parse_qs(urlsplit(address).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["response_type"] == ["code"]
    assert {"state", "nonce", "code_challenge"} <= set(query)
    shown = browser.get(back(address))
    assert shown.status == 200
    assert re.search(r'http-equiv="refresh" content="0;url=/row"', shown.text)
    page = browser.get("/row")
    assert (page.status, "sso-ada" in page.text) == (200, True)
    lines = [json.loads(each) for each in console.audit_lines().splitlines()]
    said = [each for each in lines if each["did"] == "log in"]
    assert (said[-1]["who"], said[-1]["how"]) == ("sso-ada", "identity provider")


def test_an_answer_counts_once_and_in_the_browser_that_asked(console: RunningConsole) -> None:
    browser, address = begun(console)
    answer = back(address)
    thief = console.browser()
    assert thief.get(answer).status == 401
    other, _ = begun(console)
    assert other.get(answer).status == 401
    assert browser.get(answer).status == 200
    assert browser.get(answer).status == 401  # the code is used up
    assert thief.get("/row").status == 303


@pytest.mark.parametrize("change", ["state", "code", "cookie", "error", "twice", "issuer"])
def test_a_forged_answer_lets_nobody_in(console: RunningConsole, change: str) -> None:
    browser, address = begun(console)
    answer = back(address)
    if change == "state":
        answer = re.sub("state=[^&]*", "state=x", answer)
    elif change == "code":
        answer = re.sub("code=[^&]*", "code=x", answer)
    elif change == "error":
        answer = re.sub("code=[^&]*", "error=access_denied", answer)
    elif change == "twice":
        answer += "&state=x"
    elif change == "issuer":
        answer += "&iss=https%3A%2F%2Fevil.example"
    else:
        for name in browser.cookies:
            browser.cookies[name] = browser.cookies[name][:-2] + "xx"
    assert browser.get(answer).status == 401
    assert browser.get("/row").status == 303


def test_a_principal_without_rights_sees_nothing(console: RunningConsole) -> None:
    console.datastore.put_cell(
        "00000000-0000-0000-0000-000000000001", "BASE", 1, {"a": "unseen-body"}
    )
    browser, address = begun(console)
    browser.get(back(address, "eve"))
    assert "unseen-body" not in browser.get("/log").text
    assert browser.get("/cluster").status == 403


def test_a_provider_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    issuer = f"http://127.0.0.1:{free_port()}"
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    config = Config(
        datastore=DatastoreConfig(shards=4), issuers=[IssuerConfig(issuer, "a", str(keys))]
    )
    oidc = OidcConfig(issuer, "the-console", REDIRECT)
    with running_console(tmp_path, tls=False, config=config, oidc=oidc) as console:
        answer = console.browser().get("/login/provider")
        assert (answer.status, "metadata cannot be read" in answer.text) == (503, True)
