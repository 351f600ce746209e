"""SQL at the console: rows of a warehouse, and attacks on files, memory and time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellfeed.console.query.sandbox import ROWS_MAX, VALUE_CHARACTERS_MAX, answer, connect
from cellfeed.console.query.sql import PLACES, QUERIES_MAX, run_sql
from cellfeed.consumers.warehouse.parquet_rows import SCHEMA
from cellfeed.store.errors import InvalidRequest, Overloaded

pytestmark = pytest.mark.integration

ENDLESS = "SELECT count(*) FROM range(100000) a, range(100000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "a.parquet"
    count = 2_000
    columns = [
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([f"row-{number // 2}" for number in range(count)]),
        pa.array(["BASE"] * count),
        pa.array([number % 2 for number in range(count)], pa.int64()),
        pa.array([number * 10**6 for number in range(count)], pa.timestamp("us", tz="UTC")),
        pa.array([f'{{"n":{number}}}' for number in range(count)]),
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path)
    return path


def asked(file: Path, sql: str) -> list[list[str | None]]:
    return run_sql(sql, [str(file)]).rows


def test_rows_are_text_and_bounded(file: Path) -> None:
    found = run_sql("SELECT added_id, body->>'n' AS n, NULL AS x FROM latest", [str(file)])
    assert found.columns == ["added_id", "n", "x"]
    assert found.rows[0][2] is None
    assert not found.more
    assert len(found.rows) == 1_000
    many = run_sql("SELECT * FROM range(1000000000)", [str(file)])
    assert (len(many.rows), many.more) == (ROWS_MAX, True)
    [[long]] = asked(file, "SELECT repeat('é', 1000000)")
    assert long is not None
    assert len(long) == VALUE_CHARACTERS_MAX + 1
    wide = run_sql("SELECT repeat('x', 1900) AS a FROM range(900)", [str(file)])
    assert wide.more
    assert asked(file, "SELECT count(*) FROM cells WHERE created_day > '1970-01-02'") == [["0"]]
    assert run_sql("SELECT count(*) FROM cells", []).rows == [["0"]]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO 'FILE' (USE_TMP_FILE false)",
        "COPY cells TO '/tmp/stolen.csv'",
        "ATTACH 'FILE.db'",
        "CREATE TABLE t AS SELECT 1",
        "PRAGMA database_list",
        "SET memory_limit = '8GB'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/stolen'",
        "SELECT 1; COPY (SELECT 1) TO 'FILE'",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'FILE'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_parquet('FILE')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
        "SELECT * FROM duckdb_secrets() WHERE nosuch",
        "SELECT getenv('HOME')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''FILE''')",
        "SELEC 1",
        "",
        "SELECT '" + "x" * 20_000 + "'",
        "SELECT repeat('x', 10000000000)",
        "SELECT list_aggregate([repeat('x', 4000000000)], 'first')",
        "SELECT " + ", ".join(f"{number} AS c{number}" for number in range(200)),
    ],
)
def test_sql_that_reaches_for_more_is_refused_and_changes_nothing(file: Path, sql: str) -> None:
    before = file.read_bytes()
    with pytest.raises(InvalidRequest):
        asked(file, sql.replace("FILE", str(file)))
    assert file.read_bytes() == before
    assert not Path("/tmp/stolen.csv").exists()
    assert [each.name for each in file.parent.iterdir()] == ["a.parquet"]


def test_a_query_has_nothing_of_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLFEED_TEST_SECRET", "s3cret")
    assert asked(file, "SELECT count(*) FROM cells") == [["2000"]]
    with pytest.raises(InvalidRequest) as refused:
        asked(file, "SELECT * FROM duckdb_settings() WHERE error(value)")
    assert "s3cret" not in str(refused.value)


def test_a_query_that_takes_too_long_is_interrupted_and_one_that_cannot_be_is_killed(
    file: Path,
) -> None:
    with connect([str(file)]) as connection:
        assert "it took more than" in answer(connection, ENDLESS, time_s=0.5).error
        assert answer(connection, "SELECT 1 AS one").rows == [["1"]]
    with pytest.raises(InvalidRequest, match="ended without an answer"):
        run_sql(ENDLESS, [str(file)], kill_s=1.0)
    assert asked(file, "SELECT 1") == [["1"]]


def test_more_queries_than_there_are_places_for_are_refused(file: Path) -> None:
    taken = [PLACES.acquire(blocking=False) for _ in range(QUERIES_MAX)]
    try:
        assert all(taken)
        with pytest.raises(Overloaded):
            asked(file, "SELECT 1")
    finally:
        for _ in filter(None, taken):
            PLACES.release()
    for _ in range(QUERIES_MAX + 1):  # one that fails gives its place back, too
        with pytest.raises(InvalidRequest):
            asked(file, "SELEC 1")
    assert asked(file, "SELECT 1") == [["1"]]
