"""Statements over one connection: one, several in a packet, a transaction's, and many that are sent
before the answers to the first ones come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND

from cellfeed.store.engines.mysql.answers import take_answer
from cellfeed.store.engines.mysql.errors import StatementFailed, error_code

PACKET_BYTES_MAX: Final = 16 << 20
"""Statements that are sent together, in bytes; half of the packet that a server must take
(``server_rules.PACKET_BYTES_MIN``), for one statement may be as large."""


BEGIN: Final = "BEGIN /*T! PESSIMISTIC */"
"""Begins a transaction that takes its locks at once, as MySQL and MariaDB do by themselves. TiDB
reads this comment."""


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether the server is MariaDB, and not MySQL."""
    return "MariaDB" in connection.get_server_info()  # type: ignore[no-untyped-call]


def query(connection: Connection[Any], sql: str | bytes) -> Sequence[tuple[Any, ...]]:
    """Runs one statement and returns its rows, values as the server sent them (bytes, or None)."""
    connection._execute_command(  # type: ignore[attr-defined] # noqa: SLF001 - query() takes the answer, at three times the cost
        COMMAND.COM_QUERY, sql if isinstance(sql, bytes) else sql.encode()
    )
    return take_answer(connection)


def query_all(
    connection: Connection[Any], statements: Sequence[str]
) -> list[Sequence[tuple[Any, ...]]]:
    """As :func:`query` for several statements, in one round trip."""
    answers = [query(connection, ";".join(statements))]
    answers += [take_answer(connection) for _ in statements[1:]]
    return answers


def run_script(
    connection: Connection[Any], statements: Sequence[str], *, after_commit: Sequence[str] = ()
) -> None:
    """Sends several statements in one packet and takes every answer. The server stops at the first
    that fails. The last of ``statements`` is a COMMIT where ``after_commit`` follows it.

    Raises StatementFailed when the server refused one before the last of ``statements``: that one
    was then never run. Of it, and of those behind it, the driver's error comes as it is.
    """
    answered = 0
    try:
        connection.query(";".join([*statements, *after_commit]))
        answered = 1
        # An answer per statement, with any count of affected rows.
        for _ in range(len(statements) + len(after_commit) - 1):
            connection.next_result()
            answered += 1
    except pymysql.err.MySQLError as error:
        # Codes from 2000 to 2999 are the client's own: the connection was lost, and nobody knows
        # which statements ran.
        if error_code(error) < 2000 and answered < len(statements) - 1:
            raise StatementFailed(*error.args) from error
        raise


def commit_script(
    connection: Connection[Any],
    statements: Sequence[str],
    after_commit: Sequence[str] = (),
    *,
    silent: bool = False,
) -> None:
    """Runs a transaction's statements, its COMMIT and the statements behind it, in one packet where
    that is not too large. ``silent``: none of the statements begins a transaction or answers with
    rows, so that they may have one answer (:func:`_block`).

    An error is to be judged by :func:`cellfeed.store.engines.mysql.errors.commit_failed`.
    """
    *packets, last = (
        _block(connection, packet) if silent else packet for packet in _packets(statements)
    )
    for packet in packets:
        try:
            run_script(connection, packet)
        except pymysql.err.MySQLError as error:
            raise StatementFailed(*error.args) from error
    run_script(connection, [*last, "COMMIT"], after_commit=after_commit)


def _block(connection: Connection[Any], statements: Sequence[str]) -> Sequence[str]:
    """Silent statements as one, where the server is MariaDB (MySQL has no such statement outside of
    a routine): it stops at the first that fails, as a script does, and gives its error.

    A group commit writes to some thirty shards, and an answer for each is a packet that the server
    sends and the driver takes apart: a quarter of the writer's processor time, and a dozen waits in
    which other threads take the interpreter. Of thousands of cells a block would cost the server a
    fifth more: those go through :class:`Pipeline`.
    """
    if len(statements) < 2 or not is_mariadb(connection):
        return statements
    return [f"BEGIN NOT ATOMIC {';'.join(statements)}; END"]


class Pipeline:
    """Statements that are sent without waiting for the answers to those before: the server runs
    some while the next ones are still being made.

    The server runs on past an error, so nothing that ends the transaction may be sent before
    :meth:`finish` has returned.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._sent: list[tuple[int, int]] = []
        """Of each packet how many answers it has, and the sequence number that they begin with."""

    def send(self, statements: Sequence[str]) -> None:
        """Sends them, in packets of a bounded size. Raises StatementFailed."""
        try:
            for packet in _packets(statements):
                self._connection._execute_command(COMMAND.COM_QUERY, ";".join(packet))  # type: ignore[attr-defined] # noqa: SLF001 - query() waits
                self._sent.append((len(packet), self._connection._next_seq_id))  # type: ignore[attr-defined] # noqa: SLF001
        except (pymysql.err.MySQLError, OSError) as error:
            raise StatementFailed(*error.args) from error

    def finish(self) -> None:
        """Takes every answer, and raises StatementFailed for the first that was an error."""
        failed: pymysql.err.MySQLError | None = None
        for answers, sequence_number in self._sent:
            self._connection._next_seq_id = sequence_number  # type: ignore[attr-defined] # noqa: SLF001 - of the packet sent last, until now
            try:
                self._connection._read_query_result()  # type: ignore[attr-defined] # noqa: SLF001
                for _ in range(answers - 1):
                    self._connection.next_result()
            except pymysql.err.MySQLError as error:
                failed = failed or error
                if 2000 <= error_code(error) < 3000:
                    break  # the connection is lost, and with it the transaction
        self._sent.clear()
        if failed is not None:
            raise StatementFailed(*failed.args) from failed


def _packets(statements: Sequence[str]) -> list[list[str]]:
    """The statements in as few packets as their size allows; at least one packet."""
    packets: list[list[str]] = [[]]
    packet_bytes = 0
    for statement in statements:
        if packet_bytes and packet_bytes + len(statement) > PACKET_BYTES_MAX:
            packets.append([])
            packet_bytes = 0
        packets[-1].append(statement)
        packet_bytes += len(statement)
    return packets
