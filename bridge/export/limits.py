"""The exporter's limits: memory, waits, and amounts of work at a time."""

from __future__ import annotations

from typing import Final

UNITS_MAX: Final = 64
"""Units of one export: each has two producers with four threads each, and a transaction at a
time."""

UNITS: Final = 8
SHARDS_OF_A_UNIT: Final = 64
"""Without a setting there is a unit for so many shards, at most UNITS. A transaction of any size
costs the broker and us 5 to 20 ms, so few large ones are better than many."""

TRANSACTION_CELLS_MAX: Final = 16_000
"""Cells of one transaction: as many are exported again after a crash, and readers that wait for
commits get as many at a time. A first export is a twentieth faster than with 10,000. A transaction
of it takes a ninth of a second; a live shard beside it may have to wait that long."""

TRANSACTION_BYTES_MAX: Final = 8 << 20
"""Bytes of the values in one transaction. One is sent while the next one is read and the cells of
the one after it are fetched. So a unit holds three times as much, and the client's queue."""

READ_AHEAD_CELLS_MIN: Final = 1_000
"""Cells that are left of a unit's logs from which on the next batch is read while one is sent:
fewer are read in a millisecond or two."""

FETCH_AHEAD_CELLS_MIN: Final = TRANSACTION_CELLS_MAX
"""Cells that must be left of a unit's logs behind the batch that is being encoded; with fewer, no
cells are fetched meanwhile for the next batch. With as many, the next batch is full even without
new cells, so no shard's newest cells are late for it."""

SCAN_SHARD_CELLS_MIN: Final = 2_000
"""Cells of each shard that are read at a time, at least, when a unit has many shards that are far
behind. Each shard of a transaction costs a scan, an added partition, a produce request and a mark
at the commit. With 600 cells a shard, store, exporter and broker together take a third more CPU a
cell than with 2,000."""

LIVE_CELLS_MAX: Final = 200
"""A shard that is at most so many cells behind is live: it is in the next transaction however far
behind other shards are. So many are read together with those of other shards, in one round trip."""

CLIENT_QUEUE_KBYTES: Final = 64 << 10
"""Kilobytes that the client library queues of one unit; past them producing waits."""

RECORD_BYTES_MAX: Final = 1_048_588
"""Kafka's own default for ``max.message.bytes``."""

RECORD_BYTES_MIN: Final = 4_096
RECORD_BYTES_CEILING: Final = 16 << 20
RECORD_OVERHEAD_BYTES: Final = 256
"""Bytes that a record batch adds to its one record: its head, the names of the headers, lengths."""

LOOK_GAP_S: Final = 0.01
"""Time between two looks at the logs while no unit asks for one: nobody could use more of them, and
each asks all nodes of all clusters."""

TRANSACTION_TIMEOUT_S: Final = 30.0
"""After how long the broker aborts a transaction whose exporter is gone, if nobody takes its unit
over before. Until then readers of commits wait."""

KAFKA_CALL_S: Final = 5.0
"""How long one call to the cluster waits before it is looked whether the exporter is to end."""

METADATA_S: Final = 15.0
"""How long a look at topics and their settings may take."""

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 2.0
"""Waits between attempts to take a unit over while the cluster is away; doubling from the first. An
attempt makes two producers, and a cluster that is back is noticed so much later at most."""

TOPIC_LOOK_S: Final = 30.0
"""How often an exporter at work checks whether its topic still fits the export: two requests to the
cluster."""

REFUSED_LOOK_S: Final = 5.0
"""How often a unit that stands still checks whether the cause has been mended."""

SAVE_EVERY_S: Final = 0.3
"""Longest time between a commit in Kafka and the group's offset that follows it. The offset is a
mirror: nothing is exported again for its sake."""

IDLE_SAVE_AGAIN_S: Final = 1.0
"""How soon an offset that could not be saved is tried again."""

TAIL_RECORDS_FIRST: Final = 4
TAIL_RECORDS_FACTOR: Final = 16
"""The tail of a partition is looked for in its last few offsets, then in so many times more: behind
the last record there may be marks of aborted transactions."""

TAIL_READ_S: Final = 60.0
"""How long the reading of the tails of a unit's partitions may take without any progress."""

DRAIN_S: Final = 30.0
"""How long an exporter that is asked to stop waits for the transactions under way."""

LEASE_S: Final = 10.0
"""How long a silent exporter keeps its units: the delay after a kill -9."""

POLL_INTERVAL_S: Final = 0.1
"""How often the heads are looked at when no wake-up comes."""

CELLS_PER_S_MAX: Final = 10_000_000
