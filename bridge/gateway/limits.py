"""The gateway's limits: bounds on the memory, waits and bytes that one peer can cause."""

from __future__ import annotations

from typing import Final

CONNECTIONS_MAX: Final = 4_000
"""Open connections. A client opens one to three; past the limit a new one is closed at once, and
the open ones stay."""

FRAME_BYTES_MAX: Final = 4 << 20
"""One request. Fetches of thousands of partitions and refused Produce requests fit; more costs the
peer its connection."""

LARGE_FRAME_BYTES: Final = 64 << 10
"""A request above this takes its room from LARGE_FRAMES_BYTES_MAX, and is parsed beside the event
loop; usual requests are far below."""

LARGE_FRAMES_BYTES_MAX: Final = 64 << 20
"""Large requests that are read or parsed at the same time, all connections together, each with at
most twice its received bytes; the next one waits in its sender's socket."""

REQUEST_ELEMENTS_MAX: Final = 150_000
"""Array elements in one request, nested ones too: every partition of a topic with SHARDS_STORED_MAX
shards, twice. Bounds the objects made of a frame."""

REQUESTS_AHEAD_MAX: Final = 7
"""Requests of one connection that were read while another one is being answered; Kafka's clients
send five without waiting. More wait in the socket, but for small ones."""

SMALL_REQUESTS_AHEAD_MAX: Final = 255
SMALL_REQUESTS_AHEAD_BYTES: Final = 64 << 10
"""Bytes that may be read ahead, for all of them together. librdkafka asks for the
offsets of each partition by itself, thousands of times without waiting: requests that were read
together share a look at the store."""

FRAME_TIMEOUT_S: Final = 30.0
"""From a frame's first byte to its last, the wait for room among it: a peer that stops half-way is
let go."""

IDLE_TIMEOUT_S: Final = 600.0
"""A connection without any request; Kafka's own ``connections.max.idle.ms`` is ten minutes."""

SEND_TIMEOUT_S: Final = 60.0
"""How long a peer may leave an answer unread while the socket's buffers are full."""

THROTTLE_MAX_S: Final = 1.0
"""How long a request waits for the quota of its principal; Kafka's own quota window is a second. A
heartbeat that waits for longer would cost a member its group."""

THROTTLE_FETCH_MAX_S: Final = 20.0
"""How long a Fetch does: less than the 30 s after which clients give a request up."""

STOP_TIMEOUT_S: Final = 2.0
"""How long a gateway that ends waits for a peer that does not take its last answers."""

FETCH_WAIT_MAX_S: Final = 60.0
"""Longest long poll, also where the request asks for a longer one."""

FETCH_BYTES_MAX: Final = 32 << 20
"""Record bytes in one Fetch answer, also where the request asks for more; one batch is always sent,
so a consumer never stands still."""

FETCH_PARTITIONS_KEPT_MAX: Final = 500_000
"""Partitions that are kept of fetches, all connections together, some 600 bytes each: 120 consumers
of 4,096 partitions, or 4,000 of 125. A connection that gets no room is answered in full each
time."""

FETCH_SESSION_PARTITIONS_MAX: Final = 150_000
"""Partitions of one fetch session: as many as one request may name."""

FETCH_KEPT_S: Final = 120.0
"""A kept fetch makes room for others when it was not used for so long; one that is older makes room
for a larger one. Kafka's ``min.incremental.fetch.session.eviction.ms``."""

UNSENT_BYTES_MAX: Final = 256 << 20
"""Record bytes of answers that wait for their peers to read them, all connections together: 32 of
the largest answers to several addresses."""

TLS_PIECE_BYTES: Final = 128 << 10
"""An answer over TLS is encrypted in such pieces, each when the peer has taken those before it: the
encrypted bytes are a copy, where a plain answer is the kept blocks themselves."""

FETCH_WORK_S: Final = 0.5
"""After this a Fetch answers with the records it has: it may pass over any number of cells that a
view leaves out, and clients ask other things on the same connection. At least one piece of the log
is passed, so a consumer never stands still."""

BLOCK_CELLS: Final = 500
"""Offsets in one kept block. A reader from the middle gets the whole block: at most 499 records
that it skips."""

BLOCK_BYTES_MAX: Final = 16 << 20
"""Record bytes after which a piece of the log that is read and encoded at once ends, before
``BLOCK_CELLS`` where bodies are large: 500 at their limit are half a gigabyte. Such a piece ends
with the batch that passes it."""

BLOCKS_BYTES_MAX: Final = 256 << 20
"""Memory for kept blocks; the least recently used go first."""

BLOCK_FILES_WAITING_BYTES_MAX: Final = 32 << 20
"""Encoded blocks that wait to be written to files; while so many wait, others are not written. A
disk that stands still costs this much memory."""

DECLARED_TOPICS_MAX: Final = 100
"""Virtual topics in a configuration: each may have its own blocks of the whole log in
BLOCKS_BYTES_MAX, and is in every client's list of topics."""

NEWEST_CELLS: Final = 1_000
"""Offsets of a topic ``@latest`` that are looked up and encoded together below a reader's "now":
one query for them takes a few milliseconds."""

LATEST_READS_MAX: Final = 100_000
"""Reads of topics ``@latest`` whose live location is remembered, some 300 bytes each:
2,000 consumers of 50 partitions."""

GROUP_MEMBERS_MAX: Final = 1_000
"""Members of one consumer group."""

GROUPS_MAX: Final = 10_000
"""Groups with members at one time; more are refused until some end."""

GROUP_METADATA_BYTES_MAX: Final = 512 << 10
"""Subscription or assignment of one member, bytes: four per partition, so it must hold several
topics of thousands of shards. Kept in memory for as long as it is a member; all assignments of a
generation come in one frame."""

CLIENT_ID_BYTES_MAX: Final = 255
"""The part of a client's name for itself that is read. It begins the names of group members, which
are in requests and answers of all members."""

GROUP_ID_BYTES_MAX: Final = 200
"""UTF-8 bytes of a group's name: with its escapes and a topic's name it is a key of the state table
(STATE_KEY_BYTES_MAX)."""

OFFSET_METADATA_BYTES_MAX: Final = 4_096
"""Text kept with a committed offset; Kafka's ``offset.metadata.max.bytes``."""

SESSION_TIMEOUT_MIN_S: Final = 0.5
SESSION_TIMEOUT_MAX_S: Final = 1_800.0
"""Session time-outs that members may ask for; Kafka's own upper limit is 30 minutes."""

GENERATIONS_RESERVED: Final = 1_000
"""Generations that a coordinator reserves of a slot at once; more when half of them are used. A
generation is 31 bits: two million takeovers of a slot."""

COORDINATION_LOOK_S: Final = 0.3
"""How often a gateway looks who is there: a slot that was given back is another's after so long,
twice at most."""

COORDINATION_THREADS: Final = 4
"""Threads for commits and looks at offsets, apart from those that read cells: with the coordination
away they wait for their time-outs, and fetches continue."""

DESCRIPTORS_RESERVED: Final = 256
"""Descriptors that connections leave to a gateway: files of the store, of kept blocks and of
dictionaries, and its own connections."""

AUTHENTICATION_FRAME_BYTES_MAX: Final = 16 << 10
"""One request before authentication. Tokens have some hundred bytes; nobody unknown makes the
gateway hold more."""

AUTHENTICATION_REQUESTS_MAX: Final = 10
"""Requests before authentication: ApiVersions twice, SaslHandshake, and two messages of SCRAM are
five."""
