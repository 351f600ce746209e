"""Where a group is to continue, as people say it: ``earliest``, ``latest``, ``kept``, a moment, or
``SHARD:LOCATION,…``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.triggers.offsets.kept_offsets import last_known
from cellfeed.bridge.triggers.offsets.lineage import lost_offsets
from cellfeed.store.cells.cell import microseconds
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import InvalidLocation, NotFound

FORMS: Final = (
    "earliest, latest, kept (where its workers were), a moment with its zone"
    " (2026-03-01T12:00:00Z), or SHARD:LOCATION,… (the other shards stay)"
)

_GIVEN: Final = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)


def wanted_locations(
    to: str, group: str, datastore: Datastore, coordinator: Coordinator
) -> dict[int, int]:
    """The locations by shard that ``to`` means now; only those of shards that are to move. When the
    group's offsets were lost, all shards have one.

    Raises InvalidLocation for a text that is no location, NotFound for a shard that is missing or
    unknown.
    """
    heads = datastore.heads()
    if to == "earliest":
        return {shard: head.log_start for shard, head in heads.items()}
    if to == "latest":
        return {shard: head.watermark for shard, head in heads.items()}
    if to == "kept":
        known = last_known(datastore.state, group, datastore.name, list(heads))
        if unknown := sorted(set(heads) - set(known)):
            raise NotFound(
                f"nothing is kept of shards {', '.join(map(str, unknown))}: give their locations as"
                " SHARD:LOCATION, or all with earliest or latest"
            )
        return known
    if _GIVEN.fullmatch(to):
        return _with_the_others(_given(to, heads), group, datastore, coordinator)
    at_us = _moment_us(to)
    # A log that has nothing so late ends at its watermark: cells that a minion still lacks do not
    # count.
    return {
        shard: min(datastore.engine.locate(shard, at_us), head.watermark)
        for shard, head in heads.items()
    }


def offsets_by_shard(
    coordinator: Coordinator, datastore: Datastore, group: str
) -> dict[int, int | None]:
    """The offset of every shard, None where there is none."""
    shards = range(datastore.shards)
    found = coordinator.fetch_offsets(group, [(datastore.name, shard) for shard in shards])
    return {
        shard: found[(datastore.name, shard)].offset if (datastore.name, shard) in found else None
        for shard in shards
    }


def _with_the_others(
    given: dict[int, int], group: str, datastore: Datastore, coordinator: Coordinator
) -> dict[int, int]:
    if lost_offsets(datastore.state, coordinator, group, datastore.name) is None:
        return given
    known = last_known(datastore.state, group, datastore.name, range(datastore.shards))
    wanted = {
        shard: given.get(shard, known.get(shard) if offset is None else offset)
        for shard, offset in offsets_by_shard(coordinator, datastore, group).items()
    }
    if missing := [str(shard) for shard, location in wanted.items() if location is None]:
        raise NotFound(f"nothing is known of shards {', '.join(missing)}: give their locations too")
    return {shard: location for shard, location in wanted.items() if location is not None}


def _given(to: str, heads: Mapping[int, Head]) -> dict[int, int]:
    given: dict[int, int] = {}
    for part in to.split(","):
        shard, location = map(int, part.split(":"))
        head = heads.get(shard)
        if head is None:
            raise NotFound(f"there is no shard {shard}; there are {len(heads)}")
        if not head.log_start <= location <= head.watermark:
            raise InvalidLocation(
                f"location {location} is not in shard {shard}, which has {head.log_start} to"
                f" {head.watermark}"
            )
        given[shard] = location
    return given


def _moment_us(to: str) -> int:
    try:
        at = datetime.fromisoformat(to)
    except ValueError:
        raise InvalidLocation(f"{to!r} is none of {FORMS}") from None
    if at.tzinfo is None:
        raise InvalidLocation(f"{to!r} has no time zone: end it with Z for UTC, or with +01:00")
    return microseconds(at)
