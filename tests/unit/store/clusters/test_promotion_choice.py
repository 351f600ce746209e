"""Which minion a promotion makes master: the most advanced one, and never one that lacks cells
another has."""

from __future__ import annotations

from typing import cast

import pytest

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.candidates import choose
from cellfeed.store.engines.mysql.replication import Gtid
from cellfeed.store.errors import ProtectData, StorageUnavailable


class Servers:
    name = "c1"


CLUSTER = cast("ClusterServers", Servers())


def at(sequence: int) -> Gtid:
    return Gtid(f"0-1-{sequence}")


def test_the_most_advanced_minion_is_chosen() -> None:
    assert choose(CLUSTER, {"b": at(7), "c": at(9)}, None) == "c"
    assert choose(CLUSTER, {"b": at(9), "c": at(9)}, "c") == "c"


def test_a_minion_that_lags_is_not_made_master_by_name() -> None:
    with pytest.raises(ProtectData, match="promoting it would lose cells"):
        choose(CLUSTER, {"b": at(7), "c": at(9)}, "b")


def test_a_minion_that_has_not_heard_of_the_epoch_is_not_made_master_by_name() -> None:
    with pytest.raises(ProtectData, match="has not heard of the present epoch"):
        choose(CLUSTER, {"c": at(9)}, "b")
    with pytest.raises(StorageUnavailable, match="has no minion to promote"):
        choose(CLUSTER, {}, None)
