"""Waiting for minions: until each has reached its master's position, so that a program that opens
them finds the same schema and the same cells there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.replication import minion_status, position
from cellfeed.store.errors import StorageUnavailable

CATCH_UP_S: Final = 60.0
"""How long a minion may receive nothing new before the wait for it fails, in seconds: it applies as
it receives, so it is seconds behind the load."""

_PAUSE_S: Final = 0.05


def wait_for_minions(
    cluster: ClusterServers, master: str, minions: Sequence[str], otherwise: str
) -> None:
    """Waits until each has reached the position that the master has now. Raises StorageUnavailable
    for one that does not come nearer; ``otherwise`` names the step for the operator then."""
    if not minions:
        return  # a cluster of one node may be MySQL, which has other positions
    wanted = position(cluster.server(master)).sequence
    for name in minions:
        server = cluster.server(name)
        reached, since_s = -1, time.monotonic()
        while (now := position(server).sequence) < wanted:
            if now > reached:
                reached, since_s = now, time.monotonic()
            status = minion_status(server)
            if time.monotonic() - since_s > CATCH_UP_S or (status is not None and status.error):
                why = (
                    status.error
                    if status is not None and status.error
                    else f"it has received nothing for {CATCH_UP_S:.0f} s"
                )
                raise StorageUnavailable(f"{name} does not follow {master}: {why}; {otherwise}")
            time.sleep(_PAUSE_S)
