"""Takes a unit over: checks its topic, reads the ends of its partitions, and decides for each shard
where the export continues.

To be called behind the fence (``unit_producer.py``): then the ends are the ends for good.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.export.batches import Batch, Throttle
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import ExportTerms, start_over
from cellfeed.bridge.export.foreign_topics import foreign_partitions, refuse_foreign_topic
from cellfeed.bridge.export.kafka_clients import admin_of, consumer_of
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.resume import Refusal, Saved, decide, exported_of
from cellfeed.bridge.export.shown_ends import Shown
from cellfeed.bridge.export.tails import read_tails
from cellfeed.bridge.export.topics import ensure_topic
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData, Unavailable
from cellfeed.store.limits import ADDED_ID_MAX

_log: Final = logging.getLogger("cellfeed.export")
_REASONS_MAX: Final = 3
"""Of refusals that the error names, when many shards are refused."""


class TakenOver(NamedTuple):
    """By shard: the next cell, the last one that has a record (-1: none), and the Kafka offset
    after the partition's end. The unit's owner keeps it up to date."""

    locations: dict[int, int]
    exported: dict[int, int]
    ends: dict[int, int]


@dataclass
class ExportContext:
    """The shared parts of one export's units in one process."""

    export: Export
    datastore: Datastore
    coordinator: Coordinator
    topic: str
    terms: ExportTerms
    encoder: RecordEncoder
    throttle: Throttle
    shown: Shown
    heads_wanted: threading.Event
    """Set by units that wait for new heads of the logs."""
    cells: int = 0
    records: int = 0
    repaired: list[str] = field(default_factory=list)
    """Where a saved offset disagreed with its partition, as it was logged; the latest of them."""
    refusal: str | None = None
    """Why the topic must not be exported to any more, found since a unit was taken over; None while
    nothing is known."""

    def counted(self, batch: Batch) -> None:
        """Counts for the progress bar; a few that are lost between threads are no harm."""
        self.cells += batch.cells
        self.records += sum(map(len, batch.records.values()))


def take_over(context: ExportContext, shards: Sequence[int]) -> TakenOver:
    """Raises ProtectData with the reason when one of the shards cannot continue; KafkaException,
    Unavailable."""
    _check_topic(context)
    context.refusal = None
    with closing(consumer_of(context.export)) as consumer:
        tails = read_tails(consumer, context.topic, shards)
    name, group = context.datastore.name, context.export.group
    found = context.coordinator.fetch_offsets(group, [(name, shard) for shard in shards])
    heads = context.datastore.engine.heads(list(shards))
    taken = TakenOver({}, {}, {})
    refused: list[str] = []
    for shard in shards:
        partition, offset = tails[shard], found.get((name, shard))
        if heads[shard].next_added_id >= ADDED_ID_MAX:
            raise Unavailable(
                f"nobody can say just now where the log of shard {shard} ends: its master is away"
            )
        decision = decide(
            partition.tail,
            Saved(offset.offset, exported_of(offset.metadata)) if offset is not None else None,
            start=context.terms.starts[shard],
            log_end=heads[shard].next_added_id,
            starts_over=context.export.on_lost_topic == "start_over",
            log_start=heads[shard].log_start,
            skips_trimmed=context.export.on_trimmed == "skip",
        )
        if isinstance(decision, Refusal):
            refused.append(f"partition {shard}: {decision.because}")
            continue
        if decision.differs and (
            offset is not None or decision.location > context.terms.starts[shard]
        ):
            said = (
                f"partition {shard}: {decision.differs}; the partition is believed, the export"
                f" continues at {decision.location}"
            )
            _log.warning("%s: %s", group, said)
            context.repaired = [*context.repaired, said][-100:]
        taken.locations[shard], taken.exported[shard], taken.ends[shard] = (
            decision.location,
            decision.exported,
            partition.tail.end,
        )
    refused += foreign_partitions(
        context.datastore, {shard: tails[shard].last for shard in taken.locations}, heads
    )
    if refused:
        more = f"; and {len(refused) - _REASONS_MAX} more" if len(refused) > _REASONS_MAX else ""
        raise ProtectData("; ".join(refused[:_REASONS_MAX]) + more)
    return taken


def _check_topic(context: ExportContext) -> None:
    """The topic is as it must be, and the one that the export was begun in."""
    export, starts_over = context.export, context.export.on_lost_topic == "start_over"
    facts = ensure_topic(
        admin_of(export), export, context.topic, context.datastore.shards, make=starts_over
    )
    if facts.topic_id == context.terms.topic_id:
        return
    if not starts_over:
        raise ProtectData(
            f"topic {context.topic!r} was deleted and made again (its id is {facts.topic_id}, the"
            f" export was begun in {context.terms.topic_id}); with `on_lost_topic: start_over`"
            " the export is begun again in it"
        )
    _log.warning(
        "%s: topic %r was deleted and made again: the export begins again in it, as configured",
        export.group,
        context.topic,
    )
    refuse_foreign_topic(export, context.datastore, context.topic)
    context.terms = start_over(context.datastore, export, context.terms, facts.topic_id)


def look_again(context: ExportContext) -> None:
    """Checks whether a topic that is being exported to is still fit, and sets
    :attr:`ExportContext.refusal`. A unit that stops for it is taken over again, and that decides
    whether it continues. Raises KafkaException, Unavailable where the cluster does not answer."""
    try:
        facts = ensure_topic(
            admin_of(context.export),
            context.export,
            context.topic,
            context.datastore.shards,
            make=False,
        )
    except ProtectData as error:
        context.refusal = str(error)
    else:
        context.refusal = (
            None
            if facts.topic_id == context.terms.topic_id
            else f"topic {context.topic!r} was deleted and made again"
        )
