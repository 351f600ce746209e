"""A lake of an instance, as a person works with it: ``up``, then the verbs of ``lake``."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cellfeed.run_dir import RunDir
from tests.support.cli_instance import cellfeed, running
from tests.support.lake_tables import FORMATS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROW_KEY = "2f0a1c6e-3b7d-4f5a-9c8e-{:012d}"


@pytest.fixture(params=FORMATS)
def run_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    config = {
        "datastore": {"shards": 2},
        "workers": [{"port": 0}],
        "gateways": [{"port": 0, "registry_port": 0}],
        "lakes": [{"format": request.param, "commit_age_s": 0.2, "metrics_port": 0}],
    }
    with running(tmp_path, yaml.safe_dump(config)) as started:
        yield started


def status(run_dir: Path) -> dict[str, object]:
    said = cellfeed("lake", "status", "--json", "--run-dir", str(run_dir))
    assert said.returncode == 0, said.stderr
    answer: dict[str, object] = json.loads(said.stdout)
    return answer


def test_a_lake_is_loaded_asked_and_verified(run_dir: Path, tmp_path: Path) -> None:
    early = status(run_dir)
    assert (early["lag_cells"], early["lag_s"], early["troubles"]) == (0, 0.0, [])
    file = tmp_path / "cells.ndjson"
    file.write_text(
        "".join(json.dumps({"id": ROW_KEY.format(n), "cents": n}) + "\n" for n in range(100))
    )
    loaded = cellfeed(
        "load", str(file), "--column", "BASE", "--row-key", "id", "--run-dir", str(run_dir)
    )
    assert loaded.returncode == 0, loaded.stderr
    wait_until(lambda: status(run_dir).get("rows") == 100, "the table has the rows", 30)
    now = status(run_dir)
    assert (now["lag_cells"], now["lag_s"]) == (0, 0.0)
    assert now["last_commit"]

    total = "sum(CAST(json_extract(body, '$.cents') AS INT))::INT"
    sql = f"SELECT count(*) AS n, {total} AS s FROM latest"
    asked = cellfeed("lake", "query", sql, "--json", "--run-dir", str(run_dir))
    assert json.loads(asked.stdout) == {"n": 100, "s": 4950}
    wrong = cellfeed("lake", "query", "SELECT nothing FROM nowhere", "--run-dir", str(run_dir))
    assert wrong.returncode == 2
    said = cellfeed("lake", "verify", "--run-dir", str(run_dir))
    assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "all equal"), said.stdout
    unknown = cellfeed("lake", "status", "--lake", "sea", "--run-dir", str(run_dir))
    assert (unknown.returncode, "has no lake sea; it has lake" in unknown.stderr) == (1, True)

    ready = RunDir(run_dir).ready("lake")
    assert ready is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{ready.ports['metrics']}/metrics") as answer:
        figures = answer.read().decode()
    assert "\ncellfeed_lake_rows_total 100.0\n" in figures
    assert "\ncellfeed_lake_lag_cells 0.0\n" in figures


def test_a_person_waits_for_a_lake(run_dir: Path) -> None:
    put = cellfeed(
        *("put", ROW_KEY.format(1), "BASE", "1", "{}", "--json", "--run-dir", str(run_dir))
    )
    token = json.loads(put.stdout)["token"]
    waited = cellfeed("wait", token, "--lake", "lake", "--timeout", "60", "--run-dir", str(run_dir))
    assert (waited.returncode, waited.stdout.strip()) == (0, "lake 'lake' has passed it")
    asked = cellfeed(
        *("lake", "query", "SELECT count(*) AS n FROM cells", "--json", "--run-dir", str(run_dir))
    )
    assert json.loads(asked.stdout) == {"n": 1}
    unknown = cellfeed("wait", token, "--lake", "sea", "--run-dir", str(run_dir))
    assert (unknown.returncode, "there are: lake" in unknown.stderr) == (1, True)


def test_a_column_with_a_schema_has_typed_tables_that_are_asked_watched_and_verified(
    tmp_path: Path,
) -> None:
    fields = [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "fare",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
    ]
    schema = tmp_path / "fare.avsc"
    schema.write_text(json.dumps({"type": "record", "name": "Fare", "fields": fields}))
    config = {
        "datastore": {
            "shards": 2,
            "schemas": [{"column": "FARE", "schema": str(schema)}],
        },
        "workers": [{"port": 0}],
        "gateways": [{"port": 0, "registry_port": 0}],
        "lakes": [{"commit_age_s": 0.2, "metrics_port": 0}],
    }
    file = tmp_path / "cells.ndjson"
    lines: list[dict[str, object]] = [
        {"id": ROW_KEY.format(n), "fare": f"{n}.50"} for n in range(20)
    ]
    lines.append({"id": ROW_KEY.format(20), "fare": 3.5})
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with running(tmp_path / "instance", yaml.safe_dump(config)) as run_dir:
        where = ("--run-dir", str(run_dir))
        loaded = cellfeed("load", str(file), "--column", "FARE", "--row-key", "id", *where)
        assert loaded.returncode == 0, loaded.stderr

        def tables() -> dict[str, int]:
            found = status(run_dir)["tables"]
            assert isinstance(found, list)
            return {each["table"]: each["rows"] for each in found}

        wanted = {"fare": 20, "fare_latest": 20, "fare_parked": 1}
        wait_until(lambda: tables() == wanted, "the typed tables have the rows", 30)
        sql = "SELECT sum(fare)::VARCHAR AS s, typeof(any_value(id)) AS t FROM fare_latest"
        asked = cellfeed("lake", "query", sql, "--json", *where)
        assert json.loads(asked.stdout) == {"s": "200.00", "t": "UUID"}, asked.stderr
        parked = cellfeed("lake", "query", "SELECT reason FROM fare_parked", "--json", *where)
        assert "fare is a number with a fraction" in json.loads(parked.stdout)["reason"]
        said = cellfeed("lake", "verify", *where)
        assert said.returncode == 0, said.stdout
        assert "fare: 21 cells in 2 shards, equal" in said.stdout
        assert "fare_latest: 20 cells in 2 shards, equal" in said.stdout
        ready = RunDir(run_dir).ready("lake")
        assert ready is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{ready.ports['metrics']}/metrics") as answer:
            figures = answer.read().decode()
        assert '\ncellfeed_lake_table_parked{table="fare_parked"} 1.0\n' in figures
