"""Whether the records of a topic are of this datastore's logs: each is compared with the cell that
it names.

An export begins in a topic only when **all** its partitions pass, also those of other units, and
also where the last cell was trimmed. Kafka keeps no word of the datastore. So a partition that is
empty says nothing of its topic, and neither does a record whose cell is gone. Later the id of the
topic, in the export's terms, shows that it is still the topic that passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from cellfeed.bridge.events.record_headers import COLUMN_NAME, REF_KEY
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import consumer_of
from cellfeed.bridge.export.tails import LastRecord, PartitionTail, read_tails
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head, LogRange
from cellfeed.store.errors import ProtectData, Unavailable
from cellfeed.store.limits import ADDED_ID_MAX


def refuse_foreign_topic(export: Export, datastore: Datastore, topic: str) -> None:
    """Raises ProtectData unless an export of the datastore may begin in the topic; KafkaException,
    Unavailable."""
    with closing(consumer_of(export)) as consumer:
        tails = read_tails(consumer, topic, range(datastore.shards))
    if wrong := not_of_logs(datastore, tails):
        raise ProtectData(
            f"export {export.name} of history {datastore.history_id} does not begin in topic"
            f" {topic!r}: {wrong[0]}"
            + (f" (and {len(wrong) - 1} more)" if wrong[1:] else "")
            + ". Give this export a topic of its own"
        )


def not_of_logs(datastore: Datastore, tails: Mapping[int, PartitionTail]) -> list[str]:
    """Why the records of partitions are not shown to be of this datastore's logs. Raises
    Unavailable."""
    heads, wrong = datastore.engine.heads(sorted(tails)), list[str]()
    if away := [shard for shard in heads if heads[shard].next_added_id >= ADDED_ID_MAX]:
        raise Unavailable(
            f"nobody can say just now where the log of shard {away[0]} ends: its master is away"
        )
    for shard, (tail, last) in tails.items():
        if tail.foreign:
            wrong.append(f"partition {shard}: something else than an export writes into it")
        elif tail.added_id is not None and tail.added_id >= heads[shard].next_added_id:
            wrong.append(
                f"partition {shard} holds cell {tail.added_id}, the shard's log ends at"
                f" {heads[shard].next_added_id}"
            )
        elif (
            last is not None
            and tail.added_id is not None
            and (tail.added_id < heads[shard].log_start)
        ):
            wrong.append(
                f"partition {shard}: its last record is of cell {tail.added_id}, which was trimmed:"
                " nothing shows that it was a cell of this datastore"
            )
    return wrong + foreign_partitions(
        datastore, {shard: each.last for shard, each in tails.items()}, heads
    )


def foreign_partitions(
    datastore: Datastore, last: Mapping[int, LastRecord | None], heads: Mapping[int, Head]
) -> list[str]:
    """Partitions whose last record is not of the cell that it names: another log was exported into
    them. A cell that was trimmed cannot be asked about, and is in none of them."""
    known = {
        shard: (record, record.added_id)
        for shard, record in last.items()
        if record is not None
        and record.added_id is not None
        and record.added_id >= heads[shard].log_start
    }
    ranges = [LogRange(shard, added_id, 1) for shard, (_, added_id) in known.items()]
    refused = []
    for wanted, cells in zip(
        ranges, datastore.engine.scan_many(ranges) if ranges else (), strict=True
    ):
        record, added_id = known[wanted.shard]
        if not cells:
            # above the watermark, where no cell can be read yet: it was below it when it was
            # exported
            continue
        cell = cells[0]
        said = (record.key, record.headers.get(COLUMN_NAME), record.headers.get(REF_KEY))
        if cell.added_id != added_id or said != (
            row_key_text(cell.row_key),
            cell.column_name.encode(),
            b"%d" % cell.ref_key,
        ):
            refused.append(
                f"partition {wanted.shard}: its last record says that it is cell {added_id}, and is"
                " not: it is the export of another log"
            )
    return refused
