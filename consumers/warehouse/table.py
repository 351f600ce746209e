"""Reading a warehouse table: rows, positions, digests, SQL. Sees committed files only, also while
loaders are at work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellfeed.consumers.duckdb_views import NO_CELLS, make_views, quoted_paths, rows_of
from cellfeed.consumers.warehouse.cell_rows import WarehouseRow
from cellfeed.consumers.warehouse.chain import ShardChain, check_no_stray_commits, place_data_file
from cellfeed.consumers.warehouse.layout import (
    FORMAT,
    STAGING,
    TABLE_FILE,
    CommitRecord,
    Position,
    TableRecord,
    decode_table_record,
    encode_table_record,
    shards_with_commits,
)
from cellfeed.consumers.warehouse.staging import put_if_absent, sha256_of
from cellfeed.store.backups.synced import make_folders, sync_folder
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.errors import DataDamaged, NotFound, ProtectData

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def make_table(directory: Path, topic: str) -> None:
    """Makes the table of ``topic`` in ``directory``, or opens it. Raises ProtectData when the
    directory holds another topic's table."""
    make_folders(directory / STAGING)
    path = directory / TABLE_FILE
    if not path.exists():
        put_if_absent(
            path, encode_table_record(TableRecord(FORMAT, topic)), directory / STAGING, "table"
        )
        sync_folder(directory)
    record = decode_table_record(path.read_bytes(), path)
    if record.topic != topic:
        raise ProtectData(
            f"{directory} holds the table of topic {record.topic!r}; loading topic {topic!r} into"
            " it would mix the two"
        )


class WarehouseTable:
    """A table as its commits stand at each call."""

    def __init__(self, directory: Path) -> None:
        """Opens the table in ``directory``. Raises NotFound when there is none."""
        self.directory = Path(directory)
        path = self.directory / TABLE_FILE
        try:
            self.topic = decode_table_record(path.read_bytes(), path).topic
        except FileNotFoundError:
            raise NotFound(
                f"{self.directory} holds no warehouse table: {TABLE_FILE} is missing"
            ) from None
        self._chains: dict[int, ShardChain] = {}

    def commits(self, shard: int) -> Sequence[CommitRecord]:
        """The commits of a shard, in log order."""
        return tuple(self._chain(shard).commits)

    def shards(self) -> list[int]:
        """The shards that hold rows, ascending."""
        return [
            shard for shard in shards_with_commits(self.directory) if self._chain(shard).commits
        ]

    def positions(self) -> dict[int, Position]:
        """How far each shard is."""
        return {shard: self._chain(shard).position for shard in self.shards()}

    def next_offsets(self) -> dict[int, int]:
        """Per shard the Kafka offset that a loader resumes from."""
        return {shard: position.next_offset for shard, position in self.positions().items()}

    def next_ids(self) -> dict[int, int]:
        """Per shard the added_id behind the last one held."""
        return {shard: position.next_id for shard, position in self.positions().items()}

    def row_count(self) -> int:
        return sum(commit.rows for shard in self.shards() for commit in self._chain(shard).commits)

    def files(self) -> list[Path]:
        """The data files, by shard and log order."""
        return [
            place_data_file(self.directory, commit)
            for shard in self.shards()
            for commit in self._chain(shard).commits
        ]

    def rows(self, shard: int | None = None) -> Iterator[WarehouseRow]:
        """Every row of one shard, or of all, in log order. Raises DataDamaged when a file does not
        match its commit."""
        for number in self.shards() if shard is None else [shard]:
            for commit in self.commits(number):
                yield from self._rows_of(commit)

    def last_rows(self) -> dict[int, tuple[int, WarehouseRow]]:
        """By shard that has rows: the Kafka offset of the last one, and the row."""
        ends = {shard: self.commits(shard)[-1] for shard in self.shards()}
        return {shard: (end.next_offset - 1, self._rows_of(end)[-1]) for shard, end in ends.items()}

    def digests(
        self,
        until: Mapping[int, int] | None = None,
        begin: Mapping[int, int] | None = None,
        body_of: Callable[[int, int, bytes], bytes] | None = None,
    ) -> dict[int, ShardDigest]:
        """The digest of each shard, of the cells with ``added_id < until[shard]`` where given (0
        for a shard left out), else of all; and of none below ``begin[shard]``. ``body_of``, given
        shard, added_id and body, says which body counts."""
        digests: dict[int, ShardDigest] = {}
        for shard in self.shards() if until is None else sorted(until):
            digest = digests[shard] = ShardDigest()
            end = None if until is None else until[shard]
            first = (begin or {}).get(shard, 0)
            for row in self.rows(shard):
                if end is not None and row.added_id >= end:
                    break
                if row.added_id < first:
                    continue
                body = (
                    row.body_json
                    if body_of is None
                    else body_of(shard, row.added_id, row.body_json)
                )
                digest.add(row.added_id, row.row_key, row.column_name, row.ref_key, body)
        return digests

    def check(self) -> None:
        """Compares every file with its commit: size, SHA-256, rows, ids. Raises DataDamaged naming
        the first that differs."""
        for shard in shards_with_commits(self.directory):
            chain = self._chain(shard)
            check_no_stray_commits(chain)
            for commit in chain.commits:
                path = place_data_file(self.directory, commit)
                if (
                    path.stat().st_size != commit.file_bytes
                    or sha256_of(path) != commit.file_sha256
                ):
                    raise DataDamaged(f"{path} is not the file that was committed")
                for _row in self._rows_of(commit):
                    pass

    def connect(self) -> DuckDBPyConnection:
        """A DuckDB connection in memory with the views ``cells`` (all rows) and ``latest`` (highest
        ref key per row key and column, without erased rows)."""
        import duckdb  # a large library: loaded for SQL only

        connection = duckdb.connect()
        files = [str(path) for path in self.files()]
        make_views(
            connection,
            f"SELECT * FROM read_parquet({quoted_paths(files)}, hive_partitioning = false)"  # noqa: S608
            if files
            else NO_CELLS,
        )
        return connection

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        """The rows that a SQL query over ``cells`` and ``latest`` gives, as dicts. Raises DuckDB's
        own errors for bad SQL."""
        with self.connect() as connection:
            return rows_of(connection, sql, parameters)

    def _chain(self, shard: int) -> ShardChain:
        chain = self._chains.get(shard)
        if chain is None:
            chain = self._chains[shard] = ShardChain(self.directory, shard)
        else:
            chain.refresh()
        return chain

    def _rows_of(self, commit: CommitRecord) -> list[WarehouseRow]:
        from cellfeed.consumers.warehouse import (
            parquet_rows,
        )  # a large library: loaded for reading files only

        path = place_data_file(self.directory, commit)
        rows = parquet_rows.read_rows(str(path))
        ids = [row.added_id for row in rows]
        ascending = all(earlier < later for earlier, later in itertools.pairwise(ids))
        ends = (ids[0], ids[-1]) if ids else None
        if (
            not ascending
            or len(ids) != commit.rows
            or ends != (commit.first_id, commit.last_id)
            or any(row.shard != commit.shard for row in rows)
        ):
            raise DataDamaged(f"{path} holds other rows than its commit says")
        return rows
