"""One shard from records to commits: exactly once, with every death, and with any second process
that loads as well (I16)."""

from __future__ import annotations

import uuid
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.envelope import AvroFormat, EventFormat, JsonFormat
from cellfeed.consumers.warehouse.layout import COMMITS, STAGING
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.errors import DataDamaged, NotFound, ProtectData
from cellfeed.store.failpoints import (
    FAILPOINTS,
    FailpointReached,
    clear_failpoints,
    passes,
    set_failpoint,
)
from tests.support.warehouse_log import SHARD, Log, assert_prefix, feed, table_directory

LOADER_FAILPOINTS = sorted(
    name
    for name in FAILPOINTS
    if name.startswith("warehouse.") and not name.startswith("warehouse.loader.")
)


@pytest.mark.parametrize("event_format", [AvroFormat(3), JsonFormat()], ids=["avro", "json"])
def test_rows_are_read_back_as_their_cells(tmp_path: Path, event_format: EventFormat) -> None:
    directory, log = table_directory(tmp_path), Log(range(20), event_format)
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 12)
    assert loader.flush() is not None
    feed(loader, log, 100)
    assert loader.flush() is not None
    assert loader.flush() is None
    assert assert_prefix(directory, log) == 20
    assert [row.created_at_us for row in WarehouseTable(directory).rows()] == [
        1_700_000_000_000_000 + n for n in range(20)
    ]
    assert [path.name for path in WarehouseTable(directory).files()] == [
        f"{0:020d}-{11:020d}.parquet",
        f"{12:020d}-{19:020d}.parquet",
    ]
    assert not list((directory / STAGING).iterdir())


def test_holes_in_the_log_stay_holes(tmp_path: Path) -> None:
    directory, log = table_directory(tmp_path), Log([3, 4, 9, 15])
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 2)
    loader.flush()
    feed(loader, log, 2)
    loader.flush()
    assert assert_prefix(directory, log) == 16


def test_a_record_delivered_again_is_not_taken_again(tmp_path: Path) -> None:
    loader = ShardLoader(table_directory(tmp_path), SHARD)
    log = Log(range(3))
    feed(loader, log, 3)
    assert not loader.add(*log.records[1])
    assert loader.waiting_rows == 3


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (1, None, "without a value"),
        (1, b"\x00junk", "does not decode"),
        (1, Log([5]).records[0][1], "holds added_id 5; in a gateway's topic"),
        (2, Log([2]).records[0][1][:-1], "does not decode"),
    ],
)
def test_a_record_that_is_no_cell_of_the_shard_is_refused_and_nothing_of_it_taken(
    tmp_path: Path, offset: int, value: bytes | None, says: str
) -> None:
    directory = table_directory(tmp_path)
    log = Log([0])
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 1)
    with pytest.raises(DataDamaged, match=says):
        loader.add(offset, value)
    loader.flush()
    assert assert_prefix(directory, log) == 1


def test_a_record_of_another_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDamaged, match="holds a cell of shard 7"):
        ShardLoader(table_directory(tmp_path), 6).add(0, Log([0]).records[0][1])


def test_offsets_of_a_cluster_may_run_ahead_of_ids_but_ids_never_fall(tmp_path: Path) -> None:
    directory, log = table_directory(tmp_path), Log(range(4))
    loader = ShardLoader(directory, SHARD, offset_is_added_id=False)
    for offset, (_, value) in zip([0, 1, 4, 5], log.records, strict=True):
        loader.add(offset, value)
    with pytest.raises(DataDamaged, match="should have come before 4"):
        loader.add(7, log.records[2][1])
    loader.flush()
    assert WarehouseTable(directory).next_offsets() == {SHARD: 6}
    assert assert_prefix(directory, log) == 4
    assert ShardLoader(directory, SHARD, offset_is_added_id=False).next_offset == 6


