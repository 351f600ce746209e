"""One tree of errors for the whole product::

    CellfeedError
    ├── InvalidRequest            400  definite, not retriable: the caller must change something
    │   ├── InvalidRowKey, InvalidColumn, InvalidRefKey, InvalidBody, InvalidLocation
    │   ├── AnswerTooLarge        413  the answer has more bytes than one may have: ask for pages
    │   ├── Trimmed               410  an InvalidLocation: the cells from there on were trimmed away
    │   ├── BodyTooLarge          413
    │   ├── UnsupportedMediaType  415  the route does not read the request's Content-Type
    │   └── MethodNotAllowed      405  the path exists, with another method
    ├── NotFound                  404
    │   ├── UnknownDatastore, UnknownShard
    │   └── UnknownRoute               no such path
    ├── CellConflict              409  the triple exists with another body; nothing was written
    ├── RowErased                 410  the row was erased: nothing is written to it, and it has no
    │                                  bodies any more
    ├── Refused                   403  the call is not permitted here
    ├── Unavailable               503  retriable
    │   ├── Overloaded            429  definite: a queue was full, nothing was written
    │   ├── StorageUnavailable    503  definite: failed before the commit began
    │   │   ├── ShardMoving       503  the shard is not on that cluster (any more): it moves, or has
    │   │   │                          moved, to another one
    │   │   ├── ForeignServer     503  another cluster's server, or another datastore's, answers at
    │   │   │                          a node's address
    │   │   └── NoMinion          503  the cluster replicates semi-synchronously and has no minion
    │   │                              left: it takes no writes
    │   ├── WrongAnswer           502  an answer came that is not one to this request; a put is then
    │   │                              OutcomeUnknown
    │   ├── WaitTimedOut          504  a TimeoutError too: an outlet has not passed a place in time
    │   ├── PartitionMoved        503  an export's partition lost records, or is another one now
    │   └── OutcomeUnknown        504  NOT definite: the commit may or may not have happened
    ├── StaleWriter               409  a leader epoch, lease or generation has moved on; definite
    ├── StaleView                 409  index entries come of cells that were trimmed or erased
    │                                  meanwhile; definite: read the cells again
    ├── DataDamaged               500  stored bytes do not decode; never shown as something else
    └── ProtectData               500  refused to start or to continue, so that no data is hurt
        │                              (exit code 3)
        ├── DictionaryLost             bodies need a dictionary that is missing or damaged; the
        │                              message says how to bring it back
        ├── WrongServerSettings        a storage server is set up in a way that could lose or mix up
        │                              cells; the message says how to mend it
        ├── OtherHistory               a worker serves another store than the client has worked with
        ├── NodeAhead                  a node has cells that its master has not
        ├── GroupTaken                 another trigger has the group; the message names both
        └── IncompatibleSchema         a schema breaks the declared rule to an earlier version

An error that its own room always catches is no part of the tree, and derives from Exception.

Class attributes guide the caller: ``http_status``; ``retriable`` (the same request may succeed
later; puts are idempotent, so a retry is always safe); ``definite`` (nothing was written). ``code``
is stable; HTTP and ``--json`` show it.
"""

from __future__ import annotations

from typing import ClassVar


class CellfeedError(Exception):
    """Root of every error that cellfeed raises on purpose. ``str(error)`` names the value and the
    rule, never a secret."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    exit_code: ClassVar[int] = 1

    def as_json(self) -> dict[str, object]:
        """The error as HTTP and ``--json`` show it:
        ``{"error", "message", "retriable", "definite"}``."""
        return {
            "error": self.code,
            "message": str(self),
            "retriable": self.retriable,
            "definite": self.definite,
        }


class InvalidRequest(CellfeedError):
    code = "invalid_request"
    http_status = 400
    exit_code = 2


class InvalidRowKey(InvalidRequest):
    code = "invalid_row_key"


class InvalidColumn(InvalidRequest):
    code = "invalid_column"


class InvalidRefKey(InvalidRequest):
    code = "invalid_ref_key"


class InvalidBody(InvalidRequest):
    code = "invalid_body"


class BodyTooLarge(InvalidBody):
    code = "body_too_large"
    http_status = 413


class AnswerTooLarge(InvalidRequest):
    """The answer would have more bytes than one may have. Nothing is left out silently: a caller
    that can read pages says so in the request."""

    code = "answer_too_large"
    http_status = 413


class InvalidLocation(InvalidRequest):
    code = "invalid_location"


class Trimmed(InvalidLocation):
    """A log was asked for from a location below its start: the cells there are gone, and going on
    silently behind them would be a skip."""

    code = "trimmed"
    http_status = 410


class UnsupportedMediaType(InvalidRequest):
    """415: the request's Content-Type is none that the route reads."""

    code = "unsupported_media_type"
    http_status = 415


