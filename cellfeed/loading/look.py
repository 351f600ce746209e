"""A dry run of a load, which writes nothing: the types and examples of the fields, the keys, and
the cells that the store has already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from uuid import UUID

from cellfeed.loading.report import LoadReport
from cellfeed.loading.spec import FileCells, LineCell
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import Cell, NewCell
from cellfeed.store.cells.put_result import Outcome, conflict_error
from cellfeed.store.errors import CellConflict

COMPARED_CELLS: Final = 1_000
"""Cells that are read from the store in one call."""

FIRST_CELLS: Final = 100
"""Cells at the beginning of a file that show whether it was loaded before."""

KEYS_KEPT_MAX: Final = 1_000_000
"""Keys of a file that are compared with each other, about 100 MB of memory."""

_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 24
_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    int: "int",
    float: "float",
    bool: "bool",
    dict: "object",
    list: "list",
    type(None): "null",
}


@dataclass(slots=True)
class FieldSeen:
    """A field of the records: how many values of each type, and the first that differ."""

    kinds: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, value: Any) -> None:
        self.kinds[_KINDS.get(type(value), type(value).__name__)] += 1
        if value == "":
            self.empty += 1
        elif value is not None and len(self.examples) < _EXAMPLES:
            text = str(value)
            shown = text[:_EXAMPLE_CHARACTERS] + "…" * (len(text) > _EXAMPLE_CHARACTERS)
            if shown not in self.examples:
                self.examples.append(shown)

    def type_name(self) -> str:
        """``int``, or ``int or text`` where values differ."""
        found = [name for name, _ in self.kinds.most_common() if name != "null"]
        return " or ".join(found) or "null"

    def without_value(self) -> int:
        """Records in which it is null or empty text."""
        return self.kinds["null"] + self.empty


@dataclass(slots=True)
class Look:
    """The outcome that a load would have. ``would`` counts cells as a load does: ``stored`` are
    new, ``exists`` there already, ``conflicts`` there with another body, or twice in the file with
    two bodies; ``failed`` lines cannot be loaded. ``repeated``: lines that an earlier line equals.
    ``compared``: cells that were looked for in the store."""

    records: int = 0
    fields: dict[str, FieldSeen] = field(default_factory=dict)
    examples: list[NewCell] = field(default_factory=list)
    would: LoadReport = field(default_factory=LoadReport)
    compared: int = 0
    repeated: int = 0
    keys_kept: bool = True

    def as_json(self) -> dict[str, Any]:
        """For ``--dry-run --json``."""
        report = self.would.as_json()
        return {
            "dry_run": True,
            "records": self.records,
            "fields": {
                name: {
                    "types": dict(seen.kinds),
                    "empty": seen.empty,
                    "examples": seen.examples,
                }
                for name, seen in self.fields.items()
            },
            "examples": [
                {
                    "row_key": str(UUID(bytes=cell.row_key)),
                    "column_name": cell.column_name,
                    "ref_key": cell.ref_key,
                    "body": cell.body_json.decode(),
                }
                for cell in self.examples
            ],
            "new": self.would.stored,
            "exists": self.would.exists,
            "conflicts": self.would.conflicts,
            "failed": self.would.failed,
            "repeated": self.repeated,
            "compared": self.compared,
            "problems": report["problems"],
        }


def look_at(cells: Iterable[LineCell], store: CellStore, compared_max: int | None = None) -> Look:
    """Reads the whole file and compares its cells with the store, at most ``compared_max`` of
    them."""
    look, batch = Look(), list[LineCell]()
    bodies: dict[int, int] = {}
    for line in cells:
        look.records += 1
        cell = line.cell
        if not isinstance(cell, NewCell):
            look.would.add(line.line, Outcome.FAILED, line.error)
            continue
        for name, value in (line.fields or {}).items():
            (look.fields.get(name) or look.fields.setdefault(name, FieldSeen())).add(value)
        if len(look.examples) < _EXAMPLES:
            look.examples.append(cell)
        if _is_first(look, bodies, line, cell):
            batch.append(line)
        if len(batch) == COMPARED_CELLS:
            if compared_max is None or look.compared < compared_max:
                _compare(look, batch, store)
            batch = []
    if batch and (compared_max is None or look.compared < compared_max):
        _compare(look, batch, store)
    return look


def was_loaded(cells: FileCells, store: CellStore) -> bool:
    """Whether the first cells of a file are in the store as the file has them: then it was loaded
    before in the same way."""
    first = [line.cell for line in islice(cells, FIRST_CELLS) if isinstance(line.cell, NewCell)]
    there = _there(first, store)
    return bool(first) and all(
        known is not None and known.body_json == cell.body_json
        for cell, known in zip(first, there, strict=True)
    )


def _is_first(look: Look, bodies: dict[int, int], line: LineCell, cell: NewCell) -> bool:
    """Whether no earlier line has the cell's key, as far as keys are kept."""
    key, body = hash(cell.triple), hash(cell.body_json)
    if (known := bodies.get(key)) is None:
        if len(bodies) < KEYS_KEPT_MAX:
            bodies[key] = body
        else:
            look.keys_kept = False
        return True
    if known == body:
        look.repeated += 1
    else:
        look.would.add(
            line.line,
            Outcome.CONFLICT,
            CellConflict(
                f"an earlier line has the key ({UUID(bytes=cell.row_key)}, {cell.column_name},"
                f" {cell.ref_key}) with another body; the first one counts"
            ),
        )
    return False


def _compare(look: Look, batch: Sequence[LineCell], store: CellStore) -> None:
    cells = [line.cell for line in batch if isinstance(line.cell, NewCell)]
    look.compared += len(cells)
    for line, cell, known in zip(batch, cells, _there(cells, store), strict=True):
        if known is None:
            look.would.add(line.line, Outcome.STORED, None)
        elif known.body_json == cell.body_json:
            look.would.add(line.line, Outcome.EXISTS, None)
        else:
            look.would.add(line.line, Outcome.CONFLICT, conflict_error(cell, known.added_id))


def _there(cells: Sequence[NewCell], store: CellStore) -> list[Cell | None]:
    """The stored cells under the keys of ``cells``; None for each one missing."""
    return store.get_cells(
        [(UUID(bytes=cell.row_key), cell.column_name, cell.ref_key) for cell in cells]
    )
