"""Whether every dictionary that bodies need is whole on every storage node."""

from __future__ import annotations

from collections.abc import Iterator

from cellfeed.assembly.datastore import dictionary_places
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.store.engines.contract.dictionaries import Condition


def examine_dictionaries(instance: Instance) -> Iterator[Finding]:
    """Looks at each node by itself: a lost dictionary keeps the datastore from being opened. Nodes
    that are away are findings of the servers."""
    with dictionary_places(instance.config, instance.directory.path) as (places, _):
        for place in places:
            kept = place.table.kept()
            lost = [each for each in kept if each.turns and each.condition is not Condition.WHOLE]
            for each in lost:
                yield Finding(
                    "dictionaries",
                    f"{place}: {each.name}",
                    Level.PROBLEM,
                    f"is {each.condition}: no body of column {each.column_name} can be read there",
                    f"cellfeed dictionary recover {each.name}",
                )
            if not lost:
                used = sum(bool(each.turns) for each in kept)
                yield Finding(
                    "dictionaries", str(place), Level.WELL, f"{used} are in use, all whole"
                )
