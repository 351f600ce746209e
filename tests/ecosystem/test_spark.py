"""The recipes of ``docs/recipes.md`` for Spark: a batch and a stream of typed trips, of two
versions of their schema."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest

from tests.clients.grid.builds import Unavailable
from tests.ecosystem.builds import SPARK_PACKAGES, spark, spark_jars
from tests.ecosystem.place import RUNS, TRIPS, Place, fences, milliseconds

pytestmark = RUNS


def submitted(script: str) -> tuple[str, dict[str, str]]:
    """The page's commands, with jars that were fetched before, and their environment."""
    try:
        home, jars = spark() / "pyspark", spark_jars()
    except Unavailable as reason:
        pytest.fail(str(reason))
    packages = ",".join(SPARK_PACKAGES)
    assert packages in script
    assert "--packages" in script
    local = script.replace(packages, jars).replace("--packages", "--jars")
    return local, {
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(home.parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def rows(files: list[Path]) -> list[dict[str, Any]]:
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def written(found: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, int]]:
    """As ``Place.cells``."""
    return {
        (row["shard"], row["added_id"]): (
            milliseconds(row["created_at"]),
            row["body"]["total_cents"],
        )
        for row in found
    }


def test_a_batch(place: Place) -> None:
    module, program, _, script = fences("Spark")
    place.file("trips_avro.py", module)
    place.file("batch.py", program)
    fares = place.directory / "fares"
    place.put(TRIPS)
    place.new_version()
    place.put(TRIPS, note="paid")
    local, environment = submitted(script)
    [once] = re.findall(r"spark-submit .*(?= stream\.py)", local)
    place.file("batch.sh", f"{local.splitlines()[0]}\nexec {once} batch.py\n")
    words = ["sh", "batch.sh"]
    with place.running(words, environment):
        place.wait(lambda: any(fares.rglob("_temporary/**/*.parquet")), "a file of a task")
    assert not (fares / "_SUCCESS").exists(), "it was killed too late"
    with place.running(words, environment) as process:
        assert process.wait(300) == 0, place.log()
    assert (fares / "_SUCCESS").exists()
    found = rows(sorted(fares.glob("*.parquet")))
    assert written(found) == place.cells()
    assert len(found) == 2 * TRIPS, "a record comes twice"
    assert [row["body"]["note"] for row in found].count("paid") == TRIPS


def test_a_stream(place: Place) -> None:
    module, _, program, script = fences("Spark")
    place.file("trips_avro.py", module)
    place.file("stream.py", program)

    def seen() -> list[dict[str, Any]]:
        return rows(listed(place.directory / "fares"))

    def while_down() -> None:
        place.new_version()
        place.put(TRIPS, note="paid")
        place.erase_one()

    local, environment = submitted(script)
    place.file("stream.sh", local)
    place.killed_and_resumed(
        ["sh", "stream.sh"],
        lambda: [(row["shard"], row["added_id"]) for row in seen()],
        environment=environment,
        while_down=while_down,
        exactly_once=True,
    )
    assert written(seen()) == place.cells()


def listed(folder: Path) -> list[Path]:
    """The files of finished batches, by the sink's own log."""
    names = {
        json.loads(line)["path"]
        for log in (folder / "_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()[1:]
    }
    return sorted(Path(unquote(urlsplit(name).path)) for name in names)
