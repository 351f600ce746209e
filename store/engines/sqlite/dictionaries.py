"""Dictionaries of the embedded engine, in the file with the cells: a copy of that file has all that
its bodies need. Promises C1–C4."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from hashlib import sha256

from cellfeed.store.cells.dictionary import Dictionary, id_of
from cellfeed.store.engines.contract.dictionaries import (
    Condition,
    KeptDictionary,
    Stopped,
    Turn,
    in_use_again,
    refuse_lost,
    tables_missing,
    with_turns,
)
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import declare, failpoint

declare(
    "sqlite.dictionary.before_add", "sqlite.dictionary.after_add", "sqlite.dictionary.after_use"
)

_INSERT = (
    "INTO dictionary (dictionary_id, column_name, content, sha256, trained_at_us, samples) VALUES"
    " (?, ?, ?, ?, ?, ?)"
)


class SqliteDictionaries:
    """:class:`cellfeed.store.engines.contract.dictionaries.DictionaryTable`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self.on_use: Callable[[], None] = lambda: None
        """Called when the column of a dictionary has a turn: puts of this process may take it."""

    def find(self, dictionary_id: int) -> Dictionary | None:
        with self._file.read() as connection:
            sql = (
                "SELECT column_name, content, trained_at_us, samples FROM dictionary WHERE"
                " dictionary_id = ?"
            )
            row = connection.execute(sql, (dictionary_id,)).fetchone()
        found = Dictionary(*row) if row else None
        return found if found is not None and found.dictionary_id == dictionary_id else None

    def current(self) -> dict[str, Turn]:
        sql = (
            "SELECT t.column_name, t.turn, t.dictionary_id FROM dictionary_turn t JOIN dictionary d"
            " USING (dictionary_id, sha256) ORDER BY t.turn"
        )
        with self._file.read() as connection:
            return {
                name: Turn(name, turn, dictionary_id)
                for name, turn, dictionary_id in connection.execute(sql)
            }

    def count(self) -> int:
        with self._file.read() as connection:
            [(count,)] = connection.execute("SELECT COUNT(*) FROM dictionary").fetchall()
        return int(count)

    def add(self, dictionary: Dictionary) -> None:
        failpoint("sqlite.dictionary.before_add")
        with self._file.write() as connection:
            connection.execute(f"INSERT OR IGNORE {_INSERT}", _values(dictionary))
            [(content,)] = connection.execute(
                "SELECT content FROM dictionary WHERE dictionary_id = ?",
                (dictionary.dictionary_id,),
            ).fetchall()
            if content != dictionary.content:
                raise ProtectData(
                    f"another dictionary has the id {dictionary.name}: train it again"
                )
        failpoint("sqlite.dictionary.after_add")

    def use(self, dictionary: Dictionary, turn: int) -> bool:
        values = (dictionary.column_name, turn, dictionary.dictionary_id, dictionary.sha256)
        # Of one that was retired meanwhile there is no turn without its content.
        there = "EXISTS (SELECT 1 FROM dictionary WHERE dictionary_id = ?3)"
        with self._file.write() as connection:
            written = (
                connection.execute(
                    f"INSERT OR IGNORE INTO dictionary_turn SELECT ?1, ?2, ?3, ?4 WHERE {there}",
                    values,
                ).rowcount
                == 1
            )
        failpoint("sqlite.dictionary.after_use")
        self.on_use()
        return written

    def stop_using(self, dictionary_id: int) -> Stopped:
        """No put takes it from this commit on (:func:`are_in_use`)."""
        with self._file.write() as connection:
            connection.execute(
                "DELETE FROM dictionary_turn WHERE dictionary_id = ?", (dictionary_id,)
            )
        return {}

    def take_away(self, dictionary_id: int, stopped: Stopped) -> None:
        """As the contract's. Its bytes in the file are overwritten."""
        with self._file.write() as connection:
            if are_in_use(connection, [dictionary_id]):
                raise in_use_again(self._file.path, dictionary_id)
            connection.execute("DELETE FROM dictionary WHERE dictionary_id = ?", (dictionary_id,))

    def complete(self) -> None:
        """One storage has nothing to complete."""

    def kept(self) -> list[KeptDictionary]:
        found: dict[int, KeptDictionary] = {}
        with self._tables() as connection:
            turns = connection.execute(
                "SELECT dictionary_id, column_name, sha256, turn FROM dictionary_turn ORDER BY turn"
            ).fetchall()
            for dictionary_id, column, content, digest, at_us, samples in connection.execute(
                "SELECT dictionary_id, column_name, content, sha256, trained_at_us, samples FROM"
                " dictionary"
            ):
                own = sha256(content).digest()
                whole = own == digest and id_of(own) == dictionary_id
                condition = Condition.WHOLE if whole else Condition.DAMAGED
                found[dictionary_id] = KeptDictionary(
                    dictionary_id, column, condition, digest, (), at_us, samples, len(content)
                )
        return with_turns(found, turns)

    def restore(self, dictionary: Dictionary) -> None:
        with self._file.write() as connection:
            connection.execute(f"INSERT OR REPLACE {_INSERT}", _values(dictionary))

    def check(self) -> None:
        refuse_lost(self._file.path, self.kept())

    @contextmanager
    def _tables(self) -> Iterator[sqlite3.Connection]:
        with self._file.snapshot() as connection:
            try:
                yield connection
            except sqlite3.OperationalError as error:
                raise tables_missing(self._file.path, error) from error


def are_in_use(connection: sqlite3.Connection, dictionary_ids: Collection[int]) -> bool:
    """Whether a put may take them, asked in its transaction."""
    return set(dictionary_ids) <= {
        dictionary_id
        for (dictionary_id,) in connection.execute("SELECT dictionary_id FROM dictionary_turn")
    }


def _values(dictionary: Dictionary) -> tuple[object, ...]:
    described = (dictionary.trained_at_us, dictionary.samples)
    return (
        dictionary.dictionary_id,
        dictionary.column_name,
        dictionary.content,
        dictionary.sha256,
        *described,
    )
