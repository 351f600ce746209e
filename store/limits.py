"""Every limit of the product: a name, a unit, a reason. Nothing here is a promise to the caller to
accept more.

Limits that cross module borders live here; a limit of one module stays beside its code.
"""

from __future__ import annotations

from typing import Final

# --- cells ----------------------------------------------------------------------------------------
BODY_BYTES_MAX: Final = 1 << 20
"""Canonical JSON of one body, bytes. A cell must fit a Kafka record (brokers default to 1 MiB
batches) with room for its envelope."""

BODY_DEPTH_MAX: Final = 64
"""Nesting of objects and arrays in a body. Keeps every recursive reader (ours and the consumers')
far from its stack's end."""

COLUMN_NAME_BYTES_MAX: Final = 128
"""UTF-8 bytes of a column name. It is stored beside every cell and is part of the unique key of
each shard."""

REF_KEY_MIN: Final = -(1 << 63)
REF_KEY_MAX: Final = (1 << 63) - 1
"""A signed 64-bit integer: BIGINT in MySQL, INTEGER in SQLite, long in Avro."""

JSON_INTEGER_MIN: Final = -(1 << 63)
JSON_INTEGER_MAX: Final = (1 << 64) - 1
"""Integers inside bodies: the range that MessagePack (codec 1) can hold without loss."""

SHARDS_MAX: Final = 8_192
"""Shards of a new datastore; a shard is a Kafka partition. So many serve triggers, indexes and one
consumer of all of them: ``tests/integration/triggers/test_most_shards.py``. A consumer on
librdkafka received nothing from a topic of 16,384 partitions."""

SHARDS_STORED_MAX: Final = 65_536
"""Shards of a datastore that an earlier version made, which opens as before: a SQLite row position
keeps 16 bits for the shard."""

ADDED_ID_MAX: Final = (1 << 47) - 1
"""Cells of one shard; the bits of a 63-bit SQLite row position that the shard leaves."""

# --- puts -----------------------------------------------------------------------------------------
BATCH_CELLS_MAX: Final = 5_000
"""Cells in one transaction of a put call (a longer call is several); longer ones would hold the
shard counters too long."""

BATCH_BYTES_MAX: Final = 8 << 20
"""Body bytes after which a put call is cut into another batch: a quarter of the bytes that a worker
takes in one request."""

GROUP_CELLS_MAX: Final = 5_000
"""Cells that the group commit puts into one transaction, several callers together."""

