"""The JSON of a follower, between client and worker (:mod:`cellfeed.store.followed`)."""

from __future__ import annotations

import msgspec

from cellfeed.store.followed import LATEST
from cellfeed.store.http.messages import CellMessage, ErrorMessage


class FollowMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A request to follow the logs. ``columns``, ``shards``: those wanted; all, when left out.
    ``start``: ``latest``, ``earliest``, or an RFC 3339 timestamp with a time zone. ``token``: to
    resume behind its places, in the place of ``start``; a shard that it does not name begins at
    0."""

    start: str = LATEST
    token: str | None = None
    columns: list[str] | None = None
    shards: list[int] | None = None


class FollowLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the answer, with one of three fields; pass over lines with others.

    ``cell``: the next cell. All places before it in its shard are passed, too. ``bookmark``: a
    token of more places that were passed, which may name none. The first line is one, of all places
    before the start. Others follow as heartbeats; ``because`` says why shards are behind.
    ``error``: the last line. A retriable one means to ask again, with a token of all places
    passed."""

    cell: CellMessage | None = None
    bookmark: str | None = None
    because: str = ""
    error: ErrorMessage | None = None
