"""Dictionaries as the storage nodes have them, and the nodes on which each is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cellfeed.assembly.datastore import dictionary_places
from cellfeed.cli.instance import config_of
from cellfeed.cli.output import errors
from cellfeed.run_dir import RunDir
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.dictionaries.recovery import Place
from cellfeed.store.engines.contract.dictionaries import Condition, KeptDictionary


@contextmanager
def opened_places(config: Path | None, run_dir: Path) -> Iterator[list[Place]]:
    """Every storage node that answers; the others are named on standard error."""
    with dictionary_places(config_of(run_dir, config), RunDir(run_dir).path) as (
        places,
        silent,
    ):
        for node, why in silent.items():
            errors.print(f"node {node} was not looked at: {why}", highlight=False)
        yield places


class Found(NamedTuple):
    """A dictionary in one place. ``in_use``: puts take it there."""

    place: Place
    kept: KeptDictionary
    in_use: bool


Kept = list[Found]


def by_name(places: list[Place]) -> dict[str, Kept]:
    """Of each dictionary those places first that know most of it."""
    found: dict[str, Kept] = {}
    for place in places:
        all_kept = place.table.kept()
        latest = {(each.column_name, turn): each.name for each in all_kept for turn in each.turns}
        current = {
            column: latest[column, max(turn for name, turn in latest if name == column)]
            for column, _ in latest
        }
        for each in all_kept:
            found.setdefault(each.name, []).append(
                Found(place, each, current.get(each.column_name) == each.name)
            )
    return {
        name: sorted(
            kept, key=lambda one: (one.kept.condition is not Condition.WHOLE, -len(one.kept.turns))
        )
        for name, kept in found.items()
    }


def fields_of(name: str, kept: Kept) -> dict[str, Any]:
    """A dictionary as ``list`` and ``show`` print it."""
    first = kept[0].kept
    use = (
        "in use"
        if any(one.in_use for one in kept)
        else "earlier cells"
        if any(one.kept.turns for one in kept)
        else "unused"
    )
    return {
        "name": name,
        "column": first.column_name,
        "use": use,
        "bytes": first.content_bytes,
        "samples": first.samples,
        "trained_at": (
            datetime.fromtimestamp(first.trained_at_us / 1e6, UTC).isoformat(timespec="seconds")
        ),
        "sha256": first.sha256.hex(),
        "whole_on": [str(place) for place, each, _ in kept if each.condition is Condition.WHOLE],
        "not_whole_on": {
            str(place): str(each.condition)
            for place, each, _ in kept
            if each.condition is not Condition.WHOLE and each.turns
        },
    }


def whole(kept: Kept) -> Dictionary | None:
    """The dictionary from a node that has it undamaged; None where none has."""
    for place, each, _ in kept:
        if each.condition is Condition.WHOLE:
            return place.table.find(each.dictionary_id)
    return None


def joined(names: list[str]) -> str:
    """Names of nodes as text."""
    return ", ".join(names) or "no node"


def not_whole(fields: dict[str, Any]) -> str:
    """The nodes where it is missing or damaged, as text."""
    return ", ".join(f"{node}: {condition}" for node, condition in fields["not_whole_on"].items())
