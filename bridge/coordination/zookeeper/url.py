"""Where ZooKeeper is, and our user there:
``zookeeper://[user:password@]host:port[,host:port…][/chroot][?option=value&…]``.

Options: ``tls=true`` with ``ca``, ``certificate`` and ``key`` (files; the server's certificate and
host name are always verified), and ``timeout_s``. A password is percent-encoded where it has to be;
it is in no error, log line or ``repr``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.secret_references import resolved_url

SCHEME: Final = "zookeeper"
DEFAULT_PORT: Final = 2181

CALL_TIMEOUT_S: Final = 4.0
"""How long one call to ZooKeeper may take, unless the URL says otherwise: above a server's pause
for a slow disk, below the default lease of a worker."""

_BEHIND_AUTHORITY: Final = re.compile("[/?#]")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")
_CHROOT_PART: Final = re.compile(r"[A-Za-z0-9._~-]+")
_OPTIONS: Final = frozenset({"tls", "ca", "certificate", "key", "timeout_s"})


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """A parsed URL. ``hosts`` is ``host:port,host:port``, ``chroot`` is empty or ``/a/b``;
    ``timeout_s`` is for one call."""

    hosts: str
    chroot: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    timeout_s: float = CALL_TIMEOUT_S


def parse_zookeeper_url(url: str) -> ZooKeeperAddress:
    """Raises InvalidRequest, which names the part that is wrong and never the credentials."""
    scheme, _, rest = resolved_url(url).partition("://")
    # A newer Python takes several servers for no host where one has brackets.
    authority = _BEHIND_AUTHORITY.split(rest, maxsplit=1)[0]
    parts = urlsplit(f"{SCHEME}://server{rest.removeprefix(authority)}")
    if scheme.lower() != SCHEME or parts.fragment:
        raise InvalidRequest(
            "coordination: a ZooKeeper URL is"
            f" {SCHEME}://[user:password@]host:port,host:port/chroot"
        )
    credentials, _, hosts = authority.rpartition("@")
    user, colon, password = credentials.partition(":")
    if credentials and not (user and colon and password):
        raise InvalidRequest("coordination: ZooKeeper credentials are user:password")
    chroot = parts.path.rstrip("/")
    if any(
        _CHROOT_PART.fullmatch(part) is None or part in (".", "..")
        for part in chroot.split("/")[1:]
    ):
        raise InvalidRequest(
            f"coordination: the chroot {parts.path!r} is not a ZooKeeper path of letters, digits,"
            " '.', '_', '~' and '-'"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - _OPTIONS):
        raise InvalidRequest(
            f"coordination: unknown option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}"
        )
    if options.get("tls", "true") not in ("true", "false"):
        raise InvalidRequest("coordination: tls is true or false")
    tls = options.get("tls") == "true"
    if not tls and (files := sorted({"ca", "certificate", "key"} & set(options))):
        raise InvalidRequest(f"coordination: {files[0]} is given without tls=true")
    return ZooKeeperAddress(
        hosts=",".join(_host(host) for host in hosts.split(",")),
        chroot=chroot,
        user=unquote(user) if credentials else None,
        password=unquote(password) if credentials else None,
        tls=tls,
        ca=options.get("ca"),
        certificate=options.get("certificate"),
        key=options.get("key"),
        timeout_s=_timeout_s(options.get("timeout_s", str(CALL_TIMEOUT_S))),
    )


def _host(text: str) -> str:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or DEFAULT_PORT) < 65_536:
        # The text before a forgotten '@' could be a password: a wrong host is not shown.
        raise InvalidRequest("coordination: ZooKeeper's servers are host:port,host:port")
    return text if match["port"] else f"{text}:{DEFAULT_PORT}"


def _timeout_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60:
        raise InvalidRequest(
            f"coordination: timeout_s is {text!r}, not a number of seconds from 0.1 to 60"
        )
    return seconds
