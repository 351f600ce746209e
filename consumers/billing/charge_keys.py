"""The idempotency keys of billing's charges: a cell has one key, in every run and after every
restore.

    billing-<origin>-<row key>-<column>-<ref key>    the origin is the first history of the
                                                     datastore's lineage
    billing-<shard>-<added_id>                       of cells that an older version may have charged

A place in a log names another cell in another datastore, and a restore gives a lost cell another
place. The origin, the row key, the column and the ref key name one cell, wherever it lies.

**Cells of before keep their key**, or a crash of the older version between a charge and its STATUS
would charge a trip twice. The group's start says whether this version began the group: then there
are no such cells. Otherwise the first worker of this version records the heads of all logs, once,
by compare-and-set. All workers of the older version have to be stopped before that. A backup
carries both records. A kill before the commit leaves nothing, and the next call looks again.

Clusters without an identity keep the older keys until ``cellfeed cluster migrate``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cellfeed.bridge.groups.start import origin_of_start
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import declare, failpoint

declare("charge_keys.before_begin")

GROUP: Final = "billing"
_KEY: Final = f"{GROUP}/charge-keys"


class KeysBegun(msgspec.Struct, frozen=True):
    """``below``: by shard the added_id where the keys by origin begin."""

    origin_id: str
    below: list[int]


_decode: Final = msgspec.msgpack.Decoder(KeysBegun).decode


class ChargeKeys:
    """The idempotency keys of cells' charges, each the same for ever."""

    def __init__(self) -> None:
        self._known: tuple[Datastore, KeysBegun] | None = None

    def of(self, cell: Cell, store: Datastore) -> str:
        """Raises Unavailable."""
        begun = (
            self._known[1] if self._known is not None and self._known[0] is store else _begun(store)
        )
        if begun is None:
            return key_of_place(cell)
        self._known = store, begun
        if cell.added_id < begun.below[cell.shard]:
            return key_of_place(cell)
        return f"{GROUP}-{begun.origin_id}-{cell.row_key}-{cell.column_name}-{cell.ref_key}"


def key_of_place(cell: Cell) -> str:
    """The key by which older versions charged."""
    return f"{GROUP}-{cell.shard}-{cell.added_id}"


def _begun(store: Datastore) -> KeysBegun | None:
    """Where the keys by origin begin; None while the store has no origin."""
    while True:
        if (entry := store.state.get(_KEY)) is not None:
            return _decode(entry.value)
        if origin_id := origin_of_start(store.state, GROUP, store.name):
            return KeysBegun(origin_id, [0] * store.shards)
        if not store.origin_id:
            return None
        heads = store.heads()
        begun = KeysBegun(
            store.origin_id, [heads[shard].next_added_id for shard in range(store.shards)]
        )
        failpoint("charge_keys.before_begin")
        store.state.commit({_KEY: msgspec.msgpack.encode(begun)}, expect={_KEY: None})