def test_of_two_loaders_at_one_position_one_commits_and_the_other_continues_behind_it(
    tmp_path: Path,
) -> None:
    directory, log = table_directory(tmp_path), Log(range(30))
    one, two = ShardLoader(directory, SHARD), ShardLoader(directory, SHARD)
    feed(one, log, 10)
    feed(two, log, 25)
    assert one.flush() is not None
    assert two.flush() is None
    assert two.next_offset == 10
    assert two.waiting_rows == 0
    feed(two, log, 20)
    assert two.flush() is not None
    assert assert_prefix(directory, log) == 30
    assert not list((directory / STAGING).iterdir())


def test_a_cleaner_leaves_the_staged_file_of_a_living_loader_alone(tmp_path: Path) -> None:
    directory, log = table_directory(tmp_path), Log(range(10))
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 10)
    import cellfeed.consumers.warehouse.shard_loader as module
    from cellfeed.consumers.warehouse.staging import finish_data_file as real

    def recover_meanwhile(staged: object) -> tuple[int, str]:
        ShardLoader(directory, SHARD)
        assert len(list((directory / STAGING).iterdir())) == 1
        return real(staged)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "finish_data_file", recover_meanwhile)
        assert loader.flush() is not None
    assert assert_prefix(directory, log) == 10


@pytest.mark.parametrize("name", LOADER_FAILPOINTS)
def test_a_loader_that_dies_anywhere_leaves_a_prefix_and_the_next_one_finishes(
    tmp_path: Path, name: str
) -> None:
    directory, log = table_directory(tmp_path), Log(range(10))
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 4)
    loader.flush()
    if name == "warehouse.recover.before_remove":
        (directory / STAGING / f"{SHARD:04d}-dead.parquet.staged").write_bytes(b"half a fi")
    feed(loader, log, 3)
    set_failpoint(name, "raise")
    with pytest.raises(FailpointReached):
        flush_and_recover(loader, directory)
    assert passes(name) == 1
    clear_failpoints()
    assert assert_prefix(directory, log) in (4, 7)
    del loader
    again = ShardLoader(directory, SHARD)
    assert not list((directory / STAGING).iterdir())
    feed(again, log, 10)
    again.flush()
    assert assert_prefix(directory, log) == 10


def flush_and_recover(loader: ShardLoader, directory: Path) -> None:
    loader.flush()
    ShardLoader(directory, SHARD)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(0, 1), st.integers(1, 9)),
        st.tuples(st.just("flush"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("die"), st.integers(0, 1), st.integers(0, len(LOADER_FAILPOINTS) - 1)),
        st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
    ),
    max_size=25,
)


@given(steps=STEPS, holes=st.sets(st.integers(0, 59), max_size=20))
def test_two_loaders_that_die_at_will_always_leave_a_prefix_of_the_log(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], holes: set[int]
) -> None:
    directory = table_directory(tmp_path_factory.mktemp("table"))
    log = Log([added_id for added_id in range(60) if added_id not in holes])
    loaders = [ShardLoader(directory, SHARD), ShardLoader(directory, SHARD)]
    position = 0
    for action, who, number in steps:
        if action == "feed":
            feed(loaders[who], log, number)
        elif action == "flush":
            loaders[who].flush()
        elif action == "die":
            set_failpoint(LOADER_FAILPOINTS[number], "raise")
            try:
                loaders[who].flush()
            except FailpointReached:
                pass
            finally:
                clear_failpoints()
            loaders[who] = ShardLoader(directory, SHARD)
        else:
            loaders[who] = ShardLoader(directory, SHARD)
        now = assert_prefix(directory, log)
        assert now >= position
        position = now
    for _ in range(3):
        for loader in loaders:
            feed(loader, log, 60)
            loader.flush()
    assert assert_prefix(directory, log) == (
        max(cell[0] for cell in log.cells) + 1 if log.cells else 0
    )


