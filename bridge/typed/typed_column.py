"""Which version of its column's schema a body is shown with, and its bytes.

**The oldest version that it fits.** So a record follows from the cell and from the registered
versions alone. It depends neither on the gateway nor on the moment of encoding. A new version never
changes a record that was typed before it; it makes room for bodies that fitted none. Before a body
is said to fit none, the versions are read from the datastore again: a gateway that does not know
the newest version mistakes no body for an unfit one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.bridge.typed.stored_columns import Settings, StoredColumn, Version, stored_columns
from cellfeed.store.engines.contract.state_table import StateTable


class Typed(NamedTuple):
    """A body by a version: ``version`` is its place among :attr:`TypedColumn.versions`, ``data``
    its Avro binary. Where it fits none, ``data`` is empty, ``mismatch`` has the reason, and
    ``version`` is the first: its schema has room for JSON as that of every other one, and it stays
    the first."""

    version: int
    data: bytes
    mismatch: str = ""


class _Compiled(NamedTuple):
    version: Version
    encoder: BodyEncoder


class TypedColumn:
    """One column's versions, compiled. Safe to use from several threads: the known versions are
    replaced as a whole."""

    def __init__(self, state: StateTable, column: str, stored: StoredColumn | None = None) -> None:
        self._state = state
        self.column = column
        self.settings = Settings()
        self._known: tuple[_Compiled, ...] = ()
        if stored is not None:
            self.take(stored)
        else:
            self.renew()

    @property
    def versions(self) -> tuple[Version, ...]:
        """Oldest first."""
        return tuple(each.version for each in self._known)

    def take(self, stored: StoredColumn) -> None:
        """Takes over a read of the datastore. Versions are only ever added, so an earlier read
        never replaces a later one."""
        known = self._known
        if len(stored.versions) > len(known):
            new = stored.versions[len(known) :]
            self._known = (
                *known,
                *(
                    _Compiled(version, BodyEncoder(body_schema(version.body).root))
                    for version in new
                ),
            )
        self.settings = stored.settings

    def renew(self) -> None:
        """Reads the versions from the datastore. Raises Unavailable."""
        stored = stored_columns(self._state, self.column).get(self.column)
        if stored is not None:
            self.take(stored)

    def encode(self, bodies_json: Sequence[bytes]) -> list[Typed]:
        """Each body, canonical JSON, by the oldest version that it fits. Raises Unavailable when
        one fits none that is known here, and the datastore cannot be asked for more."""
        found: list[Typed] = []
        asked = False
        for body_json in bodies_json:
            typed = self._encode(body_json)
            if typed.mismatch and not asked:
                asked = True
                self.renew()
                typed = self._encode(body_json)
            found.append(typed)
        return found

    def _encode(self, body_json: bytes) -> Typed:
        body, reason = decoded(body_json), f"column {self.column} has no schema"
        for number, (_, encoder) in enumerate(self._known):
            try:
                return Typed(number, encoder.encode(body))
            except SchemaMismatch as mismatch:
                reason = str(mismatch)
        return Typed(0, b"", reason)


class TypedColumns:
    """All columns of a datastore that have a schema, as they were at the last look."""

    def __init__(self, state: StateTable) -> None:
        self._state = state
        self._columns: dict[str, TypedColumn] = {}
        self.renew()

    def renew(self) -> None:
        """Looks at the datastore. Raises Unavailable."""
        for column, stored in stored_columns(self._state).items():
            known = self._columns.get(column)
            if known is None:
                self._columns[column] = TypedColumn(self._state, column, stored)
            else:
                known.take(stored)

    def all(self) -> list[TypedColumn]:
        """By name."""
        return [self._columns[column] for column in sorted(self._columns)]

    def named(self, column: str) -> TypedColumn | None:
        return self._columns.get(column)
