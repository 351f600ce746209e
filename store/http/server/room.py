"""Which connection has to go when there are too many."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol, TypeVar

from cellfeed.store.security.loopback import is_loopback
from cellfeed.store.security.peer_limits import PeerLimits

CONNECTIONS_MAX: Final = 2_000
"""Each costs a file handle and some 20 KB; under the usual limit of 4,096 handles."""


class Waiting(Protocol):
    """A connection. ``host``: its peer's address."""

    @property
    def host(self) -> str: ...

    @property
    def lets_wait(self) -> bool:
        """Whether nothing is done for the peer: it is its turn."""

    @property
    def waits_s(self) -> float:
        """For how long the connection has waited for its peer."""


AnyConnection = TypeVar("AnyConnection", bound=Waiting)


def one_too_many(
    new: AnyConnection,
    everyone: Collection[AnyConnection],
    limits: PeerLimits,
) -> AnyConnection | None:
    """The connection that makes room; None while there is some. An address with its full
    share gets no further one: the new one goes. Programs behind a proxy of this machine share its
    address, so loopback has no share. Else the one goes whose peer has let it wait for longest."""
    share = limits.connections_per_address
    is_counted = len(everyone) > share and not is_loopback(new.host)
    if is_counted and sum(each.host == new.host for each in everyone) > share:
        return new
    if len(everyone) <= (limits.connections or CONNECTIONS_MAX):
        return None
    others = [each for each in everyone if each.lets_wait and each is not new]
    return max(others, key=lambda each: each.waits_s, default=new)
