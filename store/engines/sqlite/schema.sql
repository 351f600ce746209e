-- One file per storage node, all shards in it. ``position`` is shard << 47 | added_id: the rowid of the table, so cells lie on disk in log order,
-- shard by shard, and a log scan is one range read. SQLite compares TEXT byte for byte (BINARY), so columns that differ in case stay apart.
-- ``crc`` is the checksum of the whole cell (store/cell_checksum.py), NULL for a cell from before there were checksums.
CREATE TABLE IF NOT EXISTS datastore (
    name           TEXT    NOT NULL,
    shards         INTEGER NOT NULL,
    schema_version INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS cell (
    position      INTEGER PRIMARY KEY,
    row_key       BLOB    NOT NULL,
    column_name   TEXT    NOT NULL,
    ref_key       INTEGER NOT NULL,
    created_at_us INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    crc           INTEGER,
    UNIQUE (row_key, column_name, ref_key)
) STRICT;

CREATE TABLE IF NOT EXISTS shard_counter (
    shard              INTEGER PRIMARY KEY,
    log_start          INTEGER NOT NULL DEFAULT 0,
    next_added_id      INTEGER NOT NULL DEFAULT 0,
    leader_epoch       INTEGER NOT NULL DEFAULT 0,
    last_created_at_us INTEGER NOT NULL DEFAULT 0,
    erasures           INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Every column name that any cell has: what the topics per column are made of, without reading the cells.
CREATE TABLE IF NOT EXISTS column_seen (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS leader_epoch (
    shard          INTEGER NOT NULL,
    leader_epoch   INTEGER NOT NULL,
    first_added_id INTEGER NOT NULL,
    PRIMARY KEY (shard, leader_epoch)
) STRICT, WITHOUT ROWID;

-- Contents of dictionaries, and which one puts of a column take (the highest turn): store/engines/dictionary_contract.py.
CREATE TABLE IF NOT EXISTS dictionary (
    dictionary_id INTEGER PRIMARY KEY,
    column_name   TEXT    NOT NULL,
    content       BLOB    NOT NULL,
    sha256        BLOB    NOT NULL,
    trained_at_us INTEGER NOT NULL,
    samples       INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS dictionary_turn (
    column_name   TEXT    NOT NULL,
    turn          INTEGER NOT NULL,
    dictionary_id INTEGER NOT NULL,
    sha256        BLOB    NOT NULL,
    PRIMARY KEY (column_name, turn)
) STRICT, WITHOUT ROWID;

-- The identity of this history (origin: the first of its lineage), one row, and which other files were made for it: store/engines/sqlite_open.py.
CREATE TABLE IF NOT EXISTS history (history_id TEXT NOT NULL, parent TEXT, origin TEXT) STRICT;

CREATE TABLE IF NOT EXISTS history_file (
    name     TEXT    PRIMARY KEY,
    adopting INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
