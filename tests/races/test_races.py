"""Races on purpose: two actors at each compare-and-set, claim and erasure, in every order where
there are few, else in orders of a seed."""

from __future__ import annotations

import pytest

from cellfeed.store.failpoints import FAILPOINTS
from tests.races.cases import FEW_POINTS, IN_STATE, OF_COORDINATION, POINTS, STATE, erasure_beside
from tests.races.scheduler import every_order, some_orders

MANY = (
    "two gateways take slots",
    "a gateway loses its slots",
    "offsets beside a takeover",
    "group offsets of a gateway beside a takeover",
)
"""Cases with thousands of orders: some of each seed."""

RUNS = 60
SEEDS = [1, 2]
ERASING = sorted(
    name
    for name in FAILPOINTS
    if name.startswith(("datastore.erase.", "sqlite.erase.after", "sqlite.put.after"))
)


@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize("case", [name for name in OF_COORDINATION if name not in MANY])
def test_every_order_of_two_at_the_coordination(kind: str, case: str) -> None:
    assert sum(1 for _ in every_order(lambda: OF_COORDINATION[case](kind), FEW_POINTS[kind])) > 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize("case", MANY)
def test_orders_of_a_seed_at_the_coordination(kind: str, case: str, seed: int) -> None:
    assert (
        sum(1 for _ in some_orders(lambda: OF_COORDINATION[case](kind), POINTS[kind], seed, RUNS))
        == RUNS
    )


@pytest.mark.parametrize("case", IN_STATE)
def test_every_order_of_two_at_the_state_table(case: str) -> None:
    assert sum(1 for _ in every_order(IN_STATE[case], STATE)) > 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["a put", "an erasure"])
def test_orders_of_a_seed_of_an_erasure_beside(what: str, seed: int) -> None:
    assert (
        sum(1 for _ in some_orders(lambda: erasure_beside(what), [*STATE, *ERASING], seed, 20))
        == 20
    )
