"""Recovers a dictionary that is lost somewhere from where it is whole: another node, another
cluster, or an export.

A storage's own turns name the contents that it needs, each with its SHA-256. So only the very same
content is ever taken. Recovery works on storages that every other command refuses, node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.engines.contract.dictionaries import Condition, DictionaryTable, KeptDictionary
from cellfeed.store.errors import DictionaryLost, InvalidRequest


@dataclass(frozen=True)
class Place:
    """One storage node's dictionaries. ``cluster`` is empty for an embedded datastore."""

    cluster: str
    node: str
    table: DictionaryTable

    def __str__(self) -> str:
        return f"{self.cluster}/{self.node}" if self.cluster else self.node


@dataclass(frozen=True)
class Recovered:
    """``source``: where the content came from."""

    name: str
    column_name: str
    place: str
    source: str


def recover(
    places: Sequence[Place], exported: Sequence[Dictionary] = (), from_cluster: str | None = None
) -> list[Recovered]:
    """Brings back the lost dictionaries that were in use, in every place. ``exported``:
    dictionaries of a file, looked at first; ``from_cluster``: the only one to take from. Raises
    DictionaryLost when one of them is found nowhere, after all others were brought back;
    InvalidRequest for a cluster that is not there."""
    if from_cluster is not None and from_cluster not in {place.cluster for place in places}:
        raise InvalidRequest(
            f"no node of a cluster {from_cluster!r} answers; there are"
            f" {', '.join(sorted({place.cluster for place in places})) or 'none'}"
        )
    sources = [place for place in places if from_cluster in (None, place.cluster)]
    done: list[Recovered] = []
    nowhere: list[str] = []
    for place in places:
        for lost in place.table.kept():
            if lost.condition is Condition.WHOLE or not lost.turns:
                continue
            found = _found(lost, exported, sources)
            if found is None:
                nowhere.append(f"{lost.name} of column {lost.column_name!r} on {place}")
                continue
            dictionary, source = found
            place.table.restore(dictionary)
            done.append(Recovered(lost.name, lost.column_name, str(place), source))
    if nowhere:
        raise DictionaryLost(
            f"dictionary {', '.join(nowhere)} is whole nowhere that was looked at; give an export"
            " of it with --file, or restore a backup"
        )
    return done


def _found(
    lost: KeptDictionary, exported: Sequence[Dictionary], sources: Sequence[Place]
) -> tuple[Dictionary, str] | None:
    for dictionary in exported:
        if dictionary.sha256 == lost.sha256:
            return dictionary, "the file"
    for place in sources:
        found = place.table.find(lost.dictionary_id)
        if found is not None and found.sha256 == lost.sha256:
            return found, str(place)
    return None
