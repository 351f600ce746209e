"""A worker over TLS that asks for credentials, in a thread of the test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.certificates import TlsFiles
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import create_token
from cellfeed.store.security.users import allow
from tests.support.certificates import Certificates, make_certificates
from tests.support.worker_thread import worker_thread


class SecuredWorker(NamedTuple):
    datastore: Datastore
    url: str
    files: Certificates

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def token(self, principal: str, *rights: tuple[str, str, str]) -> str:
        """A token whose principal has the rights (operation, kind, pattern)."""
        for operation, kind, pattern in rights:
            allow(self.datastore.state, Acl(principal, kind, pattern, operation))
        return create_token(self.datastore.state, principal, 600.0)

    def client(self, token: str) -> dict[str, Any]:
        """Arguments of a client."""
        return {"token": token, "ssl_ca": self.files.ca}


@contextlib.contextmanager
def secured_worker(
    directory: Path, audit: AuditLog | None = None, **settings: Any
) -> Iterator[SecuredWorker]:
    """``settings``: more of :class:`TlsFiles`."""
    listener = partial(HttpListener, authentication=True)
    files = make_certificates(directory / "tls")
    tls = TlsFiles(files.certificate, files.key, **settings)
    with (
        Datastore.open_embedded(directory / "store", shards=4) as datastore,
        worker_thread(datastore, listener=listener(tls=tls), audit=audit) as url,
    ):
        yield SecuredWorker(datastore, url.replace("http:", "https:"), files)
