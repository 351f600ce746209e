"""Where a MySQL or MariaDB server is: its URL, and the address at which the other servers of its
cluster reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.secret_references import resolved_url


@dataclass(frozen=True, slots=True)
class MySqlTls:
    """TLS to a server, which is refused where it offers none. ``ca``: the file of the authorities
    that may have signed its certificate; those of the system without. ``certificate`` and ``key``:
    files of our own certificate. ``host_name``: whether the certificate must be of the address's
    host."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    host_name: bool = True
    replication_ca: str | None = None
    """``ca`` as a file of the other servers, which connect to this one with it."""


@dataclass(frozen=True, slots=True)
class MySqlAddress:
    """Where a server is. ``replication`` is ``(host, port)`` as the other servers of its cluster
    reach it. The password is never part of a text. ``managed``: the address is the endpoint of a
    service that replaces the server behind it (:mod:`cellfeed.store.engines.mysql.managed`)."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    replication: tuple[str, int]
    tls: MySqlTls | None = None
    managed: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_mysql_url(
    url: str,
    replication: str | None = None,
    *,
    tls: MySqlTls | None = None,
    managed: bool = False,
) -> MySqlAddress:
    """``mysql://user:password@host:port``, where the password may be ``${env:NAME}`` or
    ``${file:/path}``; ``replication`` is ``host:port`` where the servers reach each other
    otherwise. Raises InvalidRequest."""
    form = "a MySQL server is given as mysql://user:password@host:port"
    url = resolved_url(url)
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        reached = urlsplit(f"//{replication}") if replication else parts
        replication_port = reached.port or 3306
    except ValueError as error:
        # The message leaves the URL out: it may hold a password.
        raise InvalidRequest(f"{form}: {error}") from None
    if (
        parts.scheme != "mysql"
        or not parts.hostname
        or not reached.hostname
        or parts.path.strip("/")
        or parts.query
    ):
        raise InvalidRequest(form)
    return MySqlAddress(
        parts.hostname,
        port,
        unquote(parts.username or "root"),
        unquote(parts.password or ""),
        (reached.hostname, replication_port),
        tls,
        managed,
    )
