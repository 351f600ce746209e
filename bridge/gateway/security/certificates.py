"""A listener's certificates, read again when their files change.

New handshakes have the new ones; connections that are open stay. Files are replaced one after the
other, and may not fit in between: then the certificates that are in use stay, the log says why, and
the next change is taken.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from cellfeed.bridge.gateway.security.listeners import Listener, tls_context
from cellfeed.store.errors import InvalidRequest

_log = logging.getLogger("cellfeed.gateway")


class Certificates:
    """Those of one listener. ``context``: for the next handshake; None without TLS. Raises
    InvalidRequest for files that cannot be used."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._files = self._stamps()
        self.context: ssl.SSLContext | None = tls_context(listener)

    def refresh(self) -> None:
        """Takes changed files. Reads files, and raises nothing."""
        files = self._stamps()
        if self.context is None or files == self._files:
            return
        self._files = files
        try:
            self.context = tls_context(self._listener)
        except InvalidRequest as error:
            _log.error("changed certificates are not taken, those in use stay: %s", error)
        else:
            _log.info("listener %r has its changed certificates", self._listener.name)

    def _stamps(self) -> list[tuple[int, ...] | None]:
        paths = (self._listener.certificate, self._listener.key, self._listener.client_ca)
        return [_stamp(path) for path in paths if path is not None]


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
