"""How a client shows who it is, and how it knows its workers: tokens and certificates, without any
I/O to a worker.

No token is ever part of a ``repr``, an error or an address.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

from cellfeed.store.errors import InvalidRequest

_UNSEEN: Final = (0, 0, 0)


class AccessOptions(TypedDict, total=False):
    """``token``: the text, or a function that gives it, called for each request. ``token_file``: a
    file with the token, read again when it changes. ``ssl_ca``: PEM file with the authorities of
    the workers' certificates, instead of the system's. ``ssl_certificate``, ``ssl_key``: PEM files
    of the client's own."""

    token: str | Callable[[], str]
    token_file: str | os.PathLike[str]
    ssl_ca: str | os.PathLike[str]
    ssl_certificate: str | os.PathLike[str]
    ssl_key: str | os.PathLike[str]


class Access:
    """See the module. Any number of threads may use it. Raises InvalidRequest for options that do
    not fit together, or that are unknown."""

    def __init__(self, options: AccessOptions) -> None:
        if unknown := options.keys() - AccessOptions.__annotations__.keys():
            raise TypeError(f"a client has no argument {min(unknown)!r}")
        if "token" in options and "token_file" in options:
            raise InvalidRequest("a client takes token or token_file, not both")
        if "ssl_key" in options and "ssl_certificate" not in options:
            raise InvalidRequest("ssl_key is the key of ssl_certificate: give both")
        self._token = options.get("token")
        self._token_file = options.get("token_file")
        self._tls_files = [
            options.get("ssl_ca"),
            options.get("ssl_certificate"),
            options.get("ssl_key"),
        ]
        self._read: tuple[tuple[int, int, int], str] = _UNSEEN, ""
        self._context: tuple[list[tuple[int, int, int]], ssl.SSLContext] | None = None

    def __repr__(self) -> str:
        return "Access()"

    @property
    def has_token(self) -> bool:
        return self._token is not None or self._token_file is not None

    def field(self) -> str:
        """The request's Authorization field with its line end; empty without a token. Raises
        InvalidRequest."""
        if not self.has_token:
            return ""
        token = self._token() if callable(self._token) else self._token or self._from_file()
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("the token has characters that no token has")
        if not token or " " in token:
            raise InvalidRequest("the token is empty, or has blanks in it")
        return f"authorization: Bearer {token}\r\n"

    def context(self) -> ssl.SSLContext:
        """For the next connection; made again when its files change. Raises InvalidRequest."""
        stamps = [_stamp(path) for path in self._tls_files if path is not None]
        kept = self._context
        if kept is not None and kept[0] == stamps:
            return kept[1]
        ca, certificate, key = self._tls_files
        try:
            context = ssl.create_default_context(cafile=ca)
            if certificate is not None:
                context.load_cert_chain(certificate, key, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            if kept is not None:
                return kept[1]  # the files are being replaced
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
            raise InvalidRequest(
                f"ssl_ca, ssl_certificate or ssl_key cannot be used ({reason or error}):"
                " unencrypted PEM files that fit"
            ) from None
        self._context = stamps, context
        return context

    def _from_file(self) -> str:
        assert self._token_file is not None  # noqa: S101 (for the type checker)
        path = Path(self._token_file)
        stamp, token = self._read
        try:
            found = _stamp(path)
            if found == _UNSEEN or found != stamp:
                token = path.read_text("utf-8").strip()
                self._read = found, token
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise InvalidRequest(f"token file {str(path)!r}: {reason}") from None
        return token


def _stamp(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return _UNSEEN
    return found.st_ino, found.st_size, found.st_mtime_ns
