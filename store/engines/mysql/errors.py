"""How an error of a MySQL server, or of the connection to it, settles the outcome of a call: the
one place that decides.

    before the COMMIT was sent      StorageUnavailable: nothing was written. The connection is
                                    closed, and the server rolls back its open transaction
    answer to the COMMIT            an error by which the server says that it rolled back:
                                    StorageUnavailable
                                    any other error, or none because the connection was lost:
                                    OutcomeUnknown
    a page or an index is damaged   DataDamaged, wherever it is found
    a shard's database, or a table  ShardMoving: the shard has left the server (a move takes
    of it, is not there             the tables' names away before another cluster takes puts)

A COMMIT travels behind the statements of its transaction in one packet. So the position of the
answer that failed names the statement (:class:`StatementFailed`). A packet that was not handed to
the network whole never reached the server whole, and was not run.
"""

from __future__ import annotations

import re
from typing import Final

import pymysql
from pymysql.constants import CR, ER

from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    OutcomeUnknown,
    ShardMoving,
    StorageUnavailable,
)

_INNODB_READ_ONLY: Final = 1836
_TRANSACTION_READ_ONLY: Final = 1792
READ_ONLY: Final = frozenset(
    {ER.OPTION_PREVENTS_STATEMENT, _TRANSACTION_READ_ONLY, _INNODB_READ_ONLY}
)
"""The server takes no writes, or this transaction may make none."""

_TOO_MANY_USER_CONNECTIONS: Final = 1203
_USER_LIMIT_REACHED: Final = 1226
_INDEX_CORRUPT: Final = 1712
_CONNECTION_IDLE: Final = 4031
"""MySQL's own words before it closes a connection that was idle for too long."""

_ROLLED_BACK: Final = READ_ONLY | {ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT}
"""Said of a COMMIT itself: the server is read-only, or chose this transaction to give way."""

_LOST: Final = frozenset(
    {CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, ER.SERVER_SHUTDOWN, 1927, _CONNECTION_IDLE}
)
"""The connection is of no use any more (1927: MariaDB's "connection was killed"), and others that
are as old may be dead as well."""

_TABLE_CORRUPT: Final = 1877
_NO_TABLESPACE: Final = 1812
_NOT_IN_ENGINE: Final = 1932
"""The catalogue has the table, and its file is lost."""

_DAMAGED: Final = frozenset(
    {
        ER.CRASHED_ON_USAGE,
        ER.CRASHED_ON_REPAIR,
        ER.NOT_KEYFILE,
        _INDEX_CORRUPT,
        _TABLE_CORRUPT,
        _NO_TABLESPACE,
        _NOT_IN_ENGINE,
    }
)
_OF_THE_ENGINE: Final = re.compile(
    rf"Got error ({_TABLE_CORRUPT}|{_INDEX_CORRUPT}|126|127|144|145|180|194)\b", re.ASCII
)
"""InnoDB's codes in the text of error 1030, for errors without words of the server: crashed (126 to
145), an index is damaged (180), a file is lost (194)."""

_ADVICE: Final = {
    ER.OPTION_PREVENTS_STATEMENT: (
        "the server is read-only: another one is master, or it was fenced"
    ),
    _TRANSACTION_READ_ONLY: "transactions are read-only there: `transaction_read_only` is on",
    _INNODB_READ_ONLY: "the server was started read-only (innodb_read_only, or a damaged disk)",
    ER.DISK_FULL: "the disk of the server is full",
    ER.RECORD_FILE_FULL: "the disk of the server is full, or a tablespace has reached its limit",
    ER.CON_COUNT_ERROR: "the server has no connection left: raise its max_connections",
    _TOO_MANY_USER_CONNECTIONS: "the user has no connection left: raise its limit",
    _USER_LIMIT_REACHED: "the user has used up its quota: raise its limit",
    ER.LOCK_DEADLOCK: "the transaction gave way to another one",
    ER.LOCK_WAIT_TIMEOUT: (
        "another transaction holds the shard's counter: look for one that was left open"
    ),
    ER.SUBQUERY_NO_1_ROW: (
        "somebody switched semi-synchronous replication off while the commit waited for a minion"
    ),
    ER.NET_PACKET_TOO_LARGE: "raise the server's max_allowed_packet",
    ER.ACCESS_DENIED_ERROR: "the user or the password of the configuration is not the server's",
    ER.DBACCESS_DENIED_ERROR: "the user lacks rights on the datastore's databases",
    ER.TABLEACCESS_DENIED_ERROR: "the user lacks rights on the datastore's databases",
}


_NOT_THERE: Final = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
_OF_A_SHARD: Final = re.compile(r"'\w+_\d{4,}('|\.)", re.ASCII)


class StatementFailed(pymysql.err.MySQLError):
    """A statement of a script failed, and it was not the COMMIT, which therefore was never run;
    ``args`` are those of the server's or client's error."""


def error_code(error: BaseException) -> int:
    """The server's (or client's) error number; 2013, connection lost, where there is none."""
    code = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else None
    return code if isinstance(code, int) and code else int(CR.CR_SERVER_LOST)


def is_damage(error: BaseException) -> bool:
    """Whether a page, an index or the file of a table is damaged or lost: the server is well, and
    so are its other tables."""
    code = error_code(error)
    return code in _DAMAGED or (
        code == ER.GET_ERRNO and _OF_THE_ENGINE.search(str(error)) is not None
    )


def is_lost(error: BaseException) -> bool:
    """Whether the connection was lost, and others of the same age may be."""
    return error_code(error) in _LOST


def failed(server: object, error: BaseException, when: str = "nothing written") -> CellfeedError:
    """The error to raise for one that came before any COMMIT, or in a read."""
    if is_damage(error):
        return DataDamaged(
            f"{server}: {_text_of(error)}: restore the table from a backup, or make this node a"
            " copy of another one"
        )
    if error_code(error) in _NOT_THERE and _OF_A_SHARD.search(str(error)):
        return ShardMoving(
            f"{server}: {when}: {_text_of(error)}: the shard moves to another cluster, or has moved"
            " there"
        )
    return StorageUnavailable(f"{server}: {when}: {_text_of(error)}")


def commit_failed(server: object, error: BaseException) -> CellfeedError:
    """The error to raise for one that came out of the round trip that ends in COMMIT."""
    code = error_code(error)
    if isinstance(error, StatementFailed) or is_damage(error):
        return failed(server, error)
    if code in _ROLLED_BACK or code == CR.CR_SERVER_GONE_ERROR:
        return failed(server, error)
    return OutcomeUnknown(
        f"{server}: the commit's fate is not known ({_text_of(error)}); put the same cells again to"
        " learn it"
    )


def worth_another_try(failure: StorageUnavailable) -> bool:
    """Whether the same transaction may well succeed at once: it gave way to another one, or its
    connection turned out to be dead.

    Not after a time-out: the caller has waited as long as it may.
    """
    cause = failure.__cause__
    if not isinstance(cause, pymysql.err.MySQLError) or isinstance(
        cause.__context__, (TimeoutError, BlockingIOError)
    ):
        return False
    return error_code(cause) == ER.LOCK_DEADLOCK or is_lost(cause)


def _text_of(error: BaseException) -> str:
    words = f"{type(error).__name__}: {' '.join(str(part) for part in error.args)[:300]}"
    advice = _ADVICE.get(error_code(error))
    return f"{words}: {advice}" if advice else words
