"""A listener's certificates, read again when their files change.

New handshakes have the new ones; connections that are open stay. Files are replaced one after the
other, and may not fit in between: then the certificates that are in use stay, the log says why, and
the next change is taken.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from cellfeed.store.errors import InvalidRequest

_log = logging.getLogger("cellfeed.security")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a listener. ``client_ca``: a client's certificate must be one of it. Without
    ``clients_need_one`` a client may do without a certificate."""

    certificate: str
    key: str
    client_ca: str | None = None
    clients_need_one: bool = True


def tls_context(files: TlsFiles, owner: str) -> ssl.SSLContext:
    """TLS 1.2 or newer, for the listener that ``owner`` names. Raises InvalidRequest for files that
    cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    for path in (files.certificate, files.key, files.client_ca):
        if path is not None and not Path(path).is_file():
            raise InvalidRequest(f"{owner}: no file {path!r}")
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            if not files.clients_need_one:
                context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InvalidRequest(
            f"{owner}: certificate, key or client_ca cannot be used ({reason}): unencrypted PEM"
            " files that fit"
        ) from None
    return context


class Certificates:
    """Those of one listener, which ``owner`` names in messages. ``context``: for the next
    handshake; None without TLS. Raises InvalidRequest for files that cannot be used."""

    def __init__(self, files: TlsFiles | None, owner: str) -> None:
        self._files = files
        self._owner = owner
        self._stamps = self._looked()
        self.context: ssl.SSLContext | None = None if files is None else tls_context(files, owner)

    def refresh(self) -> None:
        """Takes changed files. Reads files, and raises nothing."""
        stamps = self._looked()
        if self._files is None or stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.context = tls_context(self._files, self._owner)
        except InvalidRequest as error:
            _log.error("changed certificates are not taken, those in use stay: %s", error)
        else:
            _log.info("%s has its changed certificates", self._owner)

    def _looked(self) -> list[tuple[int, ...] | None]:
        if self._files is None:
            return []
        paths = (self._files.certificate, self._files.key, self._files.client_ca)
        return [_stamp(path) for path in paths if path is not None]


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
