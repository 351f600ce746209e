"""One digest per shard from each place that holds a datastore's cells, and whether they agree
(I17).

Places keep growing while they are read. So the places are first asked how far each shard is; the
digests are then taken of the cells below the smallest of these ids, which every place has.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.events.envelope import DecodedEvent
from cellfeed.bridge.events.messages import cell_of_message
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import ERASED_JSON
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.log_gaps import GapCheck, named_damage
from cellfeed.store.errors import DataDamaged, Unavailable
from cellfeed.store.limits import SCAN_CELLS_MAX

SILENCE_MAX_S: Final = 30.0
"""How long a topic may send nothing before its end is reached: longer than a client's own retries
after a lost connection."""

DAMAGE_MAX: Final = 100
"""Places of one shard with lost or damaged cells that are named; `cellfeed check` counts the
others."""

_SCAN_CELLS: Final = min(2_000, SCAN_CELLS_MAX)
_CONSUME_RECORDS: Final = 5_000
_CONSUME_WAIT_S: Final = 1.0


class Erased:
    """The cells that have no body any more, as far as the places that were read tell."""

    def __init__(self) -> None:
        self._ids: dict[int, set[int]] = {}

    def body(self, shard: int, added_id: int, body_json: bytes) -> bytes:
        """What goes into a digest for a cell that has this body in a place."""
        if body_json == ERASED_JSON:
            self._ids.setdefault(shard, set()).add(added_id)
        return ERASED_JSON if added_id in self._ids.get(shard, ()) else body_json


class Place(Protocol):
    """Somewhere that a datastore's cells are."""

    @property
    def name(self) -> str: ...

    def first_ids(self) -> dict[int, int]:
        """Per shard the added_id that the log of this place starts with, as it was trimmed; 0 for a
        shard left out."""
        ...

    def next_ids(self) -> dict[int, int]:
        """Per shard the added_id behind the last one held. A shard left out holds nothing."""
        ...

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        """The digest of every shard of ``ids``, of the cells with the added_ids given there. Adds
        to ``erased`` the cells that have no body here; those that it has already go into the digest
        as such, whatever this place has of them still."""
        ...


