"""Tokens: where acknowledged puts stand, as a short text that a caller keeps and waits for.

A cell's place is its shard and its ``added_id`` there. A token names the history too, because a
restored or another store has other cells at the same places::

    HISTORY:SHARD.ID,SHARD.FIRST-LAST

Tokens merge. A merged token has one range for each shard, from the lowest of the ids to the
highest. So it stays short, however many puts it stands for. A range may hold cells of other callers
too.

A follower's token (:mod:`cellfeed.store.followed`) has the same form. It names the places that the
follower has passed, from 0 on, and leaves out shards in which it has passed none. That of a
follower that has passed nothing ends behind the colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from cellfeed.store.errors import InvalidRequest, OtherHistory, UnknownShard
from cellfeed.store.limits import ADDED_ID_MAX, SHARDS_STORED_MAX

TOKEN_CHARACTERS_MAX: Final = 4 << 20
"""Of a token's text: a range in each of ``SHARDS_STORED_MAX`` shards fits."""

_HISTORY: Final = r"[!-9;-~]{0,64}"
_RANGE: Final = r"[0-9]{1,5}\.[0-9]{1,15}(?:-[0-9]{1,15})?"
_TOKEN: Final = re.compile(rf"({_HISTORY}):((?:{_RANGE}(?:,{_RANGE})*)?)", re.ASCII)
_FORM: Final = "HISTORY:SHARD.ID,SHARD.FIRST-LAST"


class Places(NamedTuple):
    """The places ``first`` to ``last``, both included, of one shard's log, as added_ids."""

    shard: int
    first: int
    last: int

    def __str__(self) -> str:
        ids = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.shard}.{ids}"


@dataclass(frozen=True, slots=True)
class Token:
    """See the module. ``places`` are sorted by shard, one range for each."""

    history: str
    places: tuple[Places, ...]

    @classmethod
    def parse(cls, text: object) -> Self:
        """The token of a text. Raises InvalidRequest."""
        if not isinstance(text, str):
            raise InvalidRequest(
                f"token {ascii(text)[:80]} is {type(text).__name__}, not text; a put's result has"
                " one as result.token"
            )
        found = _TOKEN.fullmatch(text) if len(text) <= TOKEN_CHARACTERS_MAX else None
        if found is None:
            raise InvalidRequest(
                f"token {ascii(text)[:80]} is not of the form {_FORM}; give a put's result.token as"
                " it is"
            )
        ranges = found[2].split(",") if found[2] else ()
        return cls(found[1], united(_places(each, text) for each in ranges))

    @classmethod
    def passed(cls, history: str, positions: Mapping[int, int]) -> Self:
        """The token of a reader that has passed every place below its position in each shard."""
        return cls(
            history,
            tuple(
                Places(shard, 0, position - 1)
                for shard, position in sorted(positions.items())
                if position
            ),
        )

    @classmethod
    def of(cls, given: Any) -> Self:
        """The token of a text, of another token, of a put's result (anything with a ``token``), or
        all of several together. Raises InvalidRequest for a result without a place: it was
        buffered, or not written."""
        if isinstance(given, cls):
            return given
        if isinstance(given, str | bytes):
            return cls.parse(given)
        if hasattr(given, "token"):
            if given.token is None:
                raise InvalidRequest(
                    f"a put that is {getattr(given, 'outcome', 'without a place')!s} has no place"
                    " to wait for: put the cell again, and use the result that says stored or"
                    " exists"
                )
            return cls.parse(given.token)
        if not isinstance(given, Iterable):
            return cls.parse(given)
        tokens = [cls.of(each) for each in given]
        if not tokens:
            raise InvalidRequest("no token was given: wait for a put's result, or for several")
        return tokens[0].merge(*tokens[1:])

    def merge(self, *others: Self) -> Self:
        """One token for the places of all. Raises OtherHistory, with both ids."""
        for other in others:
            if other.history != self.history:
                raise OtherHistory(
                    f"a token of history {self.history or '(none)'} and one of history"
                    f" {other.history or '(none)'} have no places in common: the stores differ, or"
                    " one was restored"
                )
        return type(self)(
            self.history, united(each for token in (self, *others) for each in token.places)
        )

    def check(self, history: str, shards: int) -> None:
        """Raises OtherHistory, with both ids, for a token of another store; UnknownShard;
        InvalidRequest for a token without places."""
        self.check_history(history)
        if not self.places:
            raise InvalidRequest("the token names no place: there is nothing to wait for")
        self.check_shards(shards)

    def check_history(self, history: str) -> None:
        """Raises OtherHistory, with both ids, for a token of another store."""
        if self.history != history:
            raise OtherHistory(
                f"the token is of history {self.history or '(none)'}, and this store has history"
                f" {history or '(none)'}: it is another store, or was restored; put the cell again"
                " for a token of this one"
            )

    def check_shards(self, shards: int) -> None:
        """Raises UnknownShard for a token with a shard that a store of so many lacks."""
        if self.places and self.places[-1].shard >= shards:
            raise UnknownShard(
                f"the token names shard {self.places[-1].shard}; the datastore has {shards}, 0 to"
                f" {shards - 1}"
            )

    def __str__(self) -> str:
        return f"{self.history}:{','.join(map(str, self.places))}"


def token_text(history: str, shard: int, added_id: int) -> str:
    """The token of one put, as text."""
    return f"{history}:{shard}.{added_id}"


def _places(text: str, token: str) -> Places:
    shard, _, ids = text.partition(".")
    first, _, last = ids.partition("-")
    places = Places(int(shard), int(first), int(last or first))
    if places.shard >= SHARDS_STORED_MAX or not places.first <= places.last <= ADDED_ID_MAX:
        raise InvalidRequest(f"token {ascii(token)[:80]} names {text}, which is no place of a log")
    return places


def united(places: Iterable[Places]) -> tuple[Places, ...]:
    """One range for each shard, sorted by shard: from the lowest of the ids to the highest."""
    found: dict[int, Places] = {}
    for each in places:
        known = found.get(each.shard, each)
        found[each.shard] = Places(
            each.shard, min(known.first, each.first), max(known.last, each.last)
        )
    return tuple(found[shard] for shard in sorted(found))
