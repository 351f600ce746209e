"""Which minions may become master, and which one does: those whose history is the master's, and of
them the one that has most."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.present_role import role_on, why_foreign
from cellfeed.store.engines.mysql.replication import Gtid, minion_status
from cellfeed.store.errors import ProtectData, StorageUnavailable, Unavailable

_log = logging.getLogger("cellfeed.failover")


def check_left_out(
    cluster: ClusterServers,
    role: Role,
    candidates: Collection[str],
    heard: Mapping[str, Role],
    give_up: Collection[str],
) -> None:
    """Raises ProtectData when cells may have been shown that none of the candidates has to have."""
    if missing := sorted(set(role.minions) - set(candidates) - set(give_up)):
        raise ProtectData(
            f"{', '.join(missing)} came back as minion of {role.master}, and may hold cells that"
            " were shown; bring it back, or give it up by name"
        )
    if (
        heard
        and role.master not in give_up
        and not any(name in found.minions for name, found in heard.items())
    ):
        raise ProtectData(
            f"cluster {cluster.name}: {', '.join(heard)} has not caught up with {role.master} since"
            f" it came, and may lack cells that were shown; bring {role.master} back, or continue"
            " without its own cells by naming it as given up"
        )


def find_candidates(cluster: ClusterServers, role: Role, give_up: Collection[str]) -> list[str]:
    """The nodes whose history is the master's: they have heard of its epoch, or follow it. Every
    node that is known as a minion must be one of them."""
    candidates = []
    for name in cluster.servers:
        if name == role.master or name in give_up:
            continue
        try:
            if foreign := why_foreign(cluster, name, role):
                if name in role.minions:
                    raise ProtectData(
                        f"another server has the address of minion {name}, which may hold cells"
                        f" that were shown: {foreign}. Bring the minion back, or name it as given"
                        f" up: cellfeed cluster promote {cluster.name} --give-up {name}"
                    )
                _log.warning("cluster %s: %s is left alone: %s", cluster.name, name, foreign)
            elif _shares_history(cluster, name, role):
                candidates.append(name)
            elif name in role.minions:
                raise ProtectData(
                    f"node {name} has not heard of epoch {role.epoch} of {role.master}; it must"
                    " catch up, or be given up by name, first"
                )
            else:
                _log.warning(
                    "cluster %s: %s does not follow %s and takes no part in the promotion",
                    cluster.name,
                    name,
                    role.master,
                )
        except Unavailable as error:
            if name in role.minions:
                raise ProtectData(
                    f"minion {name} does not answer, and may hold cells that were shown; bring it"
                    f" back, or name it as given up: {error}"
                ) from error
    return candidates


def _shares_history(cluster: ClusterServers, name: str, role: Role) -> bool:
    found = role_on(cluster, name)
    if found is None or found.epoch == role.epoch:
        return found is not None
    status = minion_status(cluster.servers[name])
    return status is not None and status.follows(cluster.server(role.master)) and not status.error


def choose(cluster: ClusterServers, positions: dict[str, Gtid], to: str | None) -> str:
    if not positions:
        raise StorageUnavailable(
            f"cluster {cluster.name} has no minion to promote: none has heard of its present epoch"
        )
    if to and to not in positions:
        raise ProtectData(
            f"{to} has not heard of the present epoch of cluster {cluster.name}, so it lacks the"
            " writes of that epoch"
        )
    most = max(positions.values(), key=lambda gtid: gtid.sequence)
    chosen = to or next(name for name in positions if positions[name].sequence == most.sequence)
    if positions[chosen].sequence < most.sequence:
        ahead = ", ".join(
            f"{name} is at {gtid.text}"
            for name, gtid in positions.items()
            if gtid.sequence > positions[chosen].sequence
        )
        raise ProtectData(
            f"{chosen} is at {positions[chosen].text}, but {ahead}: promoting it would lose cells"
        )
    return chosen
