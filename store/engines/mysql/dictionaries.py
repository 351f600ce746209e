"""Dictionaries on a MySQL server, in the meta database, so they replicate with the cells and are
copied with them. Promises C1–C4 for one server.

Values are X'..' literals made here from bytes and numbers; names are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

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
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.own_writes import out_of_binlog
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.dictionary.before_add", "mysql.dictionary.after_add", "mysql.dictionary.after_use")

_COLUMNS = "dictionary_id, column_name, content, sha256, trained_at_us, samples"


class MySqlDictionaries:
    """:class:`cellfeed.store.engines.contract.dictionaries.DictionaryTable` in the meta database
    ``meta`` of one server."""

    def __init__(self, server: MySqlServer, meta: str) -> None:
        self._server = server
        self._guard = Guard(server, meta)
        self._contents, self._turns = f"{meta}.dictionary", f"{meta}.dictionary_turn"
        self.on_use: Callable[[], None] = lambda: None
        """Called when the column of a dictionary has a turn: puts of this process may take it."""

    def find(self, dictionary_id: int) -> Dictionary | None:
        with self._server.connection() as connection:
            found = self._dictionary(connection, dictionary_id)
        return found if found is not None and found.dictionary_id == dictionary_id else None

    def current(self) -> dict[str, Turn]:
        sql = (
            f"SELECT t.column_name, t.turn, t.dictionary_id FROM {self._turns} t JOIN"
            f" {self._contents} d ON d.dictionary_id = t.dictionary_id AND d.sha256 = t.sha256"
            " ORDER BY t.turn"
        )
        with self._server.connection() as connection:
            rows = query(connection, sql)
        return {
            name.decode(): Turn(name.decode(), int(turn), int(dictionary_id))
            for name, turn, dictionary_id in rows
        }

    def count(self) -> int:
        with self._server.connection() as connection:
            [(count,)] = query(connection, f"SELECT COUNT(*) FROM {self._contents}")
        return int(count)

    def add(self, dictionary: Dictionary, terms: WriteTerms | None = None) -> None:
        failpoint("mysql.dictionary.before_add")
        self._guard.commit(
            [f"INSERT IGNORE INTO {self._contents} ({_COLUMNS}) VALUES {_literals(dictionary)}"],
            terms,
        )
        with self._server.connection() as connection:
            stored = self._dictionary(connection, dictionary.dictionary_id)
        if stored is None or stored.content != dictionary.content:
            raise ProtectData(
                f"{self._server}: another dictionary has the id {dictionary.name}: train it again"
            )
        failpoint("mysql.dictionary.after_add")

    def use(self, dictionary: Dictionary, turn: int, terms: WriteTerms | None = None) -> bool:
        column = f"X'{dictionary.column_name.encode().hex()}'"
        values = f"({column},{int(turn)},{dictionary.dictionary_id},X'{dictionary.sha256.hex()}')"
        content = self._content(dictionary.dictionary_id)

        def explain(connection: Connection[Any]) -> None:
            if not query(connection, content):
                raise StorageUnavailable(
                    f"{self._server}: dictionary {dictionary.name} was retired meanwhile: it is not"
                    " put to use; try again"
                )

        # A turn that is there already makes the INSERT fail: another process was first.
        written = self._guard.commit(
            [f"INSERT INTO {self._turns} VALUES {values}"],
            terms,
            locks=[f"{content} FOR UPDATE"],
            more=[f"EXISTS ({content})"],
            explain_more=explain,
            unless_there=True,
        )
        failpoint("mysql.dictionary.after_use")
        self.on_use()
        return written

    def stop_using(self, dictionary_id: int, terms: WriteTerms | None = None) -> Stopped:
        self._guard.commit(
            [f"DELETE FROM {self._turns} WHERE dictionary_id = {dictionary_id:d}"], terms
        )
        return {}

    def take_away(
        self, dictionary_id: int, stopped: Stopped, terms: WriteTerms | None = None
    ) -> None:
        turns = f"SELECT turn FROM {self._turns} WHERE dictionary_id = {dictionary_id:d}"

        def explain(connection: Connection[Any]) -> None:
            if query(connection, turns):
                raise in_use_again(self._server, dictionary_id)

        self._guard.commit(
            [f"DELETE FROM {self._contents} WHERE dictionary_id = {dictionary_id:d}"],
            terms,
            locks=[f"{self._content(dictionary_id)} FOR UPDATE"],
            more=[f"NOT EXISTS ({turns})"],
            explain_more=explain,
        )

    def complete(self) -> None:
        """One storage has nothing to complete."""

    def kept(self) -> list[KeptDictionary]:
        found: dict[int, KeptDictionary] = {}
        with self._server.connection() as connection:
            try:
                turns = query(
                    connection,
                    f"SELECT dictionary_id, column_name, sha256, turn FROM {self._turns} ORDER BY"
                    " turn",
                )
                # The server itself reads every content: only digests are sent.
                described = (
                    "column_name, sha256, SHA2(content, 256), LENGTH(content), trained_at_us,"
                    " samples"
                )
                rows = query(connection, f"SELECT dictionary_id, {described} FROM {self._contents}")
            except pymysql.err.ProgrammingError as error:
                if error.args[0] != ER.NO_SUCH_TABLE:
                    raise
                raise tables_missing(self._server, error) from error
        for number, column, digest, own, size, at_us, samples in rows:
            dictionary_id = int(number)
            whole = bytes.fromhex(_text(own)) == digest and id_of(digest) == dictionary_id
            condition = Condition.WHOLE if whole else Condition.DAMAGED
            found[dictionary_id] = KeptDictionary(
                dictionary_id,
                column.decode(),
                condition,
                digest,
                (),
                int(at_us),
                int(samples),
                int(size),
            )
        return with_turns(
            found,
            [
                (int(number), column.decode(), digest, int(turn))
                for number, column, digest, turn in turns
            ],
        )

    def restore(self, dictionary: Dictionary) -> None:
        replace = f"REPLACE INTO {self._contents} ({_COLUMNS}) VALUES {_literals(dictionary)}"
        # Not through the log: where another node has it whole, or damaged otherwise, the same
        # change would not fit.
        with self._server.connection() as connection, out_of_binlog(self._server, connection):
            query(connection, replace)

    def check(self) -> None:
        refuse_lost(self._server, self.kept())

    def _content(self, dictionary_id: int) -> str:
        """The statement that finds a content. A writer of a turn, or of a removal, locks
        its row first: there is never a turn without its content."""
        return f"SELECT dictionary_id FROM {self._contents} WHERE dictionary_id = {dictionary_id:d}"

    def _dictionary(self, connection: Connection[Any], dictionary_id: int) -> Dictionary | None:
        sql = (
            f"SELECT column_name, content, trained_at_us, samples FROM {self._contents} WHERE"
            f" dictionary_id = {int(dictionary_id)}"
        )
        rows: Sequence[tuple[Any, ...]] = query(connection, sql)
        return (
            Dictionary(rows[0][0].decode(), rows[0][1], int(rows[0][2]), int(rows[0][3]))
            if rows
            else None
        )


def _literals(dictionary: Dictionary) -> str:
    name, digest = dictionary.column_name.encode().hex(), dictionary.sha256.hex()
    return (
        f"({dictionary.dictionary_id},X'{name}',X'{dictionary.content.hex()}',X'{digest}',"
        f"{int(dictionary.trained_at_us)},{int(dictionary.samples)})"
    )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
