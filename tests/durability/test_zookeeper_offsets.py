"""A store whose coordination is in ZooKeeper, another machine, after every power cut of its own: no
offset that was saved is lost, and ZooKeeper is known."""

from __future__ import annotations

import pickle

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.durability.conftest import Cuts
from tests.durability.programs import OFFSETS, zookeeper_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_offsets_in_zookeeper_continue_after_a_power_cut_of_the_store(cuts: Cuts) -> None:
    most = 0
    for cut in cuts("offsets"):
        tree, saved = ZooKeeperTree(), dict[int, int]()
        for line in cut.said:
            kind, *words = line.split()
            if kind == "tree":
                kept = bytes.fromhex(words[0])
            else:
                saved[int(words[0])] = int(words[1])
        if any(line.startswith("tree") for line in cut.said):
            tree.go_back(pickle.loads(kept))
        with Datastore.open_embedded(cut.place / "run", "trips", 1) as opened:
            coordinator = zookeeper_of(tree, opened.state)
            try:
                assert coordinator.why_changed() is None, (
                    f"{cut}: ZooKeeper is taken for another one"
                )
                found = {
                    partition: offset.offset
                    for (_, partition), offset in coordinator.fetch_offsets("g").items()
                }
                assert all(
                    found.get(partition, 0) >= offset for partition, offset in saved.items()
                ), f"{cut}: saved offsets {saved}, found {found}"
                session = coordinator.join("g", "b", 60.0)
                assert session.epoch
            finally:
                coordinator.close()
        most = max([most, *saved.values()])
    assert most == OFFSETS
