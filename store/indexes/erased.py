"""Takes the entries of erased rows out of the indexes, tombstones too: each holds a value of the row, and the row's bodies alone say where they are.

    1. before the row is erased, the places that its cells name are noted in the state table, ``erasures/<index>/<version>/<row key>``
    2. the row is erased (E20)
    3. whoever keeps the index comes to the cell of the log that tells of it, behind all cells of the row: it raises the shard's fence, and removes what is at
       these places, and the note

Step 3 is in the order of the log, and whoever makes entries of a row looks for that cell first. So what was read of the row's cells before is refused at the
fence, and what is read after makes no entry, be it that bodies of the row are still being erased, that a batch from before runs again without the note, or that
a worker was paused and overtaken. Crash points: between 1 and 2 the note names places of a row that is as it was, and the next try notes them again; in 3 the
batch runs again and finds nothing, or the rest. Until 3 fresh queries leave the row out, since none of its cells is there. A version of an index that is made
between 1 and 2, and comes to the row before 2, keeps its entry: ``index repair`` finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from store.engines.contract import StateTable
from store.engines.index_contract import Encoded, IndexStore
from store.failpoints import declare, failpoint
from store.indexes.row_entries import RowEntries
from store.indexes.version import IndexVersion

if TYPE_CHECKING:
    from store.datastore import Datastore

declare("index.erase.removed")

_PREFIX: Final = "erasures/"
_decode: Final = msgspec.msgpack.Decoder(list[Encoded]).decode


def note_places(datastore: Datastore, row_key: bytes) -> None:
    """Step 1, for every version of an index that is kept. Raises Unavailable."""
    catalog = datastore.indexes.catalog
    now_us = catalog.now_us()
    versions = [datastore.indexes.version(version) for record in catalog.all() for version in record.versions if version.is_kept(now_us)]
    if not versions:
        return
    places: dict[str, list[Encoded]] = {_key(version, row_key): [] for version in versions}
    for key, values in places.items():
        if (noted := datastore.state.get(key)) is not None:
            values += _decode(noted.value)  # by an erasure that was broken off, when more of the row was there
    after = -1
    while cells := datastore.engine.row_cells(row_key, after):
        after = cells[-1].added_id
        for version in versions:
            values = places[_key(version, row_key)]
            named = [version.values_of(0, cell)[0] for cell in cells if version.column_number(cell.column_name) == 0]
            values += [value for value in dict.fromkeys(named) if value is not None and value not in values]
    if write := {key: msgspec.msgpack.encode(values) for key, values in places.items() if values}:
        datastore.state.commit(write)


def remove_noted(version: IndexVersion, store: IndexStore, state: StateTable, shard: int, row_keys: Sequence[bytes]) -> None:
    """Step 3, for rows of a shard that were erased. Raises Unavailable, and StaleView where somebody else raises the fence: then it is repeated."""
    keys = {row_key: _key(version, row_key) for row_key in row_keys}
    notes = {row_key: noted for row_key, key in keys.items() if (noted := state.get(key)) is not None}
    if not notes:
        return
    fence = store.raise_fence(shard)
    for row_key, noted in notes.items():
        entries = RowEntries(store, version).found((value, row_key) for value in _decode(noted.value))
        if entries:
            store.remove(version.table, version.by_shard(entries.values()), {shard: fence})
        failpoint("index.erase.removed")
        state.commit({keys[row_key]: None})


def _key(version: IndexVersion, row_key: bytes) -> str:
    return f"{_PREFIX}{version.definition.table}/{version.number}/{row_key.hex()}"
