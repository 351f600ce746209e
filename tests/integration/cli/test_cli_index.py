"""The index commands against an instance that `cellfeed up` runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import yaml

from tests.support.cli_instance import cellfeed

pytestmark = pytest.mark.integration

DEFINITION = """
table: by_driver
datastore: trips
column_defs:
- {column_name: BASE, fields: [{field: driver, type: string}, {field: fare, type: int}]}
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    config = {
        "datastore": {"name": "trips", "shards": 4},
        "workers": [{"port": 0}],
        "gateways": [],
        "indexes": [{"name": "index"}],
    }
    (tmp_path / "cellfeed.yaml").write_text(yaml.safe_dump(config))
    place = tmp_path / "run"
    done = cellfeed(
        "up", "--detach", "--config", str(tmp_path / "cellfeed.yaml"), "--run-dir", str(place)
    )
    assert done.returncode == 0, done.stderr
    yield place
    cellfeed("down", "--run-dir", str(place))


def run(run_dir: Path, *words: str, code: int = 0) -> list[dict[str, object]]:
    done = cellfeed("index", *words, "--run-dir", str(run_dir))
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_an_index_is_made_built_asked_checked_mended_and_dropped_from_the_command_line(
    run_dir: Path, tmp_path: Path
) -> None:
    processes = json.loads((run_dir / "processes.json").read_text())
    assert any(
        each["name"] == "index" and each["kind"] == "index"
        for each in (processes["processes"] if isinstance(processes, dict) else processes)
    )
    for number in range(5):
        body = json.dumps({"driver": "ann", "fare": number})
        assert (
            cellfeed(
                "put", str(UUID(int=number)), "BASE", "1", body, "--run-dir", str(run_dir)
            ).returncode
            == 0
        )
    file = tmp_path / "by_driver.yaml"
    file.write_text(DEFINITION)
    assert run(run_dir, "create", str(file), "--json") == [
        {"index": "by_driver", "version": 1, "state": "building"}
    ]
    [built] = run(run_dir, "build", "by_driver", "--json")
    assert (built["state"], built["cells_behind"]) == ("current", 0)
    *rows, end = run(
        run_dir,
        "query",
        "by_driver",
        "ann",
        "--where",
        "fare >= 2",
        "--order-by",
        "fare",
        "--descending",
        "--limit",
        "2",
        "--json",
    )
    assert [row["fields"] for row in rows] == [
        {"driver": "ann", "fare": 4},
        {"driver": "ann", "fare": 3},
    ]
    cursor = str(end["cursor"])
    rows = run(
        run_dir,
        "query",
        "by_driver",
        "ann",
        "--where",
        "fare >= 2",
        "--order-by",
        "fare",
        "--descending",
        "--cursor",
        cursor,
        "--json",
    )
    assert [row["fields"] for row in rows[:-1]] == [{"driver": "ann", "fare": 2}]
    nobody = cellfeed("index", "query", "by_driver", "nobody", "--run-dir", str(run_dir))
    assert nobody.stdout == "no row found in index by_driver (version 1)\n"
    [report] = run(run_dir, "verify", "by_driver", "--json")
    assert (report["entries"], report["differences"]) == (5, 0)
    assert run(run_dir, "repair", "by_driver", "--json")[-1]["differences"] == 0
    assert run(run_dir, "status", "by_driver", "--json")[0]["workers"]
    run(run_dir, "drop", "by_driver")
    run(run_dir, "status", "by_driver", code=1)
    file.write_text(DEFINITION.replace("fare, type: int", "fare, type: integer"))
    done = cellfeed("index", "create", str(file), "--run-dir", str(run_dir))
    assert done.returncode == 2
    assert "by_driver.yaml:5: type 'integer' is not known" in done.stderr
