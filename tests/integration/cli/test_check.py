"""`cellfeed check` of an embedded store finds each kind of damage that is planted, and names its
place; it says nothing of a store in good order."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import KINDS
from cellfeed.kinds.registry import Process
from cellfeed.processes.health import ProcessHealth
from cellfeed.run_dir import RunDir
from cellfeed.store import checks
from cellfeed.store.cells.body_codec import forget_dictionaries
from cellfeed.store.cells.cell import RESTORED_COLUMN, NewCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.contract.findings import NAMED_MAX
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, INDEX_FILE, STATE_FILE
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import differences, index_worker, made_index
from tests.support.rides import rides
from tests.support.waiting import wait_until

SHARDS = 4
CELLS = rides(0, 600)
DEFINITION = parse_definition("""
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: payment, type: string}]
""")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("datastore: {shards: 4}\nworkers: [{port: 0}]\n")
    with Datastore.open_embedded(tmp_path / "store", "trips", SHARDS) as store:
        store.put_new_cells(CELLS)
    return tmp_path


def place(run_dir: Path) -> Path:
    return run_dir / "store" / "trips"


def check(run_dir: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(
        command_line("check"), ["check", *words, "--json", "--run-dir", str(run_dir)]
    )
    assert isinstance(done.exception, SystemExit | None), repr(done.exception)
    return done.exit_code, [json.loads(line) for line in done.output.splitlines()]


def run(run_dir: Path, *statements: str, file: str = CELLS_FILE) -> None:
    with closing(sqlite3.connect(place(run_dir) / file)) as connection, connection:
        for sql in statements:
            assert connection.execute(sql).rowcount != 0, sql


def at(shard: int, added_id: int) -> str:
    return f"position = {position_of(shard, added_id)}"


def test_a_store_in_good_order_has_no_findings(run_dir: Path) -> None:
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.trim(1, 20)
        store.erase_row(str(next(iter(store.get_cells_for_shard(0, 0, 1).cells)).row_key))
        code, [told] = check(run_dir)
    assert (code, told["well"], told["findings"], told["cells"]) == (0, True, 0, 600 - 20 + 1)


@pytest.mark.parametrize(
    ("changes", "kind", "shard", "ids"),
    [
        ([f"UPDATE cell SET body = x'04' WHERE {at(2, 5)}"], "checksum", 2, (5, 5)),
        (
            [f"UPDATE cell SET created_at_us = created_at_us + 1 WHERE {at(2, 5)}"],
            "checksum",
            2,
            (5, 5),
        ),
        ([f"UPDATE cell SET crc = NULL, body = x'0203' WHERE {at(3, 9)}"], "checksum", 3, (9, 9)),
        (
            [
                f"DELETE FROM cell WHERE position BETWEEN {position_of(1, 40)} AND"
                f" {position_of(1, 44)}"
            ],
            "gap",
            1,
            (40, 44),
        ),
        ([f"DELETE FROM cell WHERE {at(1, 0)}"], "gap", 1, (0, 0)),
        (
            ["UPDATE shard_counter SET next_added_id = next_added_id - 3 WHERE shard = 0"],
            "counter",
            0,
            None,
        ),
        (
            ["UPDATE shard_counter SET next_added_id = next_added_id + 3 WHERE shard = 0"],
            "gap",
            0,
            None,
        ),
        (["UPDATE shard_counter SET log_start = 7 WHERE shard = 0"], "counter", 0, (0, 6)),
        (["UPDATE shard_counter SET last_created_at_us = 5 WHERE shard = 0"], "counter", 0, None),
        (["DELETE FROM shard_counter WHERE shard = 3"], "counter", 3, None),
        (["DELETE FROM column_seen WHERE name = 'BASE'"], "counter", 0, (0, 0)),
        (["DELETE FROM history"], "identity", None, None),
    ],
)
def test_planted_damage_is_named_with_its_shard_and_ids(
    run_dir: Path, changes: list[str], kind: str, shard: int | None, ids: tuple[int, int] | None
) -> None:
    run(run_dir, *changes)
    code, found = check(run_dir)
    assert code == 1
    named = [each for each in found[:-1] if each["kind"] == kind and each.get("shard") == shard]
    assert named, found
    if ids is not None:
        assert (named[0]["from"], named[0]["to"]) == ids


def test_a_cell_in_the_wrong_shard_is_named(run_dir: Path) -> None:
    with closing(sqlite3.connect(place(run_dir) / CELLS_FILE)) as connection, connection:
        row = connection.execute(
            f"SELECT row_key, column_name, ref_key, created_at_us, body FROM cell WHERE {at(2, 5)}"
        ).fetchone()
        connection.execute(f"DELETE FROM cell WHERE {at(2, 5)}")
        connection.execute(
            "UPDATE cell SET row_key = ?, column_name = ?, ref_key = ?, created_at_us = ?, body ="
            f" ?, crc = NULL WHERE {at(1, 5)}",
            row,
        )
    code, found = check(run_dir)
    assert code == 1
    assert [(each["shard"], each["from"]) for each in found[:-1] if each["kind"] == "key"] == [
        (1, 5)
    ]


def places_of(run_dir: Path, row_key: bytes) -> tuple[bytearray, list[int]]:
    """The file, and where the key is in it: in the row, and in the index of keys."""
    path = place(run_dir) / CELLS_FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    return bytearray(data), [found.start() for found in re.finditer(re.escape(row_key), data)]


def test_a_bit_of_a_row_and_one_of_the_index_of_keys_are_found(run_dir: Path) -> None:
    data, places = places_of(run_dir, CELLS[77].row_key)
    assert len(places) == 2
    kinds = []
    for offset in places:
        (place(run_dir) / CELLS_FILE).write_bytes(
            data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        )
        code, found = check(run_dir, "--no-indexes")
        assert code == 1
        kinds.append({each["kind"] for each in found[:-1]})
    assert {"integrity"} in kinds, "the row is well, and no key finds it"
    assert any("checksum" in each for each in kinds)


def test_entries_of_an_index_that_do_not_fit_the_cells_are_named(run_dir: Path) -> None:
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store, index_worker(store):
        version = made_index(store, DEFINITION)
        assert differences(store, version) == []
    assert check(run_dir)[1][:-1] == []
    run(
        run_dir,
        f"DELETE FROM {version.table.name} WHERE row_key = (SELECT min(row_key) FROM"
        f" {version.table.name})",
        file=INDEX_FILE,
    )
    code, found = check(run_dir)
    assert (code, [each["kind"] for each in found[:-1]]) == (1, ["index"])
    assert "missing: row" in found[0]["text"]
    assert check(run_dir, "--no-indexes")[0] == 0


def test_a_lost_file_and_one_of_another_store_are_named(run_dir: Path, tmp_path: Path) -> None:
    with Datastore.open_embedded(tmp_path / "other", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 5))
    own, other = place(run_dir) / STATE_FILE, tmp_path / "other" / "trips" / STATE_FILE
    own.rename(own.with_suffix(".away"))
    code, found = check(run_dir, "--no-indexes")
    assert (code, found[0]["kind"], found[0]["place"]) == (1, "identity", STATE_FILE)
    own.write_bytes(other.read_bytes())
    code, found = check(run_dir, "--no-indexes")
    assert (code, found[0]["kind"]) == (1, "identity")
    assert "belongs to history" in found[0]["text"]


def test_a_page_that_cannot_be_read_names_its_cells_and_the_others_are_looked_at(
    run_dir: Path,
) -> None:
    data, places = places_of(run_dir, CELLS[77].row_key)
    path, size, seen = place(run_dir) / CELLS_FILE, 4096, set()
    for offset in places:
        start = offset // size * size
        path.write_bytes(data[:start] + bytes(size) + data[start + size :])
        code, found = check(run_dir, "--no-indexes")
        assert code == 1
        seen |= {each["kind"] for each in found[:-1]}
        assert found[-1]["cells"] > 500, "the others were looked at"
    assert {"integrity", "unread"} <= seen


def test_ids_that_a_restore_left_out_are_no_gap(run_dir: Path) -> None:
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        end = store.heads()[0].next_added_id
        row_key = store.get_cells_for_shard(0, 0, 1).cells[0].row_key.bytes
    run(run_dir, "UPDATE shard_counter SET next_added_id = next_added_id + 1000 WHERE shard = 0")
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        told = json.dumps({"lost_from": end, "lost_to": end + 999}).encode()
        store.put_new_cells([NewCell(row_key, RESTORED_COLUMN, 1, told)])
    assert check(run_dir)[0] == 0


def test_thousands_of_damaged_cells_are_counted_and_some_are_named(run_dir: Path) -> None:
    run(run_dir, f"UPDATE cell SET ref_key = ref_key + 1 WHERE position < {position_of(1, 0)}")
    code, found = check(run_dir)
    [(count, named)] = [
        (found[-1]["findings"], sum(each["kind"] == "checksum" for each in found[:-1]))
    ]
    assert (code, named) == (1, NAMED_MAX)
    assert count >= 120


def test_cells_without_a_checksum_are_counted_and_no_finding(run_dir: Path) -> None:
    run(run_dir, f"UPDATE cell SET crc = NULL WHERE position < {position_of(0, 50)}")
    code, [told] = check(run_dir)
    assert (code, told["without_checksum"], told["cells"]) == (0, 50, 600)


def test_bodies_of_a_dictionary_without_a_checksum_are_decoded_by_the_stores_own_dictionaries(
    run_dir: Path,
) -> None:
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        made = train("BASE", [Sample(cell.row_key, cell.body_json) for cell in CELLS]).dictionary
        assert publish(store.engine.dictionaries, made, 0)
        store.put_new_cells(rides(1_000, 60))
    run(run_dir, "UPDATE cell SET crc = NULL")
    forget_dictionaries()
    code, [told] = check(run_dir, "--no-indexes")
    assert (code, told["without_checksum"]) == (0, 660)
    run(run_dir, "UPDATE cell SET body = x'020304' WHERE position = 3")
    forget_dictionaries()
    scrub_files(place(run_dir))
    code, found = check(run_dir, "--no-indexes")
    assert (code, found[0]["kind"], found[0]["from"], found[-1]["without_checksum"]) == (
        1,
        "checksum",
        3,
        0,
    )


def test_status_and_metrics_of_a_worker_show_the_findings_of_its_check(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(run_dir, f"UPDATE cell SET body = x'04' WHERE {at(2, 5)}")
    monkeypatch.setattr(checks, "LOOK_EVERY_S", 0.01)
    config = load_config(run_dir / "config.yaml")

    def status() -> dict[str, Any]:
        done = CliRunner().invoke(
            command_line("status"), ["status", "--json", "--run-dir", str(run_dir)]
        )
        found = json.loads(done.output)["check"]
        assert isinstance(found, dict)
        return found

    assert (status()["age_s"], status()["damaged"]) == (None, 0)
    stop, ports = threading.Event(), list[int]()
    process = Process(RunDir(run_dir), config, "worker", stop, ProcessHealth("worker"), 0)
    monkeypatch.setattr(Process, "say_ready", lambda _, http: ports.append(http))
    worker = threading.Thread(target=KINDS["worker"].run, args=(process,))
    worker.start()
    try:
        wait_until(lambda: len(ports) > 0, "the worker serves")
        url = f"http://127.0.0.1:{ports[0]}/metrics"

        def metrics() -> str:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())

        wait_until(lambda: "cellfeed_check_findings 1.0" in metrics(), "the check has ended")
        wait_until(lambda: status()["age_s"] is not None, "its end is noted")
        assert "cellfeed_check_unread 0.0" in metrics()
    finally:
        stop.set()
        worker.join()
    assert status()["cells"] == len(CELLS)
    assert (status()["damaged"], status()["unread"]) == (1, 0)
    assert status()["named"] == [
        f"{CELLS_FILE}: checksum: shard 2, added_id 5: the cell is damaged: it does not match its"
        " checksum"
    ]
    done = CliRunner().invoke(command_line("status"), ["status", "--run-dir", str(run_dir)])
    assert "check for damage: the last whole one began" in done.output
    assert "added_id 5: the cell is damaged" in done.output
