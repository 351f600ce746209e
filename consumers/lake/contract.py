"""The promises of a lake table, in either format::

    L1 A look shows one state of the table as a whole: positions, source, files.
    L2 ``State.add`` makes one commit with all files and the new positions, or none of it. It
       succeeds only on the very state that was looked at, and tries once: no library repeats it.
    L3 When it did not commit, or nobody can say, it raises. The next look shows which of the two.
    L4 Foreign commits (a compaction, a new column, an expiry) neither hide positions nor reset
       them. A table that was taken back to an earlier snapshot has the positions of that snapshot,
       or is refused.
    L5 A table belongs to one source for good: it is made with the source's id, or not at all.
    L6 Each cell of a column with a schema is in its typed table or parked, and once, up to the
       table's own positions.
    L7 The latest table of a column has of each row that is not erased the typed cell with the
       highest ref key, up to the table's own positions.

The suite is ``tests/contract/lake_table``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from cellfeed.consumers.lake.positions import Positions


class NotCommitted(Exception):
    """The table was not in the looked-at state any more, so the commit was refused."""


class TableKind(msgspec.Struct, frozen=True):
    """How a table of a lake is made. ``schema``: Arrow's, with 16 bytes for UUIDs; ``order``: of
    the rows in files; ``by_day``: whether files are partitioned by the day of ``created_at``;
    ``has_every_id``: whether the ids of a shard have no holes; ``properties``: further ones."""

    name: str
    schema: pa.Schema
    order: Sequence[str]
    by_day: bool = True
    has_every_id: bool = False
    properties: Mapping[str, str] = {}


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file in the table's folder. ``path``: relative to it; ``day``: days since 1970 of
    all rows' ``created_at``, None in a table without days; ``least``, ``greatest``: statistics by
    column, as JSON has them."""

    path: str
    day: int | None
    rows: int
    bytes: int
    least: Mapping[str, int | str]
    greatest: Mapping[str, int | str]


class Addition(msgspec.Struct, frozen=True):
    """Files that lead from one vector of positions to another. ``newest_us``: the last
    ``created_at`` of their rows, microseconds since 1970; ``removed``: paths of live files that
    leave the table in the same commit."""

    source: str
    files: Sequence[DataFile]
    starts: Positions
    ends: Positions
    newest_us: int
    removed: Sequence[str] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


class LiveFile(msgspec.Struct, frozen=True):
    """A data file that the table's newest snapshot has. ``path`` is absolute."""

    path: str
    rows: int
    bytes: int


class LastCommit(msgspec.Struct, frozen=True):
    """The newest commit of any loader that the table still knows; times in microseconds since
    1970."""

    at_us: int
    newest_us: int


class State(Protocol):
    """One state of a table."""

    @property
    def version(self) -> str:
        """The snapshot, for people."""
        ...

    @property
    def source(self) -> str: ...

    @property
    def positions(self) -> Positions:
        """Raises ProtectData where foreign changes leave no position that is proved."""
        ...

    def add(self, addition: Addition) -> None:
        """See L2. Raises NotCommitted, or any error of the library: then it is unknown whether the
        commit happened."""
        ...

    def files(self) -> list[LiveFile]: ...

    def has_row_deletes(self) -> bool:
        """Whether rows of live files are deleted by other files, which only the format's own
        readers respect."""
        ...

    def last_commit(self) -> LastCommit | None: ...


class LakeTable(Protocol):
    """A table that exists."""

    kind: TableKind

    @property
    def name(self) -> str:
        """As messages name it."""
        ...

    @property
    def folder(self) -> str:
        """The table's folder on disk, where data files go."""
        ...

    @property
    def data_prefix(self) -> str:
        """Of data files' paths in the folder."""
        ...

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Arrow's schema as data files carry it."""
        ...

    def columns(self) -> pa.Schema:
        """The table's columns as engines see them."""
        ...

    def property(self, name: str) -> str | None:
        """A property with which the table was made."""
        ...

    def evolve(self, schema: pa.Schema) -> None:
        """Adds the columns, and members of records, that the table lacks. Raises NotCommitted
        when another change came first, and any error of the library."""
        ...

    def look(self) -> State:
        """The newest state. Raises ProtectData for a table that is none of ours, Unavailable when
        the catalog does not answer."""
        ...
