"""A lake's loader whose catalog answers with errors before or after commits, by seed (I16, I17)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cellfeed.consumers.lake import appending, commits, reading
from cellfeed.consumers.lake.loader import run_lake_loader
from cellfeed.consumers.lake.progress import CommitPolicy
from cellfeed.consumers.lake.views import LakeView
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.store.datastore import Datastore
from cellfeed.verify.lake_place import LakePlace
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from tests.support.lake_tables import place_of
from tests.support.lying_catalog import ERRORS
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import fill

pytestmark = [pytest.mark.faults, pytest.mark.integration]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trips")
    fill(directory)
    return directory


@pytest.fixture(scope="module")
def gateway(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with GatewayProcess(store, tmp_path_factory.mktemp("gateway") / "log") as process:
        yield process.bootstrap


def lying(real: Callable[..., Any], chance: random.Random, lies: list[str]) -> Callable[..., Any]:
    """Half of the commits end with an error, and half of these happened."""

    def commit_table(catalog: SqlCatalog, *given: Any) -> Any:
        lie = chance.choice(["", "", "", *ERRORS])
        after = chance.random() < 0.5
        if lie and not after:
            lies.append(lie)
            raise ERRORS[lie]
        done = real(catalog, *given)
        if lie:
            lies.append(f"{lie} after")
            raise ERRORS[lie]
        return done

    return commit_table


@pytest.mark.parametrize("seed", [29, 30, 31])
def test_each_cell_is_loaded_once_with_a_catalog_whose_answers_are_wrong(
    seed: int, store: Path, gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies: list[str] = []
    monkeypatch.setattr(
        SqlCatalog, "commit_table", lying(SqlCatalog.commit_table, random.Random(seed), lies)
    )
    monkeypatch.setattr(appending, "PAUSE_FIRST_S", 0.0)
    monkeypatch.setattr(commits, "RETRY_S", 0.05)
    monkeypatch.setattr(reading, "CONSUME_RECORDS", 100)
    place = place_of(tmp_path, "iceberg")
    ends = end_offsets(gateway, "trips")
    run_lake_loader(
        gateway,
        "trips",
        f"liar-{seed}",
        place,
        threading.Event(),
        until_offsets=ends,
        policy=CommitPolicy(rows=200),
    )
    assert len(lies) > 5
    assert any(each.endswith("after") for each in lies)
    with Datastore.open_embedded(store) as datastore:
        report = verify([StorePlace(datastore), LakePlace(place)])
    assert report.equal
    assert report.level
    rows = LakeView(place).query("SELECT count(*) AS n FROM cells")
    assert rows == [{"n": sum(ends.values())}]
