"""The address of one worker, and how far a client trusts it."""

from __future__ import annotations

from urllib.parse import urlsplit

from cellfeed.store.errors import InvalidRequest


class Worker:
    """One worker of a datastore, ``http://host:port``. Raises InvalidRequest for another form."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if (
            parts.scheme != "http"
            or not parts.hostname
            or parts.path not in ("", "/")
            or parts.query
        ):
            raise InvalidRequest(
                f"worker address {ascii(url)[:200]} must be of the form http://host:port"
            )
        try:
            self.host, self.port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise InvalidRequest(f"worker address {ascii(url)[:200]}: {error}") from None
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.name = f"{shown}:{self.port}"
        self.trusted_again_at = 0.0
        """Monotonic time until which this worker is tried last, because it refused a connection or
        said that it cannot."""
