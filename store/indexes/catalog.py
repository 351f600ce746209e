"""Which indexes a datastore has, and which of their versions is asked: entries of the state table,
``indexes/<name>``.

A version is ``building`` until it has all that is in the logs, then ``current``: queries are
answered from it. The one before is ``retired``: it is kept for ``GRACE_S`` more, for processes that
have not read the switch yet, and its tables stay until it is dropped. ``dropping`` is the way out.
Every step is one commit with compare-and-set, so it is taken once; numbers of versions are never
used again. Crash points:

    after the version's entry, before its tables    its keeper makes the tables first
    in a drop                                       the version stays ``dropping``: dropping it
                                                    again completes the drop
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import DataDamaged, InvalidRequest, NotFound
from cellfeed.store.indexes.definition import IndexDefinition, check_index_name
from cellfeed.store.indexes.records import (
    BUILDING,
    CURRENT,
    DROPPING,
    RETIRED,
    IndexRecord,
    VersionRecord,
)

INDEXES: Final = "indexes/"
"""Begins the keys of the entries."""

_NUMBERS_LEFT_OUT: Final = 1_000
"""Numbers that a restored index leaves out: more versions than there can have been after the
backup."""


_decoder: Final = msgspec.json.Decoder(IndexRecord)
_encode: Final = msgspec.json.Encoder().encode

Change = Callable[[IndexRecord], IndexRecord | None]
"""The record after the change, given the one before; None for no change."""


class Catalog:
    """See the module. Any number of threads."""

    def __init__(self, state: StateTable, datastore: str) -> None:
        self._state = state
        self._datastore = datastore

    def now_us(self) -> int:
        """The storage's clock."""
        return self._state.now_us()

    def all(self) -> list[IndexRecord]:
        """Every index that has a version, by name."""
        return [
            record for entry in self._state.list(INDEXES) if (record := _record(entry)).versions
        ]

    def get(self, name: str) -> IndexRecord:
        """Raises NotFound."""
        record = self._found(check_index_name(name))[0]
        if not record.versions:
            known = ", ".join(each.name for each in self.all()) or "none"
            raise NotFound(
                f"datastore {self._datastore!r} has no index {name!r}; it has {known} (cellfeed"
                " index create makes one of a definition)"
            )
        return record

    def create(
        self, definition: IndexDefinition, *, cells_per_s: float | None = None
    ) -> VersionRecord:
        """A new version, to be built; or the newest one, where its definition is the same. Raises
        InvalidRequest for another datastore's definition."""
        if definition.datastore != self._datastore:
            raise InvalidRequest(
                f"the definition of index {definition.table!r} is for datastore"
                f" {definition.datastore!r}, this one is {self._datastore!r}"
            )

        def add(record: IndexRecord) -> IndexRecord | None:
            newest = record.versions[-1] if record.versions else None
            if (
                newest is not None
                and newest.state in (BUILDING, CURRENT)
                and newest.definition.digest == definition.digest
            ):
                return None
            made = VersionRecord(
                record.next_number, definition, BUILDING, self._state.now_us(), cells_per_s
            )
            return msgspec.structs.replace(
                record, next_number=record.next_number + 1, versions=[*record.versions, made]
            )

        return self._change(definition.table, add).versions[-1]

    def switch(self, name: str, number: int) -> bool:
        """Has queries answered from this version from now on; False when it is not being built (any
        more)."""

        def turn(record: IndexRecord) -> IndexRecord | None:
            if not any(
                version.number == number and version.state == BUILDING
                for version in record.versions
            ):
                return None
            now_us = self._state.now_us()
            return msgspec.structs.replace(
                record, versions=[_switched(version, number, now_us) for version in record.versions]
            )

        return any(
            version.number == number and version.state == CURRENT
            for version in self._change(name, turn).versions
        )

    def throttle(self, name: str, number: int, cells_per_s: float | None) -> None:
        """How fast a version may be built from now on."""
        self._change(name, lambda record: _with(record, number, cells_per_s=cells_per_s))

    def begin_drop(self, name: str, number: int | None = None) -> list[VersionRecord]:
        """Marks a version, or all of them: nobody keeps or asks them from now on. Raises
        NotFound."""
        if number is not None:
            self.get(name).version(number)

        def mark(record: IndexRecord) -> IndexRecord:
            marked = [
                (
                    msgspec.structs.replace(each, state=DROPPING)
                    if number in (None, each.number)
                    else each
                )
                for each in record.versions
            ]
            return msgspec.structs.replace(record, versions=marked)

        return [
            version for version in self._change(name, mark).versions if version.state == DROPPING
        ]

    def end_drop(self, name: str, number: int) -> None:
        """Forgets a version whose tables are gone."""
        self._change(
            name,
            lambda record: msgspec.structs.replace(
                record, versions=[each for each in record.versions if each.number != number]
            ),
        )

    # --- inside -----------------------------------------------------------------------------------

    def _found(self, name: str) -> tuple[IndexRecord, int | None]:
        entry = self._state.get(INDEXES + name)
        return (IndexRecord(name), None) if entry is None else (_record(entry), entry.version)

    def _change(self, name: str, change: Change) -> IndexRecord:
        """The record as it is afterwards."""
        while True:
            record, version = self._found(name)
            changed = change(record)
            if changed is None or changed == record:
                return record
            key = INDEXES + name
            if self._state.commit({key: _encode(changed)}, expect={key: version}) is not None:
                return changed


def restored_index(key: str, value: bytes, now_us: int) -> tuple[IndexRecord, bytes]:
    """An entry of a backup: the record as it was, and the value to restore. In that value the
    version that was current, or else the newest, is to be built again under an unused number.
    Raises DataDamaged."""
    before = _record(StateEntry(key, value, 0))
    kept = before.current or before.building
    number = before.next_number + _NUMBERS_LEFT_OUT
    versions = (
        [VersionRecord(number, kept.definition, BUILDING, now_us, kept.cells_per_s)]
        if kept is not None
        else []
    )
    return before, _encode(IndexRecord(before.name, number + 1, versions))


def _with(record: IndexRecord, number: int, *, cells_per_s: float | None) -> IndexRecord:
    changed = [
        msgspec.structs.replace(each, cells_per_s=cells_per_s) if each.number == number else each
        for each in record.versions
    ]
    return msgspec.structs.replace(record, versions=changed)


def _switched(version: VersionRecord, number: int, now_us: int) -> VersionRecord:
    if version.number == number:
        return msgspec.structs.replace(version, state=CURRENT)
    if version.state == CURRENT or (version.state == BUILDING and version.number < number):
        return msgspec.structs.replace(version, state=RETIRED, retired_at_us=now_us)
    return version


def _record(entry: StateEntry) -> IndexRecord:
    try:
        return _decoder.decode(entry.value)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"the state entry {entry.key!r} is no index: {error}") from error