def test_latest_is_the_highest_ref_key_of_each_row_and_column(tmp_path: Path) -> None:
    directory, log = table_directory(tmp_path), Log(range(20))
    assert WarehouseTable(directory).query("SELECT * FROM latest") == []
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 9)
    loader.flush()
    feed(loader, log, 20)
    loader.flush()
    latest: dict[tuple[bytes, str], int] = {}
    for _, key, column, ref_key, _ in log.cells:
        latest[key, column] = max(ref_key, latest.get((key, column), ref_key))
    rows = WarehouseTable(directory).query(
        "SELECT row_key, column_name, ref_key FROM latest WHERE shard = ?", [SHARD]
    )
    assert {(uuid.UUID(r["row_key"]).bytes, r["column_name"]): r["ref_key"] for r in rows} == latest
    assert WarehouseTable(directory).query(
        "SELECT sum((body ->> '$.n')::BIGINT)::BIGINT AS total FROM cells"
    ) == [{"total": sum(range(20))}]


def test_plain_readers_see_committed_files_only_and_the_shard_as_a_number(tmp_path: Path) -> None:
    directory, log = table_directory(tmp_path), Log(range(6))
    loader = ShardLoader(directory, SHARD)
    feed(loader, log, 6)
    loader.flush()
    (directory / STAGING / f"{SHARD:04d}-dead.parquet.staged").write_bytes(b"half a fi")
    assert pq.read_table(directory)["shard"].to_pylist() == [SHARD] * 6
    found = duckdb.sql(f"SELECT DISTINCT shard FROM read_parquet('{directory}/**/*.parquet')")
    assert found is not None
    assert found.fetchall() == [(SHARD,)]


def test_a_directory_is_the_table_of_one_topic(tmp_path: Path) -> None:
    directory = table_directory(tmp_path)
    make_table(directory, "trips")
    with pytest.raises(ProtectData, match="holds the table of topic 'trips'"):
        make_table(directory, "orders")
    with pytest.raises(NotFound):
        WarehouseTable(tmp_path)


def loaded(tmp_path: Path) -> Path:
    directory, log = table_directory(tmp_path), Log(range(6))
    loader = ShardLoader(directory, SHARD)
    for _ in range(3):
        feed(loader, log, 2)
        loader.flush()
    return directory


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    directory = loaded(tmp_path)
    path = WarehouseTable(directory).files()[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match="is not the file that was committed"):
        WarehouseTable(directory).check()


def test_a_missing_file_is_found_and_loading_refused(tmp_path: Path) -> None:
    directory = loaded(tmp_path)
    WarehouseTable(directory).files()[1].unlink()
    with pytest.raises(DataDamaged, match="is missing"):
        list(WarehouseTable(directory).rows())
    with pytest.raises(DataDamaged, match="is missing"):
        ShardLoader(directory, SHARD)


def test_a_gap_in_the_chain_is_found(tmp_path: Path) -> None:
    directory = loaded(tmp_path)
    sorted((directory / COMMITS / f"shard-{SHARD:04d}").iterdir())[1].unlink()
    with pytest.raises(DataDamaged, match="that no chain leads to"):
        WarehouseTable(directory).check()


@pytest.mark.parametrize("text", [b"", b"{}", b'{"shard":7'])
def test_a_damaged_commit_is_named(tmp_path: Path, text: bytes) -> None:
    directory = loaded(tmp_path)
    path = min((directory / COMMITS / f"shard-{SHARD:04d}").iterdir())
    path.write_bytes(text)
    with pytest.raises(DataDamaged, match="is not a commit record"):
        WarehouseTable(directory).next_ids()


def test_staged_files_left_by_a_killed_process_go_when_the_next_loader_starts(
    tmp_path: Path,
) -> None:
    directory = loaded(tmp_path)
    for name in ("0007-dead.parquet.staged", "0007-dead.record.staged"):
        (directory / STAGING / name).write_bytes(b"x")
    (directory / STAGING / "0008-other.parquet.staged").write_bytes(b"another shard's business")
    ShardLoader(directory, SHARD)
    assert [path.name for path in (directory / STAGING).iterdir()] == ["0008-other.parquet.staged"]
