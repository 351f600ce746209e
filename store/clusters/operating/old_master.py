"""The old master in a promotion: it is fenced, its minions reach its position, and it gets its
writes back where nobody was promoted."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.present_role import why_foreign
from cellfeed.store.engines.mysql.read_only import make_read_only, open_for_writes
from cellfeed.store.engines.mysql.replication import (
    follow,
    minion_status,
    position,
    start_receiving,
)
from cellfeed.store.errors import CellfeedError, StorageUnavailable

_log = logging.getLogger("cellfeed.failover")

HANDOVER_S: Final = 10.0
"""How long a fenced master waits for the minion that takes over to reach its position, in
seconds: nobody writes meanwhile."""

ALL_HANDOVER_S: Final = 2.0
"""How long the other minions are waited for as well, in seconds: one that lags catches up from the
new master."""

_PAUSE_S: Final = 0.02


def hand_over(
    cluster: ClusterServers, role: Role, candidates: Collection[str], to: str | None
) -> None:
    """Waits until the minion that takes over, and if possible all, have reached the fenced master's
    position. Raises StorageUnavailable."""
    fenced = cluster.server(role.master)
    fenced.drop_idle()
    for name in candidates:
        if minion_status(cluster.server(name)) is None:  # since a promotion that was killed
            follow(cluster.server(name), fenced)
    wanted = position(fenced)
    began_s = time.monotonic()
    while True:
        positions = {name: position(cluster.server(name)) for name in candidates}
        behind = [name for name, reached in positions.items() if reached.sequence < wanted.sequence]
        waited_s = time.monotonic() - began_s
        enough = to not in behind if to else len(behind) < len(positions)
        if not behind or (enough and waited_s > ALL_HANDOVER_S):
            return
        if waited_s > HANDOVER_S:
            behind_at = ", ".join(
                f"{name} at {positions[name].text or 'nothing'}" for name in behind
            )
            raise StorageUnavailable(
                f"cluster {cluster.name}: nobody was promoted: {role.master} is at {wanted.text},"
                f" and after {HANDOVER_S:.0f} s {behind_at}; see why replication lags, or continue"
                f" without the cells of {role.master} by naming it as given up: cellfeed cluster"
                f" promote {cluster.name} --give-up {role.master}"
            )
        time.sleep(_PAUSE_S)


def take_back(
    cluster: ClusterServers, role: Role, candidates: Collection[str], *, reopen: bool
) -> None:
    """Undoes the steps before the epoch is raised, as far as nodes answer: the minions receive
    again, and the master takes writes if it did before."""
    for name in candidates:
        with suppress(CellfeedError):
            if minion_status(cluster.servers[name]) is None:
                follow(cluster.servers[name], cluster.server(role.master))
            else:
                start_receiving(cluster.servers[name])
    if reopen:
        try:
            open_for_writes(cluster.server(role.master))
        except CellfeedError as error:
            _log.error(
                "cluster %s: %s is fenced still: cellfeed cluster promote %s opens it again: %s",
                cluster.name,
                role.master,
                cluster.name,
                error,
            )


def fence(cluster: ClusterServers, role: Role) -> bool:
    try:
        if foreign := why_foreign(cluster, role.master, role):
            raise StorageUnavailable(f"another server has its address: {foreign}")
        make_read_only(cluster.server(role.master))
    except CellfeedError as error:
        _log.warning(
            "cluster %s: the old master %s could not be fenced: %s",
            cluster.name,
            role.master,
            error,
        )
        return False
    return True
