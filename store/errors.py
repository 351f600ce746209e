"""One tree of errors for the whole product::

    CellfeedError
    ├── InvalidRequest
    │   ├── InvalidRowKey, InvalidColumn, InvalidRefKey, AnswerTooLarge, UrlTooLong, HeadTooLarge
    │   ├── InvalidBody: BodyTooLarge
    │   ├── InvalidLocation: Trimmed
    │   └── UnsupportedMediaType, MethodNotAllowed
    ├── NotFound: UnknownDatastore, UnknownShard, UnknownRoute
    ├── Unauthenticated, Forbidden
    ├── CellConflict, RowErased, Refused, StaleWriter, StaleView, DataDamaged
    ├── Unavailable
    │   ├── Overloaded: BodiesFull, QuotaExceeded
    │   ├── StorageUnavailable: ShardMoving, ForeignServer, NoMinion
    │   └── WrongAnswer, RequestTimedOut, WaitTimedOut, PartitionMoved, OutcomeUnknown
    └── ProtectData: DictionaryLost, WrongServerSettings, OtherHistory, NodeAhead, GroupTaken,
                     IncompatibleSchema

An error that its own room always catches is no part of the tree, and derives from Exception.

Class attributes guide the caller: ``http_status``; ``retriable`` (the same request may succeed
later; puts are idempotent, so a retry is always safe); ``definite`` (nothing was written). ``code``
is stable; HTTP and ``--json`` show it.
"""

from __future__ import annotations

from typing import ClassVar


class CellfeedError(Exception):
    """Root of every error raised on purpose. ``str(error)`` names value and rule, no secret."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    exit_code: ClassVar[int] = 1

    def as_json(self) -> dict[str, object]:
        """As HTTP and ``--json`` show it: ``{"error", "message", "retriable", "definite"}``."""
        return {
            "error": self.code,
            "message": str(self),
            "retriable": self.retriable,
            "definite": self.definite,
        }


class InvalidRequest(CellfeedError):
    """The caller must change something."""

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


class HeadTooLarge(InvalidRequest):
    """431: the head of an HTTP request has more bytes than one may have."""

    code = "head_too_large"
    http_status = 431


class UrlTooLong(InvalidRequest):
    """414."""

    code = "url_too_long"
    http_status = 414


class AnswerTooLarge(InvalidRequest):
    """The answer would be too large. A caller that can read pages says so in the request."""

    code = "answer_too_large"
    http_status = 413


class InvalidLocation(InvalidRequest):
    code = "invalid_location"


class Trimmed(InvalidLocation):
    """A log was asked for from below its start: the cells there are gone. Nothing is skipped."""

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
    """The named thing is not here."""

    code = "not_found"
    http_status = 404


class UnknownDatastore(NotFound):
    code = "unknown_datastore"


class UnknownShard(NotFound):
    code = "unknown_shard"


class UnknownRoute(NotFound):
    """No such path here: a wrong address is never taken for a cell that is not there."""

    code = "unknown_route"


class Unauthenticated(CellfeedError):
    """401: the request has no credentials, or none that count. Nothing of it was carried out."""

    code = "unauthenticated"
    http_status = 401


class Forbidden(CellfeedError):
    """403: the principal lacks a right, which the message names. Nothing was carried out."""

    code = "forbidden"
    http_status = 403


class CellConflict(CellfeedError):
    """The triple is stored with another body: put the new value under a higher ref key."""

    code = "conflict"
    http_status = 409


class RowErased(CellfeedError):
    """The row key was erased: no cell of it is written again, and no body of it can be had."""

    code = "row_erased"
    http_status = 410


class Refused(CellfeedError):
    """The call is not permitted here."""

    code = "refused"
    http_status = 403


class Unavailable(CellfeedError):
    """The same call may succeed later."""

    code = "unavailable"
    http_status = 503
    retriable = True


class Overloaded(Unavailable):
    """A queue was full; nothing was written."""

    code = "overloaded"
    http_status = 429


class BodiesFull(Overloaded):
    """Request bodies that are coming take all the memory that they may."""

    code = "bodies_full"
    http_status = 503


class QuotaExceeded(Overloaded):
    """The sender asks for more than its quota. ``retry_after_s``: seconds until it may ask."""

    code = "quota_exceeded"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTimedOut(Unavailable):
    """A request did not come to its end in time: nothing of it was carried out."""

    code = "request_timed_out"
    http_status = 408


class StorageUnavailable(Unavailable):
    """The call failed before a commit began."""

    code = "storage_unavailable"


class ShardMoving(StorageUnavailable):
    """The shard is leaving a cluster, or has left it: it is found on the other one soon."""

    code = "shard_moving"


class ForeignServer(StorageUnavailable):
    """A server of another cluster or history answers at a node's address: it is not used."""

    code = "foreign_server"


class NoMinion(StorageUnavailable):
    """A commit would have to wait for a minion, and the cluster's last one was given up."""

    code = "no_minion"


class WrongAnswer(Unavailable):
    """The answer is one to another question: the connection was shared, or mixed up."""

    code = "wrong_answer"
    http_status = 502


class OutcomeUnknown(Unavailable):
    """The commit was sent and no answer came. Put the same cell again to learn the outcome."""

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
    """A partition lost records, or is another one by now. The transaction was aborted."""

    code = "partition_moved"


class StaleWriter(CellfeedError):
    """A leader epoch, lease or generation has moved on."""

    code = "stale_writer"
    http_status = 409


class StaleView(CellfeedError):
    """Index entries come of cells that were trimmed or erased meanwhile: read the cells again."""

    code = "stale_view"
    http_status = 409


class DataDamaged(CellfeedError):
    """Stored bytes do not decode. They are never shown as something else."""

    code = "data_damaged"


class ProtectData(CellfeedError):
    """The program refused to start or to continue, so that no data is hurt."""

    code = "protect_data"
    exit_code = 3


class DictionaryLost(ProtectData):
    """Bodies need a dictionary that is missing or damaged; the message says how to restore it."""

    code = "dictionary_lost"


class WrongServerSettings(ProtectData):
    """A storage server is set up in a way that could lose or mix up cells."""

    code = "wrong_server_settings"


class OtherHistory(ProtectData):
    """Another store, or a restored one, answers at the address. Nothing was written."""

    code = "other_history"
    http_status = 421


class NodeAhead(ProtectData):
    """A node has something that its master has not."""

    code = "node_ahead"


class GroupTaken(ProtectData):
    """A group has another trigger. The message names both and the cure."""

    code = "group_taken"


class IncompatibleSchema(ProtectData):
    """A schema breaks the declared rule; the message names field and rule."""

    code = "incompatible_schema"


def _tree(root: type[CellfeedError]) -> dict[str, type[CellfeedError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_from_code(code: str, message: str) -> CellfeedError:
    """The error that a server named; :class:`CellfeedError` for an unknown code."""
    return _tree(CellfeedError).get(code, CellfeedError)(message)