class MethodNotAllowed(InvalidRequest):
    """405: the path exists, with another method."""

    code = "method_not_allowed"
    http_status = 405


class NotFound(CellfeedError):
    code = "not_found"
    http_status = 404


class UnknownDatastore(NotFound):
    code = "unknown_datastore"


class UnknownShard(NotFound):
    code = "unknown_shard"


class UnknownRoute(NotFound):
    """No such path here. Apart from ``not_found``, so that a wrong address is never taken for a
    cell that is not there."""

    code = "unknown_route"


class CellConflict(CellfeedError):
    """The triple is stored already with another body. Cells never change: put the new value under a
    higher ref key."""

    code = "conflict"
    http_status = 409


class RowErased(CellfeedError):
    """The row key was erased. No cell of it is written again while its log holds the erasure, and
    no body of it can be had."""

    code = "row_erased"
    http_status = 410


class Refused(CellfeedError):
    code = "refused"
    http_status = 403


class Unavailable(CellfeedError):
    code = "unavailable"
    http_status = 503
    retriable = True


class Overloaded(Unavailable):
    code = "overloaded"
    http_status = 429


class StorageUnavailable(Unavailable):
    code = "storage_unavailable"


class ShardMoving(StorageUnavailable):
    """The shard was looked for on a cluster that it is leaving, or has left. In a moment it is
    found on the other one."""

    code = "shard_moving"


class ForeignServer(StorageUnavailable):
    """A server of another cluster, or of another history, answers at the address of a node. It is
    neither read nor written to."""

    code = "foreign_server"


class NoMinion(StorageUnavailable):
    """A commit would have to wait for a minion, and the cluster's last one was given up."""

    code = "no_minion"


class WrongAnswer(Unavailable):
    """A worker's answer is whole and is not one to the question: the connection was shared, or
    something in between mixed answers up."""

    code = "wrong_answer"
    http_status = 502


class OutcomeUnknown(Unavailable):
    """The commit was sent and no answer came: it may have happened. Putting the same cell again is
    safe and shows which."""

    code = "outcome_unknown"
    http_status = 504
    definite = False


class WaitTimedOut(Unavailable, TimeoutError):
    """An outlet had not passed a token's places when the time was over. It may pass them later.
    ``missing``: by shard the position (None: not begun), and the added_id to be passed."""

    code = "wait_timed_out"
    http_status = 504
    missing: tuple[tuple[int, int | None, int], ...] = ()


class PartitionMoved(Unavailable):
    """A record was given an offset at or below one that the partition had before: it lost records,
    or is another one by now. The transaction was aborted."""

    code = "partition_moved"


class StaleWriter(CellfeedError):
    code = "stale_writer"
    http_status = 409


class StaleView(CellfeedError):
    code = "stale_view"
    http_status = 409


class DataDamaged(CellfeedError):
    code = "data_damaged"


class ProtectData(CellfeedError):
    code = "protect_data"
    exit_code = 3


class DictionaryLost(ProtectData):
    code = "dictionary_lost"


class WrongServerSettings(ProtectData):
    code = "wrong_server_settings"


class OtherHistory(ProtectData):
    """A worker serves another history than the one that the client has worked with: a neighbour's
    store at the same address, or a store that was restored. Nothing was written."""

    code = "other_history"
    http_status = 421


class NodeAhead(ProtectData):
    """A node has something that its master has not."""

    code = "node_ahead"


class GroupTaken(ProtectData):
    """A group has another trigger: both would share its cells. The message names both and the
    cure."""

    code = "group_taken"


class IncompatibleSchema(ProtectData):
    """A schema that breaks the declared rule to an earlier version; the message names field and
    rule."""

    code = "incompatible_schema"


def _tree(root: type[CellfeedError]) -> dict[str, type[CellfeedError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_from_code(code: str, message: str) -> CellfeedError:
    """The error that a server named by ``code``; an unknown code (a newer server) becomes
    :class:`CellfeedError`."""
    return _tree(CellfeedError).get(code, CellfeedError)(message)
