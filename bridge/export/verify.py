"""Whether a partition is its shard's log: every record compared with the cell, and a digest of each
side (I15, I17).

A comparison resumes where it ended: while an exporter is at work, each look reads only the records
and cells since the one before. Cells that the log has beyond the partition's last record are lag,
not a difference; so are parked ones, which have no record. Trimmed cells are in the partition
alone: comparing begins at the start of the log. The partition still has the body of a cell that was
erased after it was exported, until its retention deletes that. Then key and headers are compared,
and the cell counts as erased on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.export.kafka_clients import consumer_of
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.schema_ids import schema_id_for, typed_format
from cellfeed.bridge.export.shard_comparison import ShardComparison, ShardVerdict
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound


class ExportVerifier:
    """Compares one export. Used by one thread; to be closed. Raises NotFound for an export that has
    never begun."""

    def __init__(self, export: Export, datastore: Datastore) -> None:
        agreed = read_terms(datastore, export.name)
        if agreed is None:
            raise NotFound(f"export {export.name!r} has never begun here")
        self.topic = agreed.topic
        encoder = RecordEncoder(
            export,
            datastore.name,
            schema_id_for(export, self.topic),
            typed_format(export, datastore, self.topic),
        )
        self._consumer = consumer_of(export)
        heads = datastore.heads()
        self._shards = [
            ShardComparison(
                export, datastore, self.topic, encoder, shard, max(start, heads[shard].log_start)
            )
            for shard, start in enumerate(agreed.starts)
        ]

    def look(self, shards: Sequence[int] | None = None) -> Iterator[ShardVerdict]:
        """The verdict on each shard up to where its partition is now. Raises KafkaException,
        Unavailable, DataDamaged."""
        for comparison in (
            self._shards if shards is None else [self._shards[shard] for shard in shards]
        ):
            yield comparison.advance(self._consumer)

    def close(self) -> None:
        self._consumer.close()


def verify_export(
    export: Export, datastore: Datastore, shards: Sequence[int] | None = None
) -> Iterator[ShardVerdict]:
    """Each shard's verdict, once."""
    with closing(ExportVerifier(export, datastore)) as verifier:
        yield from verifier.look(shards)
