"""The changes made to a trigger by hand: author, time, change, reason, and offsets before and
after. Entries are only ever added.

An entry is written in the same commit as its deed. So neither is there without the other.

Keys: ``trigger-history/<group>/<microseconds since 1970 UTC>-<random>``, so the order of the keys
is the order of the deeds, and two at once are two entries.
"""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest

_HISTORY: Final = "trigger-history/"

REASON_CHARACTERS_MAX: Final = 500
"""Of a reason that somebody gives: it is shown in one line with every shard."""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. ``before`` and ``after`` are locations by shard, where the deed moved any (None:
    the shard had no offset)."""

    group: str
    action: str
    by: str
    because: str
    at_us: int
    to: str = ""
    before: dict[int, int | None] = {}
    after: dict[int, int] = {}
    unparked: int = 0
    """Parked cells that were taken off the queue, because the group reaches them again."""


class Operator(msgspec.Struct, frozen=True):
    """The author of an action, and the reason."""

    name: str
    because: str


def operator(because: str) -> Operator:
    """The user of this process: ``user@host``, by the system's word, not the environment's. Raises
    InvalidRequest without a reason in one line."""
    reason = " ".join(because.split())
    if not reason or len(reason) > REASON_CHARACTERS_MAX:
        raise InvalidRequest(
            f"say why, in 1 to {REASON_CHARACTERS_MAX} characters: it is shown with every shard and"
            " kept in the trigger's history"
        )
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return Operator(f"{user}@{socket.gethostname()}", reason)


def entry(deed: Deed) -> Mapping[str, bytes | None]:
    """The state entry of a deed; to be committed together with its deed."""
    return {
        f"{_prefix(deed.group)}{deed.at_us:020d}-{secrets.token_hex(4)}": msgspec.msgpack.encode(
            deed
        )
    }


def history(state: StateTable, group: str) -> list[Deed]:
    """Everything that was done to the group, the earliest first."""
    return [msgspec.msgpack.decode(each.value, type=Deed) for each in state.list(_prefix(group))]


def groups_with_history(state: StateTable) -> set[str]:
    """Those to which something was done by hand."""
    return {unquote(each.key.split("/")[1]) for each in state.list(_HISTORY)}


def _prefix(group: str) -> str:
    return f"{_HISTORY}{quote(group, safe='')}/"
