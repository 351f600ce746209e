"""A person's text in every place of an embedded datastore that an erasure has to reach: the table
in docs/operate/erase.md names the same places."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.typed.rejected_cells import note_rejected
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.trimmed import IndexedTrim
from tests.support.parked import parked_cell

SHARDS: Final = 4


def _definition(table: str, more: str = "") -> str:
    return (
        f"table: {table}\ndatastore: trips\ncolumn_defs:\n  - column_name: BASE\n    fields:"
        f" [{{field: secret, type: string}}{more}]\n"
    )


def _index(datastore: Datastore, definition: str) -> None:
    """A version that has come to the ends of the logs, and answers."""
    record = datastore.indexes.catalog.create(parse_definition(definition))
    version = datastore.indexes.version(record)
    datastore.engine.indexes.create(version.table)
    keeper = IndexKeeper(version, datastore.engine.indexes, datastore.engine.row_cells, new=True)
    for shard, head in datastore.heads().items():
        if cells := datastore.engine.scan(shard, head.log_start, 10_000):
            keeper.apply(shard, cells)
    datastore.indexes.catalog.switch(record.definition.table, record.number)


def _body(datastore: Datastore, row: UUID, secret: str) -> None:
    datastore.put_cells(
        [(row, "BASE", ref_key, {"secret": f"{secret} {ref_key}"}) for ref_key in range(3)]
    )


def _current_index(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    _index(datastore, _definition("current"))


def _retired_index(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    _index(datastore, _definition("retired"))
    _index(datastore, _definition("retired", ", {field: other, type: string}"))


def _dropped_index(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    _index(datastore, _definition("dropped"))
    datastore.indexes.catalog.begin_drop("dropped")


def _trim_note(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    _index(datastore, _definition("trimmed"))
    shard = datastore.shard_of(row)
    start, end = datastore.heads()[shard][:2]
    set_failpoint("index.trim.trimmed", "raise")
    try:
        IndexedTrim(datastore.engine, datastore.indexes, datastore.trim).step(shard, start, end - 1)
    except FailpointReached:
        return
    raise RuntimeError("the trim did not die")


def _parked(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    last = datastore.engine.row_cells(row.bytes)[-1]
    cell = parked_cell(
        datastore.shard_of(row),
        last.added_id,
        group="g",
        row_key=str(row),
        ref_key=2,
        error=f"ValueError: {secret}",
        parked_at_us=0,
        last_tried_at_us=0,
    )
    datastore.state.commit(dict(ParkedCells(datastore.state).entry(cell)))


def _skipped(datastore: Datastore, row: UUID, secret: str) -> None:
    _parked(datastore, row, secret)
    parked = ParkedCells(datastore.state)
    [cell] = [each for each in parked.all("g") if each.row_key == str(row)]
    parked.skip("g", cell.cell_id, f"known: {secret}")


def _left_out(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    [cell, *_] = datastore.engine.row_cells(row.bytes)
    note_rejected(
        datastore.state,
        "BASE",
        datastore.shard_of(row),
        [(cell, f"secret is {secret!r}, not an integer")],
    )


def _killed_restore(datastore: Datastore, row: UUID, secret: str) -> None:
    _body(datastore, row, secret)
    shutil.copytree(
        _place(datastore), _place(datastore).with_name("trips.restoring"), dirs_exist_ok=True
    )


def _replaced_index(datastore: Datastore, row: UUID, secret: str) -> None:
    _current_index(datastore, row, secret)
    for suffix in ("", "-wal"):
        shutil.copy(
            _place(datastore) / f"index.sqlite3{suffix}",
            _place(datastore) / f"index.sqlite3.replaced-0123abcd{suffix}",
        )


def _place(datastore: Datastore) -> Path:
    file = getattr(datastore.engine, "_file")  # noqa: B009 - the test plants files beside it
    return Path(file.path).parent


PLACES: Final[dict[str, Callable[[Datastore, UUID, str], None]]] = {
    "bodies of cells": _body,
    "entries of indexes": _current_index,
    "retired index versions": _retired_index,
    "index versions that are being dropped": _dropped_index,
    "notes of a trim that died": _trim_note,
    "errors of parked cells": _parked,
    "skipped cells": _skipped,
    "reasons of cells that fit no schema": _left_out,
    "`trips.restoring` of a restore that was killed": _killed_restore,
    "index files that `index rebuild` moved aside": _replaced_index,
}
"""By the name of the place in the guide: plants a row with a text there."""


def files_with(directory: Path, text: str) -> list[str]:
    """Every file below that has the text."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sorted(
        str(path.relative_to(directory)) for path in files if text.encode() in path.read_bytes()
    )
