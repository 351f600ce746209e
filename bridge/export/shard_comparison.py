"""One shard's partition beside its log: every record compared with the cell, and a digest of each
side (I15, I17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from confluent_kafka import Consumer, Message

from cellfeed.bridge.events.cloud_events import envelope_of
from cellfeed.bridge.events.envelope import decode_envelope
from cellfeed.bridge.events.erased_records import erased_headers
from cellfeed.bridge.events.messages import header_values
from cellfeed.bridge.events.record_headers import LeaderEpochs, added_id_of
from cellfeed.bridge.events.views import ViewReader
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.partition_records import PartitionRecords
from cellfeed.bridge.export.records import CLAIM_CHECK, OutRecord, RecordEncoder
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON, StoredCell
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore

_CELLS_AT_A_TIME: Final = 2_000


@dataclass
class ShardVerdict:
    """One shard. ``until``: the id after the last record that was compared. ``differs_at``: the
    first added_id that is not the same on both sides, and ``what``."""

    shard: int
    cells: int = 0
    until: int = 0
    erased_since: int = 0
    """Cells among them that the partition still has the bodies of, erased since they were
    exported."""
    partition_digest: str = ""
    log_digest: str = ""
    differs_at: int | None = None
    what: str = ""

    @property
    def equal(self) -> bool:
        return self.differs_at is None


class ShardComparison:
    """One shard's: compared records stay compared. ``start``: the first id to compare; records
    before it are passed over."""

    def __init__(
        self,
        export: Export,
        datastore: Datastore,
        topic: str,
        encoder: RecordEncoder,
        shard: int,
        start: int,
    ) -> None:
        self._export = export
        self._datastore = datastore
        self._records = PartitionRecords(topic, shard)
        self._encoder = encoder
        self._view = ViewReader(export.view)
        self._shard = shard
        self._start = self._location = start
        self._waiting: list[tuple[OutRecord, StoredCell, bytes]] = []
        """Records as they must be, of cells behind the last one that was compared."""
        self._in_partition, self._in_log = ShardDigest(), ShardDigest()
        self._parked: set[int] = set()
        self._erased: dict[int, StoredCell] = {}
        """Erased cells of the log that the view leaves out, since its conditions cannot be asked
        any more: the partition may have them."""
        self._verdict = ShardVerdict(shard, until=start)

    def advance(self, consumer: Consumer) -> ShardVerdict:
        """Compares the new records."""
        verdict = self._verdict
        if verdict.equal:
            parked = ParkedCells(self._datastore.state)
            group, name = self._export.group, self._datastore.name
            cells = [*parked.of_partition(group, name, self._shard), *parked.skipped(group)]
            self._parked = {
                cell.added_id
                for cell in cells
                if cell.topic == name and cell.partition == self._shard
            }
            for message in self._records.new(consumer):
                if not self._compare(message):
                    break
        verdict.partition_digest, verdict.log_digest = (
            self._in_partition.hexdigest(),
            self._in_log.hexdigest(),
        )
        return verdict

    def _compare(self, message: Message) -> bool:
        """Whether the record is the log's next one."""
        headers = header_values(message)
        added_id = added_id_of(headers.items())
        if added_id is None:
            return self._differ(
                self._location,
                f"the record at offset {message.offset()} has no header added_id: something else"
                " wrote it",
            )
        if added_id < self._start:
            return True
        wanted = self._wanted(added_id)
        if (left_out := self._erased.get(added_id)) is not None:
            self._waiting += [wanted] if wanted is not None else []
            return self._compare_erased(message, left_out)
        if wanted is None:
            return self._differ(
                added_id,
                f"the partition holds cell {added_id}, which the log does not show behind cell"
                f" {self._location - 1}",
            )
        record, cell, body = wanted
        if record.added_id != added_id:
            first = min(record.added_id, added_id)
            return self._differ(
                first,
                f"the partition continues with cell {added_id}, the log with cell"
                f" {record.added_id}",
            )
        value = message.value()
        if (
            value != record.value
            and record.value is not None
            and isinstance(value, bytes)
            and self._encoder.is_as_json(self._shard, cell, body, value)
        ):
            record = record._replace(
                value=value
            )  # it was exported before the version that its body fits
        got = (message.key(), value, headers, message.timestamp()[1])
        if record.value is None and value is not None:
            return self._compare_erased(message, cell)
        if got != (record.key, record.value, dict(record.headers), record.timestamp_ms):
            return self._differ(
                added_id,
                f"cell {added_id} is another one in the partition: key, value, headers or"
                " timestamp",
            )
        self._in_log.add(added_id, cell.row_key, cell.column_name, cell.ref_key, body)
        self._in_partition.add(added_id, *self._carried(message, headers, cell))
        self._verdict.cells += 1
        self._verdict.until = self._location = added_id + 1
        return True

    def _compare_erased(self, message: Message, cell: StoredCell) -> bool:
        got = (message.key(), message.timestamp()[1])
        if (
            got != (row_key_text(cell.row_key), cell.created_at_us // 1000)
            or not dict(erased_headers(cell)).items() <= header_values(message).items()
        ):
            return self._differ(
                cell.added_id,
                f"cell {cell.added_id}, erased since, is another one in the partition: key, headers"
                " or timestamp",
            )
        for digest in (self._in_log, self._in_partition):
            digest.add(cell.added_id, cell.row_key, cell.column_name, cell.ref_key, ERASED_JSON)
        self._verdict.cells += 1
        self._verdict.erased_since += 1
        self._verdict.until = self._location = cell.added_id + 1
        return True

    def _carried(
        self, message: Message, headers: dict[str, bytes], cell: StoredCell
    ) -> tuple[bytes, str, int, bytes]:
        """Row key, column, ref key and body that a record carries. A claim check carries no body, a
        typed one another spelling of it, one in milliseconds is no envelope: such have been
        compared as records, and their cells stand for them."""
        value = message.value()
        if not isinstance(value, bytes):
            return (
                cell.row_key,
                cell.column_name,
                cell.ref_key,
                ERASED_JSON,
            )  # as it must be: it has been compared with the cell's record
        if (
            CLAIM_CHECK in headers
            or self._export.format == "typed"
            or self._export.created_at != "micros"
        ):
            return cell.row_key, cell.column_name, cell.ref_key, self._view.read([cell])[1][0]
        event = decode_envelope(
            envelope_of(value) if self._export.format == "cloudevents" else value
        )
        return UUID(bytes=event.row_key).bytes, event.column_name, event.ref_key, event.body_json

    def _wanted(self, added_id: int) -> tuple[OutRecord, StoredCell, bytes] | None:
        """The next record as the log has it; None when there is none up to ``added_id``."""
        while True:
            # One that was parked before it was erased has no record, and its entry of the queue is
            # gone.
            while (
                self._waiting
                and self._waiting[-1][0].added_id < added_id
                and _may_lack_record(self._waiting[-1][1])
            ):
                self._waiting.pop()
            if self._waiting or self._location > added_id:
                return self._waiting.pop() if self._waiting else None
            cells = self._datastore.engine.scan(self._shard, self._location, _CELLS_AT_A_TIME)
            if not cells:
                return None
            self._location = cells[-1].added_id + 1
            epochs = LeaderEpochs(self._datastore.engine.leader_epochs(self._shard), 0)
            shown = {
                cell.added_id: (cell, body)
                for cell, body in zip(*self._view.read(cells), strict=True)
            }
            self._erased = {
                cell.added_id: cell
                for cell in cells
                if is_erased(cell.body) and cell.added_id not in shown
            }
            records = [
                record
                for record in self._encoder.encode(self._shard, cells, epochs).records
                if record.added_id not in self._parked
            ]
            self._waiting = [(record, *shown[record.added_id]) for record in reversed(records)]

    def _differ(self, added_id: int, what: str) -> bool:
        self._verdict.differs_at, self._verdict.what = added_id, what
        return False


def _may_lack_record(cell: StoredCell) -> bool:
    return is_erased(cell.body) and cell.column_name != ERASED_COLUMN
