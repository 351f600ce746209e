"""Wake-ups between hosts: how the followers of this host reach the workers of others."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.http.calls.access import Access, AccessOptions
from cellfeed.store.security.loopback import is_loopback

_ADVERTISED: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(\d{1,5}))?")
_PORT_MAX: Final = 65_535


class WakeupsConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Gateways, triggers, indexes, exports and workers of this configuration connect to the workers
    of other hosts that are ``advertised``, and are woken by their commits. ``ca``: PEM file with
    the authorities of the workers' certificates, the system's without. ``token_file``: the
    processes' token, read again when it changes; or ``certificate`` and ``key``, PEM files of their
    own. The principal needs a right to something of the datastore."""

    ca: str | None = None
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None

    def access(self) -> Access:
        """As connections take it. Raises InvalidRequest for files that do not fit together."""
        options: AccessOptions = {}
        if self.ca is not None:
            options["ssl_ca"] = self.ca
        if self.token_file is not None:
            options["token_file"] = self.token_file
        if self.certificate is not None:
            options["ssl_certificate"] = self.certificate
        if self.key is not None:
            options["ssl_key"] = self.key
        return Access(options)


def check_wakeups(wakeups: WakeupsConfig) -> None:
    """Raises InvalidRequest, and ProtectData for connections without credentials."""
    if wakeups.token_file is None and wakeups.certificate is None:
        raise ProtectData(
            "config: wakeups: workers of other hosts ask for credentials: give token_file, or"
            " certificate and key"
        )
    try:
        wakeups.access()
    except InvalidRequest as error:
        raise InvalidRequest(f"config: wakeups: {error}") from None


def check_advertised(name: str, advertised: str, listens_at: str, *, has_tls: bool) -> None:
    """The address that a worker advertises. Raises InvalidRequest for a form that it has not, and
    for one that no other host reaches; ProtectData for one without TLS."""
    found = _ADVERTISED.fullmatch(advertised)
    if found is None or not 1 <= int(found[3] or 1) <= _PORT_MAX:
        raise InvalidRequest(f"config: {name}: advertised {advertised!r}: write HOST or HOST:PORT")
    if is_loopback(found[1].strip("[]")):
        return
    if not has_tls:
        raise ProtectData(
            f"config: {name}: advertised {advertised!r} is not loopback, and followers of other"
            " hosts connect over TLS only: give tls with certificate and key"
        )
    if is_loopback(listens_at):
        raise InvalidRequest(
            f"config: {name}: advertised {advertised!r}, and host {listens_at!r} is loopback: no"
            " other host reaches it"
        )
