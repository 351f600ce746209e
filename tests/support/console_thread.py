"""A console over a datastore of its own, in a thread of the test; and the little of a browser that
tests of its pages need."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.config.http import TlsConfig
from cellfeed.config.model import Config, ConsoleConfig, DatastoreConfig
from cellfeed.console.server import run_console
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.store.datastore import Datastore
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import create_token
from cellfeed.store.security.users import allow
from tests.support.certificates import make_certificates
from tests.support.waiting import wait_until


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Browser:
    """Keeps cookies and sends forms with the token of a page. Follows no redirection."""

    port: int
    ca: str | None = None
    cookies: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    """Of each cookie its whole ``Set-Cookie``."""

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self._asked("GET", path, None, headers or {})

    def send(
        self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]], page: str = "/login"
    ) -> Answer:
        """Sends a form with the token that a page of the console gives."""
        found = re.search(r'name="_csrf_token" value="([^"]+)"', self.get(page).text)
        token = found[1] if found else ""
        pairs = list(form.items()) if isinstance(form, Mapping) else list(form)
        body = urlencode([*pairs, ("_csrf_token", token)])
        return self._asked(
            "POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"}
        )

    def log_in(self, secret: str, user: str = "", wanted: str = "/") -> Answer:
        return self.send("/login", {"secret": secret, "user": user, "next": wanted})

    def _asked(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> Answer:
        connection: http.client.HTTPConnection
        if self.ca is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        else:
            context = ssl.create_default_context(cafile=self.ca)
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=60, context=context
            )
        sent = dict(headers)
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                self._keep(value)
        return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, text)

    def _keep(self, header: str) -> None:
        for name, morsel in SimpleCookie(header).items():
            self.attributes[name] = header
            if morsel["max-age"] == "0":
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = morsel.value


@dataclass
class RunningConsole:
    """``status``: that of the next look."""

    datastore: Datastore
    port: int
    ca: str | None
    directory: Path
    status: InstanceStatus

    def browser(self) -> Browser:
        return Browser(self.port, self.ca)

    def token(self, principal: str, *rights: tuple[str, str, str]) -> str:
        """A token that the console knows, of a principal with rights (operation, kind, pattern)."""
        for operation, kind, pattern in rights:
            allow(self.datastore.state, Acl(principal, kind, pattern, operation))
        token = create_token(self.datastore.state, principal, 600.0)
        headers = {"Authorization": f"Bearer {token}"}
        wait_until(lambda: self.browser().get("/row", headers).status == 200, "the token counts")
        return token

    def audit_lines(self) -> str:
        return (self.directory / "audit.jsonl").read_text()


@contextmanager
def running_console(
    directory: Path, *, tls: bool = True, config: Config | None = None, **console: Any
) -> Iterator[RunningConsole]:
    """``config``: more of the instance's; ``console``: of the console's own entry."""
    files = make_certificates(directory / "tls") if tls else None
    entry = ConsoleConfig(
        port=0,
        tls=TlsConfig(files.certificate, files.key) if files else None,
        **{"authentication": True, **console},
    )
    ports: list[int] = []
    started, stop = threading.Event(), threading.Event()
    status = InstanceStatus([], [])

    def note(port: int) -> None:
        ports.append(port)
        started.set()

    with Datastore.open_embedded(directory / "store", shards=4) as datastore:
        given = config or Config(datastore=DatastoreConfig(shards=4))
        opened = Opened(given, datastore, StoreCoordinator(datastore.state))
        audit = AuditLog(directory / "audit.jsonl", "console")
        thread = threading.Thread(
            target=run_console,
            args=(opened, directory, lambda: status, entry, 0, stop, note, audit),
            name="console",
        )
        thread.start()
        try:
            assert started.wait(90)
            yield RunningConsole(
                datastore, ports[0], files.ca if files else None, directory, status
            )
        finally:
            stop.set()
            thread.join(60)
            audit.close()
        assert not thread.is_alive()