GROUP_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Body bytes that the group commit puts into one transaction, several callers together (a call
larger than this is a group of its own). Such a group of bodies near their limit is held several
times over (statements, the server's packets, the binary log's cache): this keeps it far below a
gigabyte."""

WRITE_QUEUE_CELLS_MAX: Final = 50_000
"""Cells waiting for the group commit. Past that a put is refused as ``overloaded`` (definite)
rather than queued without end."""

WRITE_QUEUE_BYTES_MAX: Final = 256 << 20
"""Body bytes waiting for the group commit, for the same reason: 50,000 bodies near their limit
would be 50 GB."""

PUT_TIMEOUT_S: Final = 10.0
"""How long a put waits for its commit before it is answered ``outcome_unknown``."""

# --- reads ----------------------------------------------------------------------------------------
READ_KEYS_MAX: Final = 5_000
"""Keys in one batch read."""

SCAN_CELLS_MAX: Final = 10_000
"""Cells in one answer of a log scan."""

SCAN_BYTES_MAX: Final = 8 << 20
"""Encoded body bytes after which a log scan stops (it always returns at least one cell)."""

SCAN_DECODED_BYTES_MAX: Final = 16 << 20
"""Decoded body bytes after which a log scan stops (it always returns at least one cell): bodies
that compress well are a thousand times as large in memory."""

READ_BYTES_MAX: Final = 16 << 20
"""Decoded body bytes of one page of a read by key, or of an index. The body that passes it is the
last. A worker holds an answer some three times over (bodies, message, socket), for each of its
eight read threads: this keeps them below half a gigabyte."""

SCAN_SHARDS_BYTES_MAX: Final = 2 * SCAN_DECODED_BYTES_MAX
"""Decoded body bytes of one answer with pieces of many logs, each of which has at least one cell;
beyond it the caller must ask for fewer shards."""

# --- trims ----------------------------------------------------------------------------------------
TRIM_STEP_CELLS: Final = 1_000
"""Cells that one transaction of a trim deletes: it holds the shard's counter, so puts to that shard
wait for it, some ten milliseconds."""

TRIM_STEP_BYTES: Final = 8 << 20
"""Encoded body bytes after which such a transaction ends (it always deletes one cell): the binary
log carries every row that was deleted."""

# --- erasures -------------------------------------------------------------------------------------
ERASE_STEP_CELLS: Final = 1_000
"""Bodies that one transaction of an erasure takes away, for the same reason. A row seldom has more
cells."""

# --- HTTP -----------------------------------------------------------------------------------------
HTTP_BODY_BYTES_MAX: Final = 32 << 20
"""One HTTP request body; a streamed NDJSON put is not held in memory and has no such limit."""

# --- state beside the log -------------------------------------------------------------------------
STATE_KEY_BYTES_MAX: Final = 512
STATE_VALUE_BYTES_MAX: Final = 1 << 20
"""One entry of the state table (leases, offsets, parked cells)."""

# --- dictionaries ---------------------------------------------------------------------------------
DICTIONARY_BYTES: Final = 16 << 10
"""Content of a dictionary, bytes. Of taxi trips 16 KiB save as much as 64 KiB, within two per cent;
every reading process keeps it in memory."""

DICTIONARIES_MAX: Final = 256
"""Dictionaries of a datastore, of all columns and all times: each is kept for ever, in every
reading process too (60 kB with zstd's table)."""

# --- security -------------------------------------------------------------------------------------
SCRAM_ITERATIONS: Final = 8_192
"""Of a new credential; Kafka's default is 4,096, the least that RFC 7677 allows. Some 5 ms for a
client that knows the password, and for each guess."""

PASSWORD_BYTES_MAX: Final = 1_024
PRINCIPAL_BYTES_MAX: Final = 255
"""UTF-8 bytes of a password, and of a user's name or a certificate's subject."""

CERTIFICATES_LOOK_S: Final = 5.0
"""How often the files of certificates are looked at; SIGHUP asks for a look at once."""

SECURITY_LOOK_S: Final = 0.5
"""How often users, tokens and ACLs are read: a change is in force within a second, on connections
that are open as well."""

CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
"""Open connections from one address: a host full of consumers fits, and leaves room for others."""

QUOTA_DEBT_MAX_S: Final = 60.0
"""The longest debt of a principal against one of its rates: however much it asked for at once, it
waits no longer than so many seconds of its own silence."""

QUOTA_PRINCIPALS_MAX: Final = 10_000
"""Principals whose use is remembered, 400 bytes each; the least recently seen are forgotten."""

QUOTA_BYTES_MIN: Final = 64 << 10
"""The least rate of bytes in a quota: one answer has at least one batch of cells."""

STRANGERS_MAX: Final = 1_000
STRANGERS_PER_ADDRESS_MAX: Final = 500
"""Connections whose peer has not come through TLS and authentication yet; at most half of all
connections. An honest one needs milliseconds for that, so these are thousands in a second."""

ACCEPT_PAUSE_S: Final = 0.5
"""How long a listener rests when the process has no descriptor or memory left for a connection."""

AUTHENTICATION_THREADS: Final = 1
"""Threads that verify passwords: 5 ms each, so 200 logins in a second. Guesses take one core at
most, and wait for each other, not commits for them."""

AUTHENTICATION_TIMEOUT_S: Final = 10.0
"""From a connection's beginning to its authentication, TLS and SASL each: a peer that takes longer
is disconnected, however slowly it talks."""

AUTHENTICATION_FAILED_DELAY_S: Final = 0.2
"""The answer to a failed authentication waits for so long: guessing is slow, and the time reveals
nothing."""

PEER_WARNINGS_MAX: Final = 20
PEER_WARNINGS_S: Final = 60.0
"""Warnings of one kind about acts of peers (malformed frames, refused connections, failed logins)
that are written in so many seconds, all peers together. The others are counted, and one line has
their number. Two hundred bytes each: a peer that does nothing else costs a disk 6 MB a day."""

TLS_SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a closed connection waits for its peer's end of TLS."""
