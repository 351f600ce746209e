"""Races on clusters of real servers. In the suite: for each case the orders that go to its heart,
and some of the day's seed. With ``make races`` every order, and many of the seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cellfeed.store.clusters.moves import copying, steps, switching, waiting
from cellfeed.store.clusters.serving import placement
from cellfeed.store.engines.mysql import locks
from cellfeed.store.failpoints import FAILPOINTS
from tests.faults.seeds import default_seed
from tests.races.cluster_cases import CASES, EVERYWHERE
from tests.races.clusters import Place, made_place
from tests.races.scheduler import every_order, one_order, some_orders
from tests.support import local_mariadb
from tests.support.mariadb_cluster import bare_servers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(3_600 if os.environ.get("CELLFEED_RACES") else 240),
]

ALL = bool(os.environ.get("CELLFEED_RACES"))
"""``make races``."""

ORDERS = 40 if ALL else 2


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """The clusters of all cases, with all that they have left."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with ExitStack() as opened:
        yield opened.enter_context(made_place(opened.enter_context(bare_servers(4))))


@pytest.fixture(autouse=True)
def _waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom an actor waits for stands still in this very order."""
    monkeypatch.setattr(locks, "LOCK_FREED_S", 0)
    for part in (copying, switching):
        monkeypatch.setattr(part, "AGAIN_S", 1.0)
    monkeypatch.setattr(waiting, "FENCE_MAX_S", 4.0)
    monkeypatch.setattr(steps, "FENCES_MAX", 1)
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.1)


def test_every_point_is_one_of_the_code() -> None:
    assert set(EVERYWHERE) <= FAILPOINTS
    assert {point for case in CASES.values() for point in case.points} <= set(EVERYWHERE)


@pytest.mark.parametrize("name", CASES)
def test_known_orders(name: str, place: Place) -> None:
    case = CASES[name]
    for point, order in case.known:
        one_order(lambda: case.make(place), [point], order)


@pytest.mark.parametrize("name", CASES)
def test_orders_of_a_seed(
    name: str, place: Place, record_property: Callable[[str, object], None]
) -> None:
    case, seed = CASES[name], default_seed()
    record_property("seed", seed)
    assert sum(1 for _ in some_orders(lambda: case.make(place), EVERYWHERE, seed, ORDERS)) == ORDERS


if ALL:

    @pytest.mark.parametrize("name", CASES)
    def test_every_order(name: str, place: Place) -> None:
        case = CASES[name]
        runs = every_order(lambda: case.make(place), case.points, runs_max=case.orders_max)
        assert sum(1 for _ in runs) > 2
