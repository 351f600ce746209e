"""Dictionaries in a storage, beside the cells: the promises of every engine.

    C1  ``add`` returns when the content is on every storage of the datastore, and would be there
        after a promotion. It may be called again. A content whose id another one has is refused.
    C2  ``use`` says that puts of a column take the dictionary from now on. Of two calls at once for
        the same turn, one returns False. The turn is written to a storage only after C1, so the
        content is on every storage that has the turn.
    C3  A put takes only dictionaries that its own storage says are in use, read under the leader
        epoch of the put. So no promotion, clone or kill leaves a body on a storage before its
        dictionary. Where the dictionary was lost meanwhile, the body takes codec 2: a put never
        fails for a dictionary.
    C4  Only a retired content is deleted, once no body names it any more
        (:mod:`cellfeed.store.dictionaries.retiring`). Every open of a storage checks the contents
        that have a turn: DictionaryLost when one is missing or differs.

Two tables: contents, and the turns of each column (0, 1, 2 …), each with the SHA-256 of its
content. The second says which contents the first must have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from cellfeed.store.cells.dictionary import Dictionary, name_of
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.errors import DictionaryLost, StorageUnavailable

_log = logging.getLogger("cellfeed.dictionaries")


class Turn(NamedTuple):
    """A column's dictionary, the ``turn``-th of it, from 0."""

    column_name: str
    turn: int
    dictionary_id: int


Stopped = Mapping[str, int]
"""By cluster the leader epoch under which a dictionary's turns were taken away there; empty for a
storage that has no epochs. No promotion may come between that and the end of its content, for the
new master may lack the change."""


class Condition(StrEnum):
    """How a dictionary is kept on one storage."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class KeptDictionary:
    """A dictionary as one storage has it. ``turns``: of its column, in which it was put to use
    there; none for one that never was. ``trained_at_us``, ``samples`` and ``content_bytes`` are 0
    for a missing one."""

    dictionary_id: int
    column_name: str
    condition: Condition
    sha256: bytes
    turns: tuple[int, ...]
    trained_at_us: int
    samples: int
    content_bytes: int

    @property
    def name(self) -> str:
        return name_of(self.dictionary_id)


class DictionaryStore(Protocol):
    """The dictionaries of a datastore. Raises Unavailable; ProtectData as C1 says."""

    def find(self, dictionary_id: int) -> Dictionary | None:
        """The one of this id, whole; None where it is missing or damaged."""
        ...

    def current(self) -> dict[str, Turn]:
        """The turn that puts take now, by column name, as the master says; only those whose content
        is there."""
        ...

    def count(self) -> int:
        """Dictionaries that are there, in use or not."""
        ...

    def kept(self) -> list[KeptDictionary]:
        """All of them, each looked at."""
        ...

    def add(self, dictionary: Dictionary) -> None:
        """C1."""
        ...

    def use(self, dictionary: Dictionary, turn: int) -> bool:
        """C2. False when the column has had this turn already."""
        ...

    def stop_using(self, dictionary_id: int) -> Stopped:
        """Takes its turns away: a put that gets its locks after this takes another dictionary, or
        none. Returns the argument of :meth:`take_away`."""
        ...

    def take_away(self, dictionary_id: int, stopped: Stopped) -> None:
        """Takes a content away that no body names (C4). Raises StorageUnavailable, nothing done,
        where it was put to use again, or a promotion came since it was stopped."""
        ...

    def complete(self) -> None:
        """Brings the dictionaries of one storage to the others: completes a change that a kill has
        cut off, and fills a storage that joined later."""
        ...


class DictionaryTable(DictionaryStore, Protocol):
    """The dictionaries on one storage."""

    def restore(self, dictionary: Dictionary) -> None:
        """Writes a content that was lost or damaged on this storage, and on this one alone: other
        nodes of its cluster are looked at by themselves."""
        ...

    def check(self) -> None:
        """C4."""
        ...


class NodeDictionaryTable(DictionaryTable, Protocol):
    """The dictionaries on one node of a cluster, where writes come with terms: under others than
    the node's own they are refused (StaleWriter, nothing written)."""

    def add(self, dictionary: Dictionary, terms: WriteTerms | None = None) -> None: ...

    def use(self, dictionary: Dictionary, turn: int, terms: WriteTerms | None = None) -> bool: ...

    def stop_using(self, dictionary_id: int, terms: WriteTerms | None = None) -> Stopped: ...

    def take_away(
        self, dictionary_id: int, stopped: Stopped, terms: WriteTerms | None = None
    ) -> None: ...


def with_turns(
    found: Mapping[int, KeptDictionary], turns: Iterable[tuple[int, str, bytes, int]]
) -> list[KeptDictionary]:
    """The contents found, by id, with the turns ``(id, column name, SHA-256, turn)`` of
    dictionaries that were put to use: a turn names the SHA-256 that its content must have."""
    by_turn: dict[int, list[tuple[int, str, bytes, int]]] = {}
    for row in turns:
        by_turn.setdefault(row[0], []).append(row)
    kept = []
    for dictionary_id in sorted(found.keys() | by_turn.keys()):
        content = found.get(dictionary_id)
        uses = by_turn.get(dictionary_id, [])
        if not uses:
            kept.append(found[dictionary_id])
            continue
        _, column, digest, _ = uses[0]
        numbers = tuple(turn for *_, turn in uses)
        if content is None:
            kept.append(
                KeptDictionary(dictionary_id, column, Condition.MISSING, digest, numbers, 0, 0, 0)
            )
        else:
            condition = content.condition if content.sha256 == digest else Condition.DAMAGED
            sizes = (content.trained_at_us, content.samples, content.content_bytes)
            kept.append(KeptDictionary(dictionary_id, column, condition, digest, numbers, *sizes))
    return kept


def refuse_lost(where: object, kept: Iterable[KeptDictionary]) -> None:
    """Raises DictionaryLost when one that was in use is missing or damaged, naming all of them and
    the way out."""
    lost = [each for each in kept if each.turns and each.condition is not Condition.WHOLE]
    if lost:
        named = ", ".join(
            f"{each.name} of column {each.column_name!r} is {each.condition}" for each in lost
        )
        raise DictionaryLost(
            f"{where}: dictionary {named}: bodies that need it cannot be read. `cellfeed dictionary"
            " recover` brings it back from another node or cluster, or with --file from an export;"
            " on a minion alone `cellfeed cluster rejoin --copy` does as well"
        )


def replacement_retired(where: object, shard: int) -> StorageUnavailable:
    """For bodies that were to be stored with a dictionary that is not in use any more."""
    return StorageUnavailable(
        f"{where}: no body of shard {shard} replaced: the dictionary that they were to be stored"
        " with was retired meanwhile. Try again"
    )


def in_use_again(where: object, dictionary_id: int) -> StorageUnavailable:
    """For a content that was to be taken away."""
    return StorageUnavailable(
        f"{where}: dictionary {name_of(dictionary_id)} was put to use again meanwhile: its content"
        " stays. Retire it again"
    )


def tables_missing(where: object, error: object) -> DictionaryLost:
    """For a storage whose tables of dictionaries are gone altogether."""
    return DictionaryLost(
        f"{where}: the tables of dictionaries cannot be read ({error}): restore the storage from a"
        " copy or a backup; bodies may need them"
    )
