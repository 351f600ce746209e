"""Billing under every kill and every fault of the test kit: one charge per trip, to the cent (I16).
The model for the tests of a service's own triggers."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.triggers.program import Trigger
from cellfeed.consumers.billing.app import STATUS_COLUMN, card_of, program
from cellfeed.consumers.billing.card_provider import (
    CardDeclined,
    SandboxCardProvider,
    declines_first,
)
from cellfeed.consumers.billing.charge_keys import GROUP, ChargeKeys
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.failpoints import FAILPOINTS
from cellfeed.testing import Kit, RunOutcome
from tests.faults.workload import trip_body

NAMESPACE = UUID("c3e7f4f8-1b8b-5b39-9d8c-0e5d5f7a2f4e")
TRIPS = [uuid5(NAMESPACE, str(number)) for number in range(45)]
ODD = uuid5(NAMESPACE, "paid in seashells")

BILLING = sorted(name for name in FAILPOINTS if name.startswith("billing."))
STORE = sorted(name for name in FAILPOINTS if name.startswith(("sqlite.put.", "sqlite.state.")))
RUNTIME = [
    "trigger.before_run",
    "trigger.after_run",
    "trigger.before_save",
    "trigger.after_save",
    "trigger.before_park",
    "trigger.after_park",
]


@pytest.fixture
def billing(tmp_path: Path) -> list[Trigger]:
    return program({"billing_dir": str(tmp_path)})


@pytest.fixture
def provider(tmp_path: Path, billing: list[Trigger]) -> SandboxCardProvider:
    """The books that the trigger writes."""
    del billing
    return SandboxCardProvider(tmp_path / "charges.sqlite3")


def put_trips(kit: Kit, trips: list[UUID] = TRIPS) -> None:
    for result in kit.store.put_cells(
        [(trip, "BASE", 1, trip_body(TRIPS.index(trip))) for trip in trips]
    ):
        result.or_raise()


def assert_settled(kit: Kit, provider: SandboxCardProvider, trips: list[UUID] = TRIPS) -> None:
    """Each trip has its one STATUS and each card trip its one charge of its very amount; there is
    no other charge."""
    due, keys = {}, ChargeKeys()
    for trip in trips:
        base, status = kit.store.get_cell(trip, "BASE", 1), kit.store.get_row(trip)[STATUS_COLUMN]
        assert base is not None
        assert status.body["amount_cents"] == base.body["total_cents"]
        if base.body["payment"] == "credit card":
            due[keys.of(base, kit.store)] = (base.body["total_cents"], status.body["charge_id"])
    charges = provider.charges()
    assert len(charges) == len(due)
    assert {
        charge.idempotency_key: (charge.amount_cents, charge.charge_id) for charge in charges
    } == due
    assert {parked.row_key for parked in kit.parked()} <= {str(ODD)}


def test_the_sample_trips_have_the_cases_that_the_faults_need() -> None:
    payments = [trip_body(number)["payment"] for number in range(len(TRIPS))]
    assert {payments.count("cash"), payments.count("credit card")} == {15, 30}
    assert any(
        declines_first(card_of(trip))
        for trip, payment in zip(TRIPS, payments, strict=True)
        if payment == "credit card"
    )
    assert BILLING == ["billing.after_charge", "billing.after_status", "billing.before_charge"]


@pytest.mark.parametrize("at_pass", [1, 9])
@pytest.mark.parametrize("failpoint", BILLING)
def test_killed_anywhere_in_billing(
    cellfeed_kit: Kit,
    billing: list[Trigger],
    provider: SandboxCardProvider,
    failpoint: str,
    at_pass: int,
) -> None:
    put_trips(cellfeed_kit)
    cellfeed_kit.kill_at(failpoint, at_pass=at_pass)
    cellfeed_kit.run_until_idle(billing)
    assert_settled(cellfeed_kit, provider)
    assert any(run.outcome is RunOutcome.KILLED for run in cellfeed_kit.history())


@pytest.mark.parametrize("failpoint", [*STORE, *RUNTIME])
def test_killed_in_the_store_or_in_the_runtime(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider, failpoint: str
) -> None:
    put_trips(cellfeed_kit)
    cellfeed_kit.store.put_cell(ODD, "BASE", 1, {**trip_body(1), "payment": "seashells"})
    cellfeed_kit.kill_at(failpoint, at_pass=1 if "park" in failpoint else 5)
    cellfeed_kit.run_until_idle(billing)
    assert_settled(cellfeed_kit, provider)
    [parked] = cellfeed_kit.parked(billing[0])
    assert "which billing does not know" in parked.error


def test_killed_again_and_again(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider
) -> None:
    put_trips(cellfeed_kit)
    for number, failpoint in enumerate(BILLING * 3):
        cellfeed_kit.kill_at(failpoint, at_pass=2 + 3 * number)
    cellfeed_kit.run_until_idle(billing, workers=2)
    assert_settled(cellfeed_kit, provider)


def test_a_worker_paused_past_its_lease_charges_nobody_twice(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider
) -> None:
    put_trips(cellfeed_kit)
    cellfeed_kit.stall(TRIPS[1], past_lease=True)  # TRIPS[1] was paid by card
    cellfeed_kit.run_until_idle(billing, workers=2)
    assert_settled(cellfeed_kit, provider)
    assert cellfeed_kit.runs(TRIPS[1]) >= 2


def test_a_status_that_was_lost_with_the_master_is_put_again(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider
) -> None:
    put_trips(cellfeed_kit)
    failover = cellfeed_kit.failover(lose=3, away_s=0.2)
    cellfeed_kit.run_until_idle(billing)
    assert {cell.column_name for cell in failover.lost} == {STATUS_COLUMN}
    assert_settled(cellfeed_kit, provider)


def test_a_trip_that_was_lost_with_the_master_is_charged_once_it_is_stored(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider
) -> None:
    put_trips(cellfeed_kit, TRIPS[:20])
    failover = cellfeed_kit.failover(lose=3)
    results = cellfeed_kit.store.put_cells(
        [(trip, "BASE", 1, trip_body(20 + number)) for number, trip in enumerate(TRIPS[20:23])]
    )
    assert [result.outcome for result in results] == [Outcome.UNKNOWN] * 3
    put_trips(cellfeed_kit, TRIPS[23:])  # these get the ids that the lost ones had
    cellfeed_kit.run_until_idle(billing)
    assert_settled(cellfeed_kit, provider, TRIPS[:20] + TRIPS[23:])
    put_trips(cellfeed_kit, TRIPS[20:23])  # anybody who was told "unknown" puts them again
    cellfeed_kit.run_until_idle(billing)
    assert_settled(cellfeed_kit, provider)
    assert [cell.row_key for cell in failover.lost] == TRIPS[20:23]


def test_billing_continues_while_zookeeper_is_away(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider
) -> None:
    put_trips(cellfeed_kit)
    cellfeed_kit.kill_at("billing.after_charge", at_pass=20)
    with cellfeed_kit.zookeeper_away():
        cellfeed_kit.poison(TRIPS[2], times=4, error=CardDeclined("try again"))
        cellfeed_kit.run_until_idle(billing, workers=2)
    cellfeed_kit.run_until_idle(billing)
    assert_settled(cellfeed_kit, provider)
    assert sum(cellfeed_kit.offsets(billing[0]).values()) == sum(
        head.watermark for head in cellfeed_kit.store.heads().values()
    )


def test_a_card_that_is_always_declined_is_parked_and_charged_when_it_is_tried_again(
    cellfeed_kit: Kit, billing: list[Trigger], provider: SandboxCardProvider
) -> None:
    put_trips(cellfeed_kit)
    cellfeed_kit.poison(TRIPS[2], times=5, error=CardDeclined("no funds"))
    cellfeed_kit.run_until_idle(billing)
    [parked] = cellfeed_kit.parked()
    assert (parked.group, parked.row_key, parked.attempts) == (GROUP, str(TRIPS[2]), 5)
    cellfeed_kit.retry_parked(*billing)
    assert_settled(cellfeed_kit, provider)
    assert cellfeed_kit.parked() == []
