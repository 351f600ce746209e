"""The shard map: merged shard by shard by leader epoch, from any writes anywhere; and the plan
that makes clusters even."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.clusters.model.shard_map import (
    MAP_KEY,
    ShardMap,
    even_map,
    first_map,
    merged,
    ranges_text,
    read_map,
    write_map,
)
from cellfeed.store.clusters.moves.rebalance import plan_moves
from cellfeed.store.errors import DataDamaged, InvalidRequest, NotFound, ProtectData
from tests.support.state_in_memory import StateInMemory

NAMES = ("c1", "c2", "c3")
FIRST = even_map("trips", 8, NAMES)
MOVES = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(NAMES)), max_size=12)


def test_maps_of_two_histories_are_never_merged() -> None:
    other = even_map("trips", 8, NAMES)
    with pytest.raises(
        ProtectData,
        match=f"{FIRST.history_id}.*{other.history_id}.*Name only clusters of one datastore",
    ):
        merged([FIRST, other])
    older = msgspec.structs.replace(FIRST, history_id="")
    assert (
        merged([older, FIRST]).history_id == merged([FIRST, older]).history_id == FIRST.history_id
    )


def maps_of(moves: list[tuple[int, str]]) -> list[ShardMap]:
    """A map for each move, made of the first one and that move alone: the maps of clusters that
    have each heard of one."""
    return [FIRST.moved(shard, name, epoch) for epoch, (shard, name) in enumerate(moves, 1)]


@given(MOVES, st.randoms())
def test_maps_merge_to_the_last_move_of_each_shard_in_any_order(
    moves: list[tuple[int, str]], chance: object
) -> None:
    maps = [FIRST, *maps_of(moves)]
    wanted = FIRST.by_shard()
    for shard, name in moves:
        wanted[shard] = name
    chance.shuffle(maps)  # type: ignore[attr-defined]
    found = merged(maps)
    assert found.by_shard() == wanted
    assert merged([found, *maps]) == found
    half = len(maps) // 2
    assert merged([merged(maps[: half + 1]), merged(maps[half:])]).by_shard() == wanted


@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=40),
    st.sets(st.sampled_from(NAMES), max_size=2),
)
def test_a_plan_makes_clusters_even_with_the_fewest_moves(
    owned: list[str], drained: set[str]
) -> None:
    owners = dict(enumerate(owned))
    plan = plan_moves(owners, NAMES, drained)
    after = {**owners, **{move.shard: move.target for move in plan}}
    kept = [name for name in NAMES if name not in drained]
    counts = sorted(list(after.values()).count(name) for name in kept)
    assert set(after.values()) <= set(kept)
    assert counts[-1] - counts[0] <= 1
    assert all(owners[move.shard] == move.source != move.target for move in plan)
    assert len({move.shard for move in plan}) == len(plan)
    before = {name: owned.count(name) for name in NAMES}
    surplus = sorted(counts, reverse=True)
    least = sum(before[name] for name in drained) + sum(
        max(0, have - share)
        for have, share in zip(
            sorted((before[name] for name in kept), reverse=True), surplus, strict=True
        )
    )
    assert len(plan) == least
    assert plan_moves(after, NAMES, drained) == []


def test_a_plan_that_leaves_no_cluster_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="one must be left"):
        plan_moves({0: "c1"}, ["c1"], ["c1"])
    with pytest.raises(NotFound, match="no cluster 'c9'"):
        plan_moves({0: "c1"}, ["c1"], ["c9"])


def test_shards_are_printed_as_ranges() -> None:
    assert ranges_text([7, 0, 1, 2]) == "0-2,7"


def test_every_map_has_a_higher_version_than_its_origins() -> None:
    one, two = FIRST.moved(0, "c2", 1), FIRST.moved(1, "c3", 1).moved(2, "c3", 2)
    assert (FIRST.version, one.version, two.version) == (1, 2, 3)
    assert merged([one, two]).version == merged([two, one]).version == 3


@pytest.mark.parametrize(
    ("owners", "told"),
    [
        ({"c1": [(0, 4)], "c2": [(4, 7)]}, "shard 4 is given to 'c1' and to 'c2'"),
        ({"c1": [(0, 2)], "c2": [(4, 7)]}, "shard 3 and 0 others belong to no cluster"),
        ({"c1": [(0, 3)], "c2": [(4, 8)]}, "shards 4-8 are not within 0-7"),
    ],
)
def test_a_shard_has_one_cluster(owners: dict[str, list[tuple[int, int]]], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        first_map("trips", 8, owners).by_shard()


def test_a_cluster_that_knows_of_a_later_move_keeps_it() -> None:
    state = StateInMemory()
    write_map({"c1": state}, FIRST.moved(0, "c3", 5))
    write_map({"c1": state}, FIRST.moved(0, "c2", 4).moved(1, "c2", 6))
    known = read_map(state)
    assert known is not None
    assert known.by_shard()[:3] == ["c3", "c2", FIRST.by_shard()[2]]


def test_of_two_concurrent_changes_of_the_map_none_is_lost() -> None:
    state = StateInMemory()
    write_map({"c1": state}, FIRST)
    state.between = lambda: write_map({"c1": state}, FIRST.moved(0, "c3", 5))
    write_map({"c1": state}, FIRST.moved(7, "c1", 6))
    known = read_map(state)
    assert known is not None
    assert (known.by_shard()[0], known.by_shard()[7]) == ("c3", "c1")


def test_an_entry_that_is_no_map_is_damage() -> None:
    state = StateInMemory()
    state.commit({MAP_KEY: b"{}"})
    with pytest.raises(DataDamaged, match="is no shard map"):
        read_map(state)
