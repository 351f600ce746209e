"""The recipe of ``docs/recipes.md`` for Flink SQL: typed trips of two versions of their schema."""

from __future__ import annotations

import json
import os
from datetime import datetime
from typing import Any, Final

import pytest

from tests.clients.grid.builds import Unavailable
from tests.ecosystem.builds import flink_class_path
from tests.ecosystem.place import RUNS, TRIPS, Place, fences, milliseconds

pytestmark = RUNS

_OPENED: Final = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.io", "java.nio"),
    *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("java.util.concurrent.locks", "java.text", "sun.nio.ch"),
)
"""Packages of Java that Flink's own configuration opens to it."""


def client(class_path: str) -> str:
    """``sql-client.sh``, which Flink's Python package leaves out."""
    opens = " ".join(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)
    main = "org.apache.flink.table.client.SqlClient"
    return (
        f'#!/bin/sh\nexec java -Xmx768m -XX:+UseSerialGC {opens} -cp "{class_path}" {main} "$@"\n'
    )


def test_flink_sql(place: Place) -> None:
    program, script = fences("Flink SQL")
    try:
        class_path = flink_class_path()
    except Unavailable as reason:
        pytest.fail(str(reason))
    place.words["/srv/fares"] = str(place.directory)
    place.file("trips.sql", program)
    place.file("fares.sh", script)
    place.file("sql-client.sh", client(class_path)).chmod(0o755)
    place.file("config.yaml", "parallelism.default: 2\n")
    trips = place.directory / "trips"

    def seen() -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for path in sorted(trips.glob("part-*"))
            for line in path.read_text().splitlines()
        ]

    def while_down() -> None:
        place.new_version()
        place.put(TRIPS, note="paid")
        place.erase_one()

    place.killed_and_resumed(
        ["sh", "fares.sh"],
        lambda: [(row["shard"], row["added_id"]) for row in seen()],
        environment={
            "PATH": f"{place.directory}:{os.environ['PATH']}",
            "FLINK_CONF_DIR": str(place.directory),
        },
        while_down=while_down,
        exactly_once=True,
    )
    assert {
        (row["shard"], row["added_id"]): (
            milliseconds(datetime.fromisoformat(row["created_at"])),
            row["total_cents"],
        )
        for row in seen()
    } == place.cells()
