"""cellfeed trim from the command line: its output, its refusals, and the state that a kill -9 at
each point of it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.cli.main import command_line
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.version import IndexVersion
from tests.support.cli_instance import CELLFEED, ROOT

pytestmark = pytest.mark.integration

CELLS = 3_000
"""Of one shard: three steps of a trim."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    """An instance's datastore of one shard, none of whose processes run."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("datastore: {shards: 1}")
    with Datastore.open_embedded(run_dir / "store", "trips", 1) as opened:
        opened.put_cells(
            [(UUID(int=number), "BASE", 1, {"driver": "ann"}) for number in range(CELLS)]
        )
        yield opened


def trim(
    store: Datastore, *words: str, code: int = 0, failpoints: str = ""
) -> subprocess.CompletedProcess[str]:
    directory = store.engine._file.path.parents[2]  # type: ignore[attr-defined]
    done = subprocess.run(
        [*CELLFEED, "trim", *words, "--run-dir", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_trim_is_shown_refused_done_and_remembered(store: Datastore) -> None:
    with closing(StoreCoordinator(store.state)) as coordinator:
        coordinator.commit_offsets("reports", {("trips.BASE", 0): CommittedOffset(2_000)})
    shown = json.loads(trim(store, "--shard", "0", "--below", "2500", "--dry-run", "--json").stdout)
    assert (shown["log_start"], shown["below"], shown["cells"]) == (0, 2_500, 2_500)
    assert [(need["group"], need["location"]) for need in shown["needed"]] == [("reports", 2_000)]
    assert (
        "reports (has come, in topic trips.BASE, to 2000)"
        in trim(store, "--shard", "0", "--below", "2500", "--dry-run").stdout
    )
    refused = trim(store, "--all", "--older-than", "0s", code=3)
    assert "group reports has come, in topic trips.BASE, to 0:2000" in refused.stderr
    assert "--although reports" in refused.stderr
    assert store.heads()[0].log_start == 0
    told = json.loads(
        trim(
            store,
            "--all",
            "--older-than",
            "0s",
            "--although",
            "reports",
            "--reason",
            "the disk is full",
            "--json",
        ).stdout
    )
    assert told == {"trimmed": CELLS, "shards": {"0": CELLS}}
    assert store.heads()[0][:3] == (CELLS, CELLS, CELLS)
    history = trim(store, "--history").stdout
    assert "0:0→3000 because the disk is full, although reports needed them" in history


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--below", "3"], "say which shards"),
        (["--all", "--shard", "0", "--older-than", "1d"], "say which shards"),
        (["--shard", "0"], "name the cells that go"),
        (["--all", "--below", "3"], "--older-than with --all"),
        (["--all", "--older-than", "1y"], "is not of the form 90d"),
    ],
)
def test_a_trim_that_is_not_clear_is_refused_before_anything_is_opened(
    tmp_path: Path, words: list[str], says: str
) -> None:
    done = CliRunner().invoke(command_line("trim"), ["trim", *words, "--run-dir", str(tmp_path)])
    assert isinstance(done.exception, InvalidRequest)
    assert says in str(done.exception)


def entries(store: Datastore, version: IndexVersion) -> list[Entry]:
    found: list[Entry] = []
    while piece := store.engine.indexes.walk(
        version.table, 0, found[-1].place if found else None, 1_000
    ):
        found += piece
    return found


@pytest.mark.parametrize(
    "failpoint",
    ["sqlite.trim.before_commit", "index.trim.trimmed"],
)
def test_a_trim_that_is_killed_leaves_a_readable_log_and_can_be_run_again(
    store: Datastore, failpoint: str
) -> None:
    definition = (
        "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
        " driver, type: string}]}]}"
    )
    version = store.indexes.version(store.indexes.catalog.create(parse_definition(definition)))
    store.engine.indexes.create(version.table)
    IndexKeeper(version, store.engine.indexes, store.engine.row_cells).apply(
        0, store.engine.scan(0, 0, CELLS)
    )
    with closing(StoreCoordinator(store.state)) as coordinator:
        coordinator.commit_offsets(version.group, {("trips", 0): CommittedOffset(CELLS)})
    assert len(entries(store, version)) == CELLS
    trim(
        store,
        "--shard",
        "0",
        "--below",
        "2500",
        code=-signal.SIGKILL,
        failpoints=f"{failpoint}=kill@2",
    )
    start = store.heads()[0].log_start
    assert start == (2_000 if failpoint == "index.trim.trimmed" else 1_000)
    assert [cell.added_id for cell in store.engine.scan(0, start, CELLS)] == list(
        range(start, CELLS)
    )
    trim(store, "--shard", "0", "--below", "2500")
    assert store.heads()[0].log_start == 2_500
    rows = {cell.row_key for cell in store.engine.scan(0, 2_500, CELLS)}
    assert {entry.row_key for entry in entries(store, version)} == rows
    assert len(rows) == 500
