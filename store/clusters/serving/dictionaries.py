"""Dictionaries over clusters: every cluster has every one, on its master and its minions, before
any cluster uses it. Promises C1–C4.

``add`` writes the content to each cluster's master and waits until a minion that follows the
present master has it: contents on such a minion outlive a promotion, as the cells below the
watermark do. Only then ``use`` writes turns, to the first cluster first: that cluster decides the
order of turns.

The state after a kill, or while a cluster is away:

    between two contents    some clusters have a dictionary that nobody uses; ``complete`` brings it
                            to the others, and it lies unused.
    between two turns       some clusters use it, the others continue without it (or with the one
                            before); ``complete`` writes the turns that are missing.
    a promotion in between  the new master has the content (see above); ``complete`` writes a turn
                            that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cellfeed.store.cells.dictionary import Dictionary, name_of
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.confirmed_dictionaries import wait_for_minion
from cellfeed.store.clusters.serving.node_engine import READ_TIMEOUT_S, NodeEngine
from cellfeed.store.engines.contract.dictionaries import KeptDictionary, Stopped, Turn
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import DictionaryLost, StorageUnavailable, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "cluster.dictionary.between_contents",
    "cluster.dictionary.before_turns",
    "cluster.dictionary.between_turns",
    "cluster.dictionary.between_removals",
)


_ROUNDS_MAX: Final = 3
"""How often a content is taken away before the process that brings it back is reported."""


class ClusteredDictionaries:
    """:class:`cellfeed.store.engines.contract.dictionaries.DictionaryStore` over the clusters of a
    datastore."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self._clusters = clusters

    def find(self, dictionary_id: int) -> Dictionary | None:
        silent: Unavailable | None = None
        for cluster in self._clusters:
            try:
                found, stale = cluster.read(
                    lambda engine: engine.dictionaries.find(dictionary_id),
                    Replica.MASTER,
                    bool,
                    lasting=bool,
                )
            except Unavailable as error:
                silent = error
                continue
            if found is not None:
                return found
            if stale:
                silent = StorageUnavailable(
                    f"cluster {cluster.name}: its master is away, and its minions do not have"
                    f" dictionary {name_of(dictionary_id)}"
                )
        if silent is not None:
            raise silent
        return None

    def current(self) -> dict[str, Turn]:
        return _current(self._clusters[0])

    def count(self) -> int:
        return self._clusters[0].write(
            lambda engine, _: engine.dictionaries.count(), READ_TIMEOUT_S
        )

    def kept(self) -> list[KeptDictionary]:
        """Contents of all clusters; the turns are those of the first, which decides."""
        first, *others = [
            cluster.write(lambda engine, _: engine.dictionaries.kept(), READ_TIMEOUT_S)
            for cluster in self._clusters
        ]
        found = {each.dictionary_id: each for each in first}
        for each in (one for kept in others for one in kept):
            found.setdefault(each.dictionary_id, replace(each, turns=()))
        return [found[dictionary_id] for dictionary_id in sorted(found)]

    def add(self, dictionary: Dictionary) -> None:
        for cluster in self._clusters:
            cluster.write(lambda engine, role: engine.dictionaries.add(dictionary, role.terms))
            failpoint("cluster.dictionary.between_contents")
        for cluster in self._clusters:
            wait_for_minion(cluster, dictionary)

    def use(self, dictionary: Dictionary, turn: int) -> bool:
        first, *others = self._clusters
        failpoint("cluster.dictionary.before_turns")
        if not first.write(
            lambda engine, role: engine.dictionaries.use(dictionary, turn, role.terms)
        ):
            return False
        for cluster in others:
            failpoint("cluster.dictionary.between_turns")
            _take(cluster, dictionary)
        return True

    def stop_using(self, dictionary_id: int) -> Stopped:
        """On the first cluster first: ``complete`` brings its turns to the others."""
        return {
            cluster.name: cluster.write(lambda engine, role: _stopped(engine, dictionary_id, role))
            for cluster in self._clusters
        }

    def take_away(self, dictionary_id: int, stopped: Stopped) -> None:
        """Again where ``complete`` has brought it back from a cluster that still had it."""
        for _ in range(_ROUNDS_MAX):
            for cluster in self._clusters:
                epoch = stopped[cluster.name]
                cluster.write(
                    lambda engine, role, epoch=epoch: _take_away(  # type: ignore[misc]
                        engine, dictionary_id, role, epoch
                    )
                )
                failpoint("cluster.dictionary.between_removals")
            if self.find(dictionary_id) is None:
                return
        raise StorageUnavailable(
            f"dictionary {name_of(dictionary_id)} is written again by another process. Retire it"
            " again"
        )

    def complete(self) -> None:
        contents = {cluster: _present_ids(cluster) for cluster in self._clusters}
        wanted = set().union(*contents.values())
        for dictionary_id in sorted(wanted):
            lacking = [
                cluster for cluster in self._clusters if dictionary_id not in contents[cluster]
            ]
            if lacking and (dictionary := self.find(dictionary_id)) is not None:
                for cluster in lacking:
                    cluster.write(
                        lambda engine, role, dictionary=dictionary: engine.dictionaries.add(  # type: ignore[misc]
                            dictionary, role.terms
                        )
                    )
        first, *others = self._clusters
        decided = _current(first)
        for cluster in others:
            have = _current(cluster)
            for name, turn in decided.items():
                if (name not in have or have[name].dictionary_id != turn.dictionary_id) and (
                    dictionary := self.find(turn.dictionary_id)
                ) is not None:
                    # By a kill between two turns: its content is everywhere, unless the cluster
                    # came later.
                    self.add(dictionary)
                    _take(cluster, dictionary)


