"""A small instance's run directory, and commands on its backups."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from tests.support.rides import rides

SHARDS = 4


def filled_run_dir(directory: Path) -> Path:
    """A run directory inside ``directory``, whose store has 300 rides."""
    place = directory / "run"
    place.mkdir()
    (place / "config.yaml").write_text("datastore: {shards: 4}\n")
    with Datastore.open_embedded(place / "store", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 300))
    return place


def run(*words: object) -> tuple[int, str]:
    """Exit code, and the output or the error."""
    result = CliRunner().invoke(command_line(str(words[0])), [str(word) for word in words])
    if isinstance(result.exception, CellfeedError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def log_of(place: Path) -> list[object]:
    """Every shard of the store of a run directory."""
    with Datastore.open_embedded(place / "store", "trips", SHARDS) as store:
        return [store.engine.scan(shard, 0, 10_000) for shard in range(SHARDS)]