class StorePlace:
    """The store itself, in process or over HTTP."""

    name = "store"

    def __init__(self, store: CellStore) -> None:
        self._store = store
        self.gaps: dict[int, list[range]] = {}
        """By shard the ids that the log lacks, as found while digests were taken."""
        self.damaged: dict[int, list[range]] = {}
        """By shard the ids whose cells are damaged."""
        self.unread_from: dict[int, int] = {}
        """By shard the id from which on nothing was read, for more than ``DAMAGE_MAX`` places
        before it are damaged."""

    def first_ids(self) -> dict[int, int]:
        return {shard: head.log_start for shard, head in self._store.heads().items()}

    def next_ids(self) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self._store.heads().items()}

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        return {shard: self._digest(shard, each, erased) for shard, each in sorted(ids.items())}

    def _digest(self, shard: int, ids: range, erased: Erased) -> ShardDigest:
        digest, location, gaps = ShardDigest(), ids.start, GapCheck(shard, ids.start)
        limit, places = _SCAN_CELLS, 0
        while location < ids.stop:
            try:
                piece = self._store.get_cells_for_shard(shard, location, limit)
            except DataDamaged as error:
                named = named_damage(str(error))
                if named is None or named.shard != shard or named.ids.start < location:
                    raise
                if named.ids.start > location:
                    # First what lies before it, in ever smaller pieces: behind a gap a piece
                    # reaches further than its ids.
                    limit, location = (
                        min(limit // 2, named.ids.start - location),
                        location if limit > 1 else named.ids.start,
                    )
                    limit = max(limit, 1)
                    continue
                if (places := places + 1) > DAMAGE_MAX:
                    self.unread_from[shard] = location
                    return self._ended(shard, digest, gaps)
                if not named.is_lost:
                    self.damaged.setdefault(shard, []).append(named.ids)
                    gaps.add(location, "", b"")
                location, limit = named.ids.stop, _SCAN_CELLS
                continue
            limit = _SCAN_CELLS
            for cell in piece.cells:
                if cell.added_id < ids.stop:
                    body = erased.body(shard, cell.added_id, cell.body_json)
                    digest.add(
                        cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, body
                    )
                    gaps.add(cell.added_id, cell.column_name, body)
            if not piece.cells:
                break
            location = piece.next_location
        gaps.end(ids.stop)
        return self._ended(shard, digest, gaps)

    def _ended(self, shard: int, digest: ShardDigest, gaps: GapCheck) -> ShardDigest:
        if gaps.missing:
            self.gaps[shard] = gaps.missing
        return digest


class TopicPlace:
    """A topic with a cell in every record: of a gateway, or of a Kafka cluster. Reads by assignment
    and commits no offsets."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        name: str = "gateway",
        consumer_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._topic = topic
        self._config = dict(consumer_config or {})

    def first_ids(self) -> dict[int, int]:
        """Nothing: offsets of a cluster's topic are no ids, and a gateway's log starts where the
        store's does."""
        return {}

    def next_ids(self) -> dict[int, int]:
        """The end offsets: in a cluster's topic they may be ahead of the ids, never behind."""
        return end_offsets(self._bootstrap, self._topic, self._config)

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        digests = {shard: ShardDigest() for shard in ids}
        unread = {shard for shard, each in ids.items() if each}
        if not unread:
            return digests
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"cellfeed-verify-{uuid.uuid4().hex}",
                "isolation.level": "read_committed",
                **self._config,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        try:
            consumer.assign(
                [TopicPartition(self._topic, shard, OFFSET_BEGINNING) for shard in sorted(unread)]
            )
            self._read(consumer, ids, digests, unread, erased)
        except KafkaException as error:
            raise Unavailable(f"reading {self._topic} from {self._bootstrap}: {error}") from error
        finally:
            consumer.close()
        return digests

    def _read(
        self,
        consumer: Consumer,
        ids: Mapping[int, range],
        digests: Mapping[int, ShardDigest],
        unread: set[int],
        erased: Erased,
    ) -> None:
        silence_s = 0.0
        while unread:
            records = consumer.consume(_CONSUME_RECORDS, _CONSUME_WAIT_S)
            # Counted in waits, not by a clock: a machine that was asleep has not been waiting.
            silence_s = 0.0 if records else silence_s + _CONSUME_WAIT_S
            if silence_s >= SILENCE_MAX_S:
                raise Unavailable(
                    f"{self._topic} at {self._bootstrap} sent nothing for {SILENCE_MAX_S:.0f} s,"
                    f" shards {sorted(unread)[:10]} not read whole"
                )
            for record in records:
                shard, error = record.partition(), record.error()
                if shard is None or shard not in unread:
                    continue
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's public name for it)
                        unread.discard(shard)
                    elif not error.retriable():
                        raise Unavailable(
                            f"reading partition {shard} of {self._topic}: {error.str()}"
                        )
                    continue
                cell = cell_of_message(record)
                if cell.shard != shard:
                    raise DataDamaged(
                        f"partition {shard} of {self._topic}, offset {record.offset()}: a cell of"
                        f" shard {cell.shard}"
                    )
                if cell.added_id in ids[shard]:
                    _add(
                        digests[shard],
                        cell._replace(body_json=erased.body(shard, cell.added_id, cell.body_json)),
                    )
                if cell.added_id + 1 >= ids[shard].stop:
                    unread.discard(shard)


class WarehousePlace:
    """A warehouse table."""

    name = "warehouse"

    def __init__(self, directory: Path) -> None:
        self._table = WarehouseTable(directory)

    def first_ids(self) -> dict[int, int]:
        """Nothing: a table keeps what was trimmed from the log."""
        return {}

    def next_ids(self) -> dict[int, int]:
        return self._table.next_ids()

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        return self._table.digests(
            {shard: each.stop for shard, each in ids.items()},
            {shard: each.start for shard, each in ids.items()},
            erased.body,
        )


@dataclass(frozen=True, slots=True)
class ShardVerdict:
    """One shard in all places: the digest of its cells from ``from_id`` on, below ``below_id``, and
    their number, by place; and how far each place was in all. ``from_id``: where the log starts;
    what was trimmed is not compared. Of the store: ``missing``, ids that its log lacks and no
    restore left out; ``damaged``, ids whose cells are damaged; ``unread_from``, where it was read
    no further, for so much before it is damaged."""

    shard: int
    from_id: int
    below_id: int
    digests: dict[str, str]
    cells: dict[str, int]
    next_ids: dict[str, int]
    missing: list[range] = field(default_factory=list)
    damaged: list[range] = field(default_factory=list)
    unread_from: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the store has every cell, as it was written."""
        return not self.missing and not self.damaged and self.unread_from is None

    @property
    def equal(self) -> bool:
        return len(set(self.digests.values())) == 1 and len(set(self.cells.values())) == 1

    @property
    def level(self) -> bool:
        """Whether no place was behind another."""
        return len(set(self.next_ids.values())) == 1


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison found. ``equal`` says that nothing differs; ``level`` that moreover no
    place lacked the newest cells; ``whole`` that the store's logs have no gaps."""

    places: list[str]
    shards: list[ShardVerdict] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return all(verdict.equal for verdict in self.shards)

    @property
    def level(self) -> bool:
        return all(verdict.level for verdict in self.shards)

    @property
    def whole(self) -> bool:
        return all(verdict.whole for verdict in self.shards)

    def cells(self, place: str) -> int:
        """Cells compared in one place."""
        return sum(verdict.cells[place] for verdict in self.shards)

    def as_json(self) -> dict[str, Any]:
        """The report for ``--json``."""
        shards = [
            {
                "shard": verdict.shard,
                "from_id": verdict.from_id,
                "below_id": verdict.below_id,
                "digests": verdict.digests,
                "cells": verdict.cells,
                "next_ids": verdict.next_ids,
                "equal": verdict.equal,
                "missing": [{"from": each.start, "to": each.stop - 1} for each in verdict.missing],
                "damaged": [{"from": each.start, "to": each.stop - 1} for each in verdict.damaged],
                "unread_from": verdict.unread_from,
            }
            for verdict in self.shards
        ]
        return {
            "equal": self.equal,
            "level": self.level,
            "whole": self.whole,
            "places": self.places,
            "cells": {name: self.cells(name) for name in self.places},
            "shards": shards,
        }


def verify(places: Sequence[Place], shards: Iterable[int] | None = None) -> VerifyReport:
    """Compares all places, shard by shard. Raises what a place raises when it cannot be read;
    DataDamaged when one holds what is no cell.

    The places that forget what is erased at once, a store or a gateway, come first: what a topic of
    a Kafka cluster or a table has of it still does not count. With one place the report is that
    place's digests. ``shards``: those to look at; all that any place has, when left out.
    """
    names = [place.name for place in places]
    if len(set(names)) != len(names):
        raise ValueError(f"places must have different names, not {names}")
    reached = {place.name: place.next_ids() for place in places}
    wanted = sorted(set().union(*reached.values()) if shards is None else shards)
    until = {shard: min(ids.get(shard, 0) for ids in reached.values()) for shard in wanted}
    starts = [place.first_ids() for place in places]
    begin = {shard: max(first.get(shard, 0) for first in starts) for shard in wanted}
    erased = Erased()
    store = next((place for place in places if isinstance(place, StorePlace)), None)
    digests = {
        place.name: place.digests(
            {shard: range(begin[shard], until[shard]) for shard in wanted}, erased
        )
        for place in places
    }
    return VerifyReport(
        names,
        [
            ShardVerdict(
                shard=shard,
                from_id=begin[shard],
                below_id=until[shard],
                digests={name: digests[name][shard].hexdigest() for name in names},
                cells={name: digests[name][shard].cells for name in names},
                next_ids={name: reached[name].get(shard, 0) for name in names},
                missing=store.gaps.get(shard, []) if store is not None else [],
                damaged=store.damaged.get(shard, []) if store is not None else [],
                unread_from=store.unread_from.get(shard) if store is not None else None,
            )
            for shard in wanted
        ],
    )


def _add(digest: ShardDigest, cell: DecodedEvent) -> None:
    try:
        digest.add(cell.added_id, cell.row_key, cell.column_name, cell.ref_key, cell.body_json)
    except ValueError as error:
        raise DataDamaged(str(error)) from None
