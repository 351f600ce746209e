"""Whether a piece of a log lacks cells. Ids have no holes, but for those that a restore left out,
and these the cell behind them names (E2, E23)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from cellfeed.store.cells.cell import ERASED_JSON, RESTORED_COLUMN, StoredCell

_LOST: Final = re.compile(r"shard (\d+) has no cells from added_id (\d+) to (\d+)", re.ASCII)
_DAMAGED: Final = re.compile(r"the cell at added_id (\d+) of shard (\d+) is damaged", re.ASCII)


class GapCheck:
    """Takes the cells of one shard in the order of their ids, from ``from_id`` on. ``missing`` has
    the ids that no cell has and no restore explains."""

    def __init__(self, shard: int, from_id: int) -> None:
        self.shard = shard
        self.missing: list[range] = []
        self._next_id = from_id

    def add(self, added_id: int, column_name: str, body_json: bytes) -> None:
        """The next cell."""
        if added_id > self._next_id and not (
            column_name == RESTORED_COLUMN and _explains(body_json, self._next_id, added_id)
        ):
            self.missing.append(range(self._next_id, added_id))
        self._next_id = added_id + 1

    def add_piece(self, cells: Sequence[StoredCell], bodies_json: Sequence[bytes]) -> None:
        """The next cells. Of a piece without a hole only the ends are looked at."""
        if not cells:
            return
        if cells[0].added_id == self._next_id and cells[-1].added_id + 1 - self._next_id == len(
            cells
        ):
            self._next_id = cells[-1].added_id + 1
            return
        for cell, body_json in zip(cells, bodies_json, strict=True):
            self.add(cell.added_id, cell.column_name, body_json)

    def skip_to(self, added_id: int) -> None:
        """The cells below this id were trimmed: none of them is missing."""
        self._next_id = max(self._next_id, added_id)

    def end(self, below_id: int) -> None:
        """No further cell comes, and the log goes up to, not including, ``below_id``."""
        if self._next_id < below_id:
            self.missing.append(range(self._next_id, below_id))

    def __str__(self) -> str:
        """The shard and the ids that are missing."""
        return named(self.shard, self.missing)


def named(shard: int, missing: list[range]) -> str:
    """In words; of many ranges the first ones."""
    ranges = ", ".join(f"{each.start} to {each.stop - 1}" for each in missing[:10]) + (
        f", and {len(missing) - 10} more ranges" if len(missing) > 10 else ""
    )
    return f"shard {shard} lacks cells {ranges}"


class NamedDamage(NamedTuple):
    """The damage that an error names in a log: these ids have no cell, or their cell is damaged."""

    shard: int
    ids: range
    is_lost: bool


def named_damage(text: str) -> NamedDamage | None:
    """The ids that the text of a DataDamaged names, as
    :mod:`cellfeed.store.engines.contract.scan_gaps` and the tables of cells write it; None where it
    names none. Workers report errors by their text."""
    if (found := _LOST.search(text)) is not None:
        shard, first, last = map(int, found.groups())
        return NamedDamage(shard, range(first, last + 1), is_lost=True)
    if (found := _DAMAGED.search(text)) is not None:
        added_id, shard = map(int, found.groups())
        return NamedDamage(shard, range(added_id, added_id + 1), is_lost=False)
    return None


def _explains(body_json: bytes, first: int, added_id: int) -> bool:
    """Whether the body of this cell says that a restore left out the ids from ``first`` on. One
    that was erased says nothing any more, and is believed."""
    if body_json == ERASED_JSON:
        return True
    try:
        note = json.loads(body_json)
        return bool(note["lost_from"] <= first and note["lost_to"] == added_id - 1)
    except (ValueError, KeyError, TypeError):
        return False
