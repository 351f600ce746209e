"""Takes the entries of erased rows out of the indexes, tombstones too: each holds a value of the
row, and the row's bodies alone say where they are.

    1. the log gets the entry of the erasure while the bodies are still there (E20). From then on
       the row gets no cell (E21), and every maker of entries looks for that entry
    2. the versions of all indexes are looked up. The shard's fence is raised, and the entries at
       the places that the bodies name are removed from each
    3. the bodies go

**No entry outlives step 3**, for any writer and any moment of its write. Its writer has read the
row's cells, but not that the row is erased.

- Its version was made before the look of step 2. A writer under the old number wrote before the
  raise, and step 2 found the entry, or it is refused. A writer under the new number reads from
  nodes that know of the erasure (X3).
- Its version was made after that look: its writers began by raising the fences
  (:mod:`cellfeed.store.engines.contract.index_fences`). That was after step 1: they know of the
  erasure, whichever node they read from.

No place is missed either. Between 1 and 3 the row gets no cell, and loses cells only to a trim,
which takes entries out itself (:mod:`cellfeed.store.indexes.trimmed`).

The keeper of an index does step 2 as well, when it reads the erasure's cell in the log. So the
entries go even when the program that erased has died. Where the keeper finds no body any more,
somebody has done that step.

Crash points: before 1 the row is as it was. From 1 on puts are refused. Entries and bodies may
remain until a worker resumes the erasure (:mod:`cellfeed.store.erasures`). In 2 some entries are
gone, and fresh queries do not find the row by them; in 3 all of them are.

Step 2 takes the masters of all clusters. While one is away the erasure says so, and is begun again
when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import Encoded
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.errors import StaleView, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.records import BUILDING, DROPPING, RETIRED
from cellfeed.store.indexes.row_entries import RowEntries
from cellfeed.store.indexes.version import IndexVersion

declare("index.erase.removed", "index.erase.retired")

RowCells = Callable[[bytes, int], list[StoredCell]]
"""Cells of a row above an added_id:
:meth:`cellfeed.store.engines.contract.engine.Engine.row_cells`."""

_WALKED: Final = 2_000
"""Entries of a retired version that are looked at together."""

_LOOKS_MAX: Final = 20
"""How often a removal is begun again when somebody else raises the fence."""


def take_out(engine: Engine, indexes: Indexes, row_key: bytes) -> None:
    """Step 2, for every version that has tables, kept or not: a retired one is looked through, and
    one that is being dropped loses its tables. Raises Unavailable: then it is repeated."""
    shard = shard_of(row_key, engine.shards)
    for record in indexes.catalog.all():
        for each in record.versions:
            version = indexes.version(each)
            if each.state == DROPPING:
                engine.indexes.drop(
                    version.table
                )  # somebody began that, and may have died; nobody keeps it or asks it
                continue
            if each.state == BUILDING:
                engine.indexes.create(version.table)  # nobody may have begun it yet
            if each.state == RETIRED:
                remove_all(version, engine.indexes, row_key)
            for _ in range(_LOOKS_MAX):
                try:
                    remove_entries(version, engine.indexes, engine.row_cells, shard, [row_key])
                    break
                except StaleView:
                    continue
            else:
                raise StorageUnavailable(
                    f"cells of shard {shard} are trimmed or erased all the time: entries of the row"
                    " are in indexes still"
                )


def remove_entries(
    version: IndexVersion,
    store: IndexStore,
    row_cells: RowCells,
    shard: int,
    row_keys: Sequence[bytes],
) -> None:
    """Step 2 for one version, of rows of a shard whose log has the entries of their erasure. Raises
    Unavailable, and StaleView where somebody else raises the fence: then it is repeated."""
    places = [
        (value, row_key)
        for row_key in row_keys
        for value in _values_named(version, row_cells, row_key)
    ]
    if not places:
        return
    fence = store.raise_fences([shard])[shard]
    if entries := RowEntries(store, version).found(places):
        store.remove(version.table, version.by_shard(entries.values()), {shard: fence})
    failpoint("index.erase.removed")


def remove_all(version: IndexVersion, store: IndexStore, row_key: bytes) -> None:
    """Looks through all entries of a version, wherever they are. Trims do not settle a version that
    is retired, so it has entries that no cell names any more. Raises Unavailable: then it is
    repeated."""
    for shard in range(version.shards):
        after = None
        while entries := store.walk(version.table, shard, after, _WALKED):
            after = entries[-1].place
            if its := [entry for entry in entries if entry.row_key == row_key]:
                store.remove(version.table, {shard: its})
    failpoint("index.erase.retired")


def _values_named(version: IndexVersion, row_cells: RowCells, row_key: bytes) -> list[Encoded]:
    """The shard values that the row's cells name, each once."""
    values: dict[Encoded, None] = {}
    after = -1
    while cells := row_cells(row_key, after):
        after = cells[-1].added_id
        for cell in cells:
            if (
                version.column_number(cell.column_name) == 0
                and not is_erased(cell.body)
                and (value := version.values_of(0, cell)[0]) is not None
            ):
                values[value] = None
    return list(values)
