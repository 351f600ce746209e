"""A lake's loader beside Iceberg's own REST catalog, behind a proxy that answers with errors after
commits happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.consumers.lake import reading
from cellfeed.consumers.lake.loader import run_lake_loader
from cellfeed.consumers.lake.open_table import Place
from cellfeed.consumers.lake.progress import CommitPolicy
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.servers.kafka_jars import JarsUnavailable
from cellfeed.store.datastore import Datastore
from cellfeed.verify.lake_place import LakePlace
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from tests.ecosystem.place import RUNS
from tests.support.rest_catalog import LyingProxy, rest_catalog
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import fill

pytestmark = RUNS

LIES = [200, 500, 200, 502, 504, 0, 200, 500]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[int]:
    try:
        with rest_catalog(tmp_path / "catalog") as port:
            yield port
    except JarsUnavailable as reason:
        pytest.skip(str(reason))


def test_each_cell_is_loaded_once_after_errors_of_a_catalog_that_had_committed(
    catalog: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CONSUME_RECORDS", 100)
    store = tmp_path / "store"
    fill(store)
    with (
        closing(LyingProxy(catalog, LIES)) as proxy,
        GatewayProcess(store, tmp_path / "log") as gateway,
    ):
        place = Place(format="iceberg", storage=tmp_path / "lake", rest_uri=proxy.uri)
        progress = run_lake_loader(
            gateway.bootstrap,
            "trips",
            "lake",
            place,
            threading.Event(),
            until_offsets=end_offsets(gateway.bootstrap, "trips"),
            policy=CommitPolicy(rows=300),
        )
        assert proxy.lies == [each for each in LIES if each != 200]
        assert (progress.overtaken, progress.stopped) == (0, {})
        with Datastore.open_embedded(store) as datastore:
            report = verify([StorePlace(datastore), LakePlace(place)])
    assert report.equal
    assert report.level
    assert report.as_json()["cells"] == {"store": progress.rows, "lake": progress.rows}
