-- A database per shard holds its cells (and, later, its indexes); one database per cluster holds the counters and the state.
-- {meta} and {shard} are identifiers from a fixed list (the datastore's checked name and a number), never input.

-- meta
CREATE DATABASE IF NOT EXISTS {meta} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {meta}.datastore (
    one            TINYINT         NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    name           VARBINARY(48)   NOT NULL,
    shards         INT UNSIGNED    NOT NULL,
    schema_version INT UNSIGNED    NOT NULL
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS {meta}.shard_counter (
    shard           INT UNSIGNED    NOT NULL PRIMARY KEY,
    log_start       BIGINT UNSIGNED NOT NULL DEFAULT 0,
    next_added_id   BIGINT UNSIGNED NOT NULL DEFAULT 0,
    leader_epoch    INT UNSIGNED    NOT NULL DEFAULT 0,
    last_created_at DATETIME(6)     NOT NULL DEFAULT '1970-01-01 00:00:00.000000'
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS {meta}.leader_epoch (
    shard          INT UNSIGNED    NOT NULL,
    leader_epoch   INT UNSIGNED    NOT NULL,
    first_added_id BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (shard, leader_epoch)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS {meta}.state_entry (
    entry_key VARBINARY(512)  NOT NULL PRIMARY KEY,
    value     MEDIUMBLOB      NOT NULL,
    version   BIGINT UNSIGNED NOT NULL
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS {meta}.state_revision (
    one      TINYINT         NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    revision BIGINT UNSIGNED NOT NULL
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS {meta}.column_seen (
    column_name VARBINARY(128) NOT NULL PRIMARY KEY
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS {meta}.buffered_cell (
    buffer_id   BIGINT UNSIGNED NOT NULL PRIMARY KEY AUTO_INCREMENT,
    owner       VARBINARY(64)   NOT NULL,
    row_key     BINARY(16)      NOT NULL,
    column_name VARBINARY(128)  NOT NULL,
    ref_key     BIGINT          NOT NULL,
    body        MEDIUMBLOB      NOT NULL,
    buffered_at DATETIME(6)     NOT NULL,
    accepted    TINYINT         NOT NULL DEFAULT 0,
    conflict    VARBINARY(4000) NULL,
    UNIQUE KEY triple (owner, row_key, column_name, ref_key)
) ENGINE=InnoDB;

-- shard
CREATE DATABASE IF NOT EXISTS {shard} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {shard}.cell (
    added_id    BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    row_key     BINARY(16)      NOT NULL,
    column_name VARBINARY(128)  NOT NULL,
    ref_key     BIGINT          NOT NULL,
    body        MEDIUMBLOB      NOT NULL,
    created_at  DATETIME(6)     NOT NULL,
    UNIQUE KEY triple (row_key, column_name, ref_key)
) ENGINE=InnoDB;
