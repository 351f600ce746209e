"""Where everything lies in a warehouse table's directory.

    _table.json                                     topic and format, written once
    _staging/<shard>-<random>.parquet.staged        data files on their way; never read by a
                                                    ``*.parquet`` pattern
    _sources/<cluster id>.json                      whose log it is (``source.py``)
    _commits/shard-0007/<first free id>.json        the truth: the table's data files, in a chain
    shard-0007/<first id>-<last id>.parquet         committed data

Ids in names have 20 digits, so that names sort as numbers do. Folders are not called
``shard=0007``: the files carry a ``shard`` column of their own, and Hive-style names make DuckDB
overwrite it with text and pyarrow refuse to merge the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

FORMAT: Final = 1
TABLE_FILE: Final = "_table.json"
STAGING: Final = "_staging"
COMMITS: Final = "_commits"
SOURCES: Final = "_sources"
STAGED_SUFFIX: Final = ".parquet.staged"


class TableRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``_table.json``: one directory holds the table of one topic."""

    format: int
    topic: str


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit: one data file and the piece of the log that it is.

    The next commit of the shard has ``start_id == last_id + 1`` and
    ``start_offset == next_offset``. Ids and offsets are the same numbers in a topic of the gateway;
    in a Kafka cluster transaction markers take up offsets too, so both are kept.
    """

    shard: int
    start_id: int
    first_id: int
    last_id: int
    start_offset: int
    next_offset: int
    rows: int
    file: str
    staged: str
    file_bytes: int
    file_sha256: str

    @property
    def next_id(self) -> int:
        """The added_id that the next commit starts from."""
        return self.last_id + 1


class Position(msgspec.Struct, frozen=True):
    """How far a shard of the table is: the next added_id it lacks, and the Kafka offset to read
    from."""

    next_id: int
    next_offset: int


START: Final = Position(0, 0)

_encode: Final = msgspec.json.Encoder().encode
_commit_decoder: Final = msgspec.json.Decoder(CommitRecord)
_table_decoder: Final = msgspec.json.Decoder(TableRecord)


def shard_folder(shard: int) -> str:
    return f"shard-{shard:04d}"


def data_file_name(shard: int, first_id: int, last_id: int) -> str:
    """The path of a committed data file within the table's directory; it follows from the file's
    ids."""
    return f"{shard_folder(shard)}/{first_id:020d}-{last_id:020d}.parquet"


def commit_file(directory: Path, shard: int, start_id: int) -> Path:
    return directory / COMMITS / shard_folder(shard) / f"{start_id:020d}.json"


def shards_with_commits(directory: Path) -> list[int]:
    """The shards that have a commit folder, ascending."""
    try:
        folders = [folder.name for folder in (directory / COMMITS).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(
        int(name.removeprefix("shard-"))
        for name in folders
        if name.removeprefix("shard-").isdigit()
    )


def encode_table_record(record: TableRecord) -> bytes:
    return _encode(record)


def decode_table_record(text: bytes, path: Path) -> TableRecord:
    """Raises DataDamaged when ``text`` is not a table record of a format that this version
    knows."""
    try:
        record = _table_decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{path} does not describe a warehouse table: {error}") from None
    if record.format != FORMAT:
        raise DataDamaged(f"{path} names table format {record.format}; this version knows {FORMAT}")
    return record


def encode_commit(record: CommitRecord) -> bytes:
    return _encode(record)


def decode_commit(text: bytes, path: Path) -> CommitRecord:
    """Raises DataDamaged when ``text`` is not a commit that could have been written at ``path``."""
    try:
        record = _commit_decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{path} is not a commit record: {error}") from None
    in_order = (
        0 <= record.start_id <= record.first_id <= record.last_id <= ADDED_ID_MAX
        and 1 <= record.rows <= record.last_id - record.first_id + 1
        and 0 <= record.start_offset < record.next_offset
    )
    named_well = (
        path.name == f"{record.start_id:020d}.json"
        and path.parent.name == shard_folder(record.shard)
        and record.file == data_file_name(record.shard, record.first_id, record.last_id)
        and record.staged.endswith(STAGED_SUFFIX)
        and "/" not in record.staged
    )
    if not (in_order and named_well):
        raise DataDamaged(
            f"{path} holds a commit that contradicts itself or its own name: {record}"
        )
    return record