def refuse_lost_on_master(cluster: Cluster) -> None:
    """Raises DictionaryLost when the cluster's master was refused for a dictionary, or a node was
    while no other reports the master; StorageUnavailable when no node reports it for another
    reason. A minion alone takes no part until it is mended, and the cluster's status names it.
    """
    try:
        master: str | None = cluster.role().master
        away = None
    except StorageUnavailable as error:
        master, away = None, error
    for node in cluster.nodes.values():
        if isinstance(node.refused, DictionaryLost) and master in (None, node.name):
            raise DictionaryLost(f"cluster {cluster.name}, node {node.name}: {node.refused}")
    if away is not None:
        raise away


def _stopped(engine: NodeEngine, dictionary_id: int, role: Role) -> int:
    engine.dictionaries.stop_using(dictionary_id, role.terms)
    return role.epoch


def _take_away(engine: NodeEngine, dictionary_id: int, role: Role, epoch: int) -> None:
    if role.epoch != epoch:
        raise StorageUnavailable(
            f"cluster {role.cluster}: nothing removed: {role.master} was promoted since"
            f" dictionary {name_of(dictionary_id)} was taken out of use: retire it again"
        )
    engine.dictionaries.take_away(dictionary_id, {}, role.terms)


def _present_ids(cluster: Cluster) -> set[int]:
    return cluster.write(
        lambda engine, _: {
            each.dictionary_id for each in engine.dictionaries.kept() if each.content_bytes
        },
        READ_TIMEOUT_S,
    )


def _current(cluster: Cluster) -> dict[str, Turn]:
    return cluster.write(lambda engine, _: engine.dictionaries.current(), READ_TIMEOUT_S)


def _take(cluster: Cluster, dictionary: Dictionary) -> None:
    """The cluster's next turn of the column, unless it uses the dictionary already, or another
    process is writing turns there."""
    turn = _current(cluster).get(dictionary.column_name)
    if turn is None or turn.dictionary_id != dictionary.dictionary_id:
        cluster.write(
            lambda engine, role: engine.dictionaries.use(
                dictionary, turn.turn + 1 if turn else 0, role.terms
            )
        )
