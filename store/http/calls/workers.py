"""The address of one worker, and how far a client trusts it."""

from __future__ import annotations

import re
import ssl
from urllib.parse import urlsplit

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.http.calls.access import Access
from cellfeed.store.security.loopback import is_loopback


class Worker:
    """One worker of a datastore, ``http://host:port`` or ``https://host:port``. Raises
    InvalidRequest for another form, and for a token that would go over the network in the clear."""

    def __init__(self, url: str, access: Access | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path not in ("", "/")
            or parts.query
            or parts.username is not None
        ):
            raise InvalidRequest(
                f"worker address {_shown(url)} must be of the form http://host:port or"
                " https://host:port"
            )
        try:
            self.has_tls = parts.scheme == "https"
            self.host, self.port = parts.hostname, parts.port or (443 if self.has_tls else 80)
        except ValueError as error:
            raise InvalidRequest(f"worker address {_shown(url)}: {error}") from None
        self._access = access or Access({})
        if self._access.has_token and not self.has_tls and not is_loopback(self.host):
            raise InvalidRequest(
                f"worker address {_shown(url)}: a token goes to other hosts over https only"
            )
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.name = f"{shown}:{self.port}"
        self.trusted_again_at = 0.0
        """Monotonic time until which this worker is tried last, because it refused a connection or
        said that it cannot."""

    def authorization(self) -> str:
        """The field of a request that shows who sends it, with its line end; or nothing. Raises
        InvalidRequest."""
        return self._access.field()

    def tls(self) -> ssl.SSLContext | None:
        """For a connection that begins now; None for one without TLS. Raises InvalidRequest."""
        return self._access.context() if self.has_tls else None


def _shown(url: str) -> str:
    """An address without the part before an ``@``, which may be a secret."""
    return ascii(re.sub(r"//[^/]*@", "//…@", url))[:200]
