"""The master of a cluster: an entry of the state table on the cluster's own nodes, so it replicates
with the cells.

A promotion writes it on the new master, under a higher epoch. A reader of the role asks every node
that answers and believes the highest epoch. So an old master that returns, or is cut off, convinces
nobody who can reach one node that has heard of the promotion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY
from cellfeed.store.errors import DataDamaged, NoMinion, ProtectData
from cellfeed.store.histories import is_same_history

TAKEOVER_S: Final = 0.1
"""How long every process can read that a node is master before that node takes its first write, in
seconds. So a reader that asked all nodes within this time knows of every master that had
acknowledged anything. Longer, and a promotion takes longer; shorter, and readers ask more often."""

PROMOTIONS_KEPT: Final = 100
"""So many promotions are remembered, the newest: a node that slept through more of them is made a
copy."""


class Role(msgspec.Struct, frozen=True):
    """The cluster's ``master`` by node name since leader epoch ``epoch``. ``minions``: the nodes
    that followed it when it was made so, and those that have rejoined since. ``semi_sync``: a
    commit waits until a minion has received it. ``promotions``: of each promotion, in their order,
    the epoch that it raised and the new master's GTID position then. ``history_id``: of the
    datastore (:mod:`cellfeed.store.histories`).

    Within an epoch minions are only added, and ``semi_sync`` begins with the first one; every other
    change raises the epoch.
    """

    cluster: str
    master: str
    epoch: int
    minions: list[str] = []
    semi_sync: bool = False
    promotions: list[tuple[int, str]] = []
    history_id: str = ""
    first_epoch: int = 0
    """The epoch in which the history began."""

    def promoted(self, master: str, minions: list[str], position: str, epoch: int) -> Role:
        """The role after a promotion of ``master``, which has ``position``, to a higher epoch."""
        promotions = [*self.promotions, (epoch, position)][-PROMOTIONS_KEPT:]
        return msgspec.structs.replace(
            self, master=master, epoch=epoch, minions=minions, promotions=promotions
        )

    def with_minion(self, node: str, *, semi_sync: bool) -> Role:
        """The role with one more minion. The first one begins semi-synchronous replication where
        ``semi_sync`` asks for it."""
        if node in self.minions:
            return self
        begins = semi_sync and not self.minions
        return msgspec.structs.replace(
            self, minions=[*self.minions, node], semi_sync=self.semi_sync or begins
        )

    @property
    def terms(self) -> WriteTerms:
        """The terms of a write under this role. Raises NoMinion where no write can be acknowledged:
        the commit has to wait for a minion, and the last one was given up."""
        if self.semi_sync and not self.minions:
            raise NoMinion(
                f"cluster {self.cluster}: nothing written: it replicates semi-synchronously and"
                f" {self.master} has no minion left: bring one back (cellfeed cluster rejoin"
                f" {self.cluster} NODE), or do without: `semi_sync: false` in the configuration,"
                " and cellfeed cluster init"
            )
        return self.own_terms

    @property
    def own_terms(self) -> WriteTerms:
        """The terms that the master compares, also of the write that gives it its first minion
        again."""
        return WriteTerms(self.epoch, self.semi_sync, self.history_id)

    def why_foreign(self, reported: Role) -> str:
        """Why a server that reports this role is no node of the cluster; empty for one that is."""
        if reported.cluster == self.cluster and is_same_history(
            reported.history_id, self.history_id
        ):
            return ""
        return (
            f"it is a server of cluster {reported.cluster!r} in history {reported.history_id}, not"
            f" of {self.cluster!r} in history {self.history_id}"
        )

    def promotion_after(self, epoch: int) -> str | None:
        """The position that the new master of the first promotion after ``epoch`` had: a node that
        has heard of none later and has more holds commits that were never replicated.

        None when no promotion came after it; the empty position, which is behind every other, when
        the role does not know the epoch. Such an epoch is forgotten, or a promotion raised it that
        nobody followed: a node that heard of it may hold another history at positions that look the
        same.
        """
        if epoch == self.epoch:
            return None
        if epoch not in (self.first_epoch, *(each for each, _ in self.promotions)):
            return ""
        later = [position for each, position in self.promotions if each > epoch]
        return (
            later[0]
            if later and (len(self.promotions) < PROMOTIONS_KEPT or epoch >= self.promotions[0][0])
            else ""
        )


def read_role(state: StateTable) -> Role | None:
    """The role that a node has heard of; None before ``cluster init``."""
    entry = state.get(ROLE_KEY)
    return decode_role(entry.value if entry else None)


def decode_role(value: bytes | None) -> Role | None:
    """The role in the state entry's value. Raises DataDamaged."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=Role)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"the state entry {ROLE_KEY!r} is no role: {error}") from error


def write_role(state: StateTable, role: Role) -> None:
    """Writes on the master. The caller holds the only right to do so: it promotes, or makes the
    cluster."""
    state.commit({ROLE_KEY: msgspec.json.encode(role)})


def change_role(state: StateTable, old: Role, new: Role) -> bool:
    """Writes ``new`` on the master in place of ``old``. Whether the master has it now: not when it
    has another role than either."""
    entry = state.get(ROLE_KEY)
    reported = decode_role(entry.value) if entry else None
    if entry is None or reported not in (old, new):
        return False
    if (
        reported == new
        or state.commit({ROLE_KEY: msgspec.json.encode(new)}, {ROLE_KEY: entry.version}) is not None
    ):
        return True
    # The write in between may be this very change, tried before and not answered then.
    entry = state.get(ROLE_KEY)
    return entry is not None and decode_role(entry.value) == new


def newest(roles: Iterable[Role | None]) -> Role | None:
    """The role of the highest epoch, and of those the one with most minions: within an epoch they
    only grow."""
    return max(
        (role for role in roles if role is not None),
        key=lambda role: (role.epoch, len(role.minions)),
        default=None,
    )


def of_other_histories(cluster: str, roles: Mapping[str, Role | None]) -> dict[str, str]:
    """The nodes whose role is not of the cluster, each with the reason: it has another name, or
    another history than most nodes report. Raises ProtectData where two histories have as many
    nodes.
    """
    reported = {node: role for node, role in roles.items() if role is not None}
    foreign = {
        node: f"it is a node of cluster {role.cluster!r}, not of {cluster!r}"
        for node, role in reported.items()
        if role.cluster != cluster
    }
    most = Counter(
        role.history_id
        for node, role in reported.items()
        if node not in foreign and role.history_id
    ).most_common(2)
    if len(most) == 2 and most[0][1] == most[1][1]:
        of_each = ", ".join(f"{node}: {role.history_id}" for node, role in reported.items())
        raise ProtectData(
            f"cluster {cluster}: its nodes belong to two histories ({of_each}), and as many to one"
            " as to the other: nothing was done. Name only servers of one datastore in the"
            " configuration"
        )
    for node, role in reported.items():
        if node not in foreign and most and not is_same_history(role.history_id, most[0][0]):
            foreign[node] = (
                f"it belongs to history {role.history_id}, the cluster to {most[0][0]}: it is"
                " another datastore's server, or one from before a restore; to make it a copy of"
                f" the master: cellfeed cluster rejoin {cluster} {node} --copy"
            )
    return foreign
