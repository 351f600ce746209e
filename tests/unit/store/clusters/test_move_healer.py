"""When a healer of moves acts: with clusters and moves as values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map, write_map
from cellfeed.store.clusters.moves import heal, steps
from cellfeed.store.clusters.moves import healer as healing
from cellfeed.store.clusters.moves.heal import SILENT_MAX_S
from cellfeed.store.clusters.moves.healer import HEAL_AFTER_S, MoveHealer
from cellfeed.store.clusters.moves.mover_lock import LockOwner
from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.clusters.moves.steps import Move
from cellfeed.store.clusters.moves.underway import Underway
from cellfeed.store.errors import StorageUnavailable
from tests.support.state_in_memory import StateInMemory


class Moves:
    """Two clusters. ``kept``: per cluster the shards that it keeps, with tokens; ``away``: the
    clusters that do not answer."""

    def __init__(self) -> None:
        self.kept: dict[str, list[tuple[int, int]]] = {"c1": [], "c2": []}
        self.underway: list[Underway] = []
        self.away: set[str] = set()
        self.looked: list[list[str]] = []
        self.healed: list[int] = []
        self.owners: dict[str, LockOwner] = {}
        self.cut_off: list[int] = []
        self.now_s = 50.0

    def cluster(self, name: str) -> ClusterServers:
        @contextmanager
        def connection() -> Any:
            yield name

        server = SimpleNamespace(connection=connection)
        found = SimpleNamespace(name=name, meta="trips_meta", server=lambda _: server)
        found.with_timeout = lambda _: found
        found.close = lambda: None
        return cast("ClusterServers", found)

    def role(self, cluster: Any) -> tuple[Any, dict[str, str]]:
        if cluster.name in self.away:
            raise StorageUnavailable("away")
        return SimpleNamespace(master="a"), {}

    def look(self, clusters: Mapping[str, ClusterServers]) -> list[Underway]:
        self.looked.append(sorted(clusters))
        return self.underway

    def heal(self, _: object, found: Underway) -> str:
        self.healed.append(found.shard)
        return "healed"


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Moves:
    moves = Moves()
    for name, stand_in in {
        "cluster_role": moves.role,
        "query": lambda cluster, _: moves.kept[cluster],
        "underway": moves.look,
        "heal": moves.heal,
        "lock_owner": lambda cluster, *_: moves.owners.get(cluster.name),
        "cut_off": lambda cluster, role, owner: moves.cut_off.append(owner.connection),
    }.items():
        for module in (heal, healing):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    return moves


@pytest.fixture
def healer(moves: Moves) -> MoveHealer:
    return MoveHealer(
        {name: moves.cluster(name) for name in moves.kept}, clock_s=lambda: moves.now_s
    )


def fenced(shard: int) -> Underway:
    return Underway(shard, "c1", "c2", "fenced", 5, 10)


def test_a_shard_is_healed_once_nobody_has_served_it_for_long_enough(
    healer: MoveHealer, moves: Moves
) -> None:
    moves.kept["c1"], moves.underway = [(3, 77)], [fenced(3)]
    healer.look()
    moves.now_s += HEAL_AFTER_S - 0.1
    healer.look()
    assert moves.healed == []
    moves.now_s += 0.2
    healer.look()
    assert moves.healed == [3]


def test_a_later_move_of_the_same_shard_is_given_its_own_time(
    healer: MoveHealer, moves: Moves
) -> None:
    moves.kept["c1"], moves.underway = [(3, 77)], [fenced(3)]
    healer.look()
    moves.kept["c1"] = []  # given back by its mover
    moves.now_s += HEAL_AFTER_S
    healer.look()
    moves.kept["c1"] = [(3, 78)]  # and fenced again
    healer.look()
    assert moves.healed == []


def test_kept_copies_are_looked_at_once_and_again_when_another_one_comes(
    healer: MoveHealer, moves: Moves
) -> None:
    moves.kept["c1"] = [(3, 77)]
    for _ in range(3):
        healer.look()
    assert len(moves.looked) == 1
    moves.kept["c1"] = [(3, 77), (4, 78)]
    healer.look()
    assert len(moves.looked) == 2


def test_a_look_without_one_of_the_clusters_settles_nothing(
    healer: MoveHealer, moves: Moves
) -> None:
    moves.kept["c1"] = [(3, 77)]
    moves.away = {"c2"}
    healer.look()  # only c2 knows that the shard was switched to it
    moves.away = set()
    moves.underway = [fenced(3)]
    for _ in range(2):
        healer.look()
        moves.now_s += HEAL_AFTER_S
    assert moves.looked[0] == ["c1"]
    assert moves.healed == [3]


@pytest.mark.parametrize(
    ("silent_s", "cut_off"),
    [
        ({"c1": SILENT_MAX_S, "c2": SILENT_MAX_S + 1}, [1, 2]),
        ({"c1": SILENT_MAX_S, "c2": SILENT_MAX_S - 0.1}, []),
        ({"c2": SILENT_MAX_S}, [2]),
    ],
)
def test_a_mover_is_cut_off_when_all_its_connections_are_silent(
    moves: Moves, silent_s: dict[str, float], cut_off: list[int]
) -> None:
    moves.owners = {name: LockOwner(int(name[1]), each) for name, each in silent_s.items()}
    clusters = {name: moves.cluster(name) for name in ("c1", "c2", "c3")}
    heal._end_silent(clusters, 3, {"c1", "c2"}, SILENT_MAX_S)
    assert sorted(moves.cut_off) == cut_off


def test_the_source_gets_the_new_map_first_and_no_node_before_the_switch_is_safe(
    moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    names = ("c0", "c1", "c2")

    class Noted(StateInMemory):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def commit(self, *args: Any) -> int | None:
            happened.append(self.name)
            return super().commit(*args)

    states = {name: Noted(name) for name in names}
    write_map({name: states[name] for name in names}, even_map("trips", 3, names))
    happened.clear()
    monkeypatch.setattr(steps, "master_state", lambda cluster: states[cluster.name])
    monkeypatch.setattr(steps, "wait_for_minions", lambda *_: happened.append("switch is safe"))
    target = SimpleNamespace(cluster=moves.cluster("c0"), leader_epochs=lambda: [(0, 0), (4, 9)])
    move = Move({name: moves.cluster(name) for name in names}, 2)
    move._write_map(cast("ShardSide", target), "c2")
    assert happened == ["switch is safe", "c2", "c0", "c1"]
