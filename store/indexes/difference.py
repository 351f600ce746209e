"""A difference between an index and the cells, and the report of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.indexes.values import decode
from cellfeed.store.indexes.version import IndexVersion

Kind = Literal["missing", "stale", "invented"]


@dataclass(frozen=True)
class Difference:
    """``found``: the entry there is; ``wanted``: the one there should be. ``shard``: where
    ``found`` is, or ``wanted`` belongs. ``fence``: of the shard of the row's log, from before the
    row was looked at."""

    kind: Kind
    row_key: bytes
    shard: int
    found: Entry | None
    wanted: Entry | None
    fence: int

    def as_json(self, version: IndexVersion) -> dict[str, object]:
        """As JSON."""
        fields = version.definition.fields

        def shown(entry: Entry | None) -> dict[str, object] | None:
            if entry is None:
                return None
            return {
                field.name: None if value is None else decode(field.type, value)
                for field, value in zip(fields, entry.values, strict=True)
            }

        return {
            "kind": self.kind,
            "row_key": str(UUID(bytes=self.row_key)),
            "shard": self.shard,
            "found": shown(self.found),
            "wanted": shown(self.wanted),
            "refs_found": list(self.found.refs) if self.found else None,
            "refs_wanted": list(self.wanted.refs) if self.wanted else None,
        }


@dataclass
class CheckReport:
    """The results of a check. ``unsettled``: rows that got new cells at every look, or whose shard
    had a trim or an erasure before the row was mended."""

    cells: int = 0
    entries: int = 0
    tombstones: int = 0
    differences: int = 0
    unsettled: int = 0
