"""The commands on a running instance: their output, for people and machines, and the exit code and
the one line of every refusal."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.server import run_gateway
from cellfeed.bridge.triggers.parked.cells import ParkedCell, ParkedCells
from cellfeed.cli.main import main
from cellfeed.config.model import (
    Config,
    DatastoreConfig,
    GatewayProcessConfig,
    WarehouseConfig,
    WorkerConfig,
)
from cellfeed.consumers.warehouse.loader import run_warehouse_loader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.instance.config_file import write_config
from cellfeed.run_dir import ProcessEntry, RunDir
from cellfeed.store.background import LoopTrouble
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration
NAMESPACE = UUID("11b1f6c2-55cf-5a57-8e5b-6f2f0d8a6f10")
KEY = str(uuid5(NAMESPACE, "one"))
SHARDS = 4
CONFIG = Config(
    datastore=DatastoreConfig(shards=SHARDS),
    workers=[WorkerConfig(port=0)],
    gateways=[GatewayProcessConfig(port=0)],
    warehouses=[WarehouseConfig()],
)


@dataclass
class Said:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Said]


@pytest.fixture
def run_dir(tmp_path: Path, datastore: Datastore) -> Iterator[RunDir]:
    """An instance's run directory, its worker in a thread of this process."""
    del datastore
    directory = RunDir(tmp_path / "run")
    directory.make()
    write_config(CONFIG, directory.config)
    with (
        Datastore.open_embedded(directory.inside("store"), shards=SHARDS) as opened,
        worker_thread(opened) as url,
    ):
        directory.say_ready("worker", {"http": int(url.rpartition(":")[2])})
        directory.record(
            ProcessEntry(
                "worker", "worker", os.getpid(), {"http": int(url.rpartition(":")[2])}, "-"
            )
        )
        yield directory


@pytest.fixture
def opened(run_dir: RunDir) -> Iterator[Datastore]:
    """The same store from below."""
    with Datastore.open_embedded(run_dir.inside("store"), shards=SHARDS) as store:
        yield store


@pytest.fixture
def run(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a command on the instance as its entry point does."""
    monkeypatch.setenv("CELLFEED_RUN_DIR", str(run_dir.path))
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["cellfeed", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return command


@pytest.fixture
def gateway(run_dir: RunDir, opened: Datastore) -> Iterator[str]:
    """A gateway over the same store, in a thread."""
    ports: list[int] = []
    started, stop = threading.Event(), threading.Event()

    def on_started(kafka: int, _registry: int) -> None:
        ports.append(kafka)
        started.set()

    settings = GatewayConfig(port=0, registry_port=0, group_initial_delay_s=0)
    thread = threading.Thread(
        target=run_gateway,
        args=(opened, StoreCoordinator(opened.state), settings, stop, on_started),
        name="gateway-under-test",
    )
    thread.start()
    try:
        assert started.wait(30)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def fill(store: Datastore, cells: int) -> None:
    store.put_cells([(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n}) for n in range(cells)])


# --- cells by hand --------------------------------------------------------------------------------


def test_put_says_where_the_cell_is_and_repeats_it_for_the_same_cell(run: Run) -> None:
    first = run("put", KEY, "BASE", "1", '{"n":1}', "--json").lines
    again = run("put", KEY, "BASE", "1", '{ "n": 1 }', "--json").lines
    assert [first[0]["outcome"], again[0]["outcome"]] == ["stored", "exists"]
    assert first[0]["added_id"] == again[0]["added_id"] == 0
    assert run("put", KEY, "BASE", "1", '{"n":1}').out == f"exists at {first[0]['shard']}/0\n"


def test_put_reads_the_body_from_standard_input_and_takes_negative_ref_keys_after_two_dashes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from":"stdin"}')))
    assert run("put", "--", KEY, "BASE", "-5", "-").code == 0
    assert run("get", "--json", "--", KEY, "BASE", "-5").lines[0]["body"] == {"from": "stdin"}


def test_another_body_for_a_cell_is_a_conflict_with_exit_code_1(run: Run) -> None:
    run("put", KEY, "BASE", "1", '{"n":1}')
    for arguments in ((), ("--json",)):
        said = run("put", KEY, "BASE", "1", '{"n":2}', *arguments)
        assert said.code == 1
        assert "another body" in said.err
        assert len(said.err.splitlines()) == 1
    assert said.lines == [
        {
            "error": "conflict",
            "message": said.lines[0]["message"],
            "retriable": False,
            "definite": True,
        }
    ]


def test_get_gives_a_cell_the_latest_or_the_whole_row(run: Run) -> None:
    for column, ref_key, body in (
        ("BASE", "1", '{"n":1}'),
        ("BASE", "7", '{"n":7}'),
        ("NOTES", "1", '{"text":"[red]x[/nothing]"}'),
    ):
        assert run("put", KEY, column, ref_key, body).code == 0
    assert [cell["ref_key"] for cell in run("get", KEY, "BASE", "1", "--json").lines] == [1]
    assert [cell["ref_key"] for cell in run("get", KEY, "BASE", "--json").lines] == [7]
    assert {cell["column_name"] for cell in run("get", KEY, "--json").lines} == {"BASE", "NOTES"}
    for words in ((KEY, "BASE", "1"), (KEY, "BASE"), (KEY,)):
        assert (
            run("get", *words, "--from", "minion", "--json").lines
            == run("get", *words, "--json").lines
        ), "an embedded store is its own minion"
    assert run("get", KEY, "--from", "anywhere").code == 2
    assert '{"text":"[red]x[/nothing]"}' in run("get", KEY, "NOTES").out


def test_scan_reads_a_log_from_an_id_or_a_time_and_says_where_it_goes_on(
    run: Run, opened: Datastore
) -> None:
    fill(opened, 40)
    end = opened.heads()[0].watermark
    said = run("scan", "0", "2", "--limit", "3", "--json")
    assert [cell["added_id"] for cell in said.lines] == [2, 3, 4]
    assert said.err == "next location 5\n"
    assert len(run("scan", "0", "2000-01-01T00:00:00Z", "--json").lines) == end
    assert run("scan", "0", "2100-01-01T00:00:00+00:00", "--json").lines == []
    assert run("scan", "0", str(end), "--json").err == f"next location {end}\n"


def test_tail_begins_with_the_last_cells_and_follows_new_ones(run: Run, opened: Datastore) -> None:
    opened.put_cell(KEY, "BASE", 1, {"n": "old"})
    writer = threading.Timer(
        1.0,
        lambda: opened.put_cells(
            [(KEY, "NOTES", 1, {"n": "unwanted"}), (KEY, "BASE", 2, {"n": "new"})]
        ),
    )
    writer.start()
    said = run("tail", "--last", "1", "--column", "BASE", "--seconds", "4", "--json")
    writer.join()
    assert said.code == 0
    assert [cell["body"]["n"] for cell in said.lines] == ["old", "new"]


# --- loading --------------------------------------------------------------------------------------


def test_loading_a_file_again_changes_nothing(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "trips.csv"
    file.write_text("id,fare\na,1\nb,2\n")
    arguments = (
        "load",
        str(file),
        "--datastore",
        "trips",
        "--column",
        "BASE",
        "--row-key-from",
        "id",
        "--field-types",
        "fare:int",
        "--json",
    )
    first, again = run(*arguments), run(*arguments)
    assert (first.code, again.code) == (0, 0)
    assert (first.lines[0]["stored"], first.lines[0]["exists"]) == (2, 0)
    assert (again.lines[0]["stored"], again.lines[0]["exists"]) == (0, 2)


def test_a_line_that_cannot_be_loaded_is_named_and_the_others_are_loaded(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "trips.ndjson"
    file.write_text(f'{{"id":"{KEY}","n":1}}\nnot json [/x]\n{{"id":"nobody","n":2}}\n')
    said = run("load", str(file), "--column", "BASE", "--row-key", "id")
    assert said.code == 1
    assert "line 2:" in said.err
    assert "line 3:" in said.err
    assert run("get", KEY, "BASE", "--json").lines[0]["body"]["n"] == 1


# --- digests, warehouse ---------------------------------------------------------------------------


def test_verify_finds_one_digest_in_store_topic_and_table_and_a_difference_is_exit_code_1(
    run: Run, run_dir: RunDir, opened: Datastore, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(opened, 60)
    table = run_dir.inside("warehouse")
    ends = {shard: head.watermark for shard, head in opened.heads().items()}
    assert not run_warehouse_loader(
        gateway, "trips", "warehouse", table, threading.Event(), until_offsets=ends
    ).stopped
    said = run("verify", "--gateway", gateway, "--parquet", str(table), "--json")
    assert said.code == 0, said.err
    report = said.lines[0]
    assert (report["equal"], report["level"]) == (True, True)
    assert report["cells"] == {"store": 60, "gateway": 60, "warehouse": 60}
    assert all(len(set(shard["digests"].values())) == 1 for shard in report["shards"])
    assert "all equal" in run("verify", "--gateway", gateway).out

    opened.put_cell(uuid5(NAMESPACE, "later"), "BASE", 1, {})
    assert "warehouse is 1 behind" in run("verify", "--parquet", str(table)).out

    honest = WarehouseTable.digests

    def one_cell_too_many(self: WarehouseTable, *what: Any) -> Any:
        digests = honest(self, *what)
        digests[2].add(digests[2].next_added_id, UUID(KEY).bytes, "BASE", 1, b"{}")
        return digests

    monkeypatch.setattr(WarehouseTable, "digests", one_cell_too_many)
    said = run("verify", "--parquet", str(table))
    assert said.code == 1
    assert "shards [2] differ" in said.out

    query = run("warehouse", "query", "SELECT count(*) AS n, '[/x]' AS text FROM latest", "--json")
    assert query.lines == [{"n": 60, "text": "[/x]"}]
    assert "[/x]" in run("warehouse", "query", "SELECT '[/x]' AS text").out
    assert run("warehouse", "status", "--json").lines[0]["rows"] == 60


def test_wrong_sql_is_one_line_that_says_what_is_wrong(run: Run, run_dir: RunDir) -> None:
    make_table(run_dir.inside("warehouse"), "trips")
    for sql in ("SELEC 1", "SELECT nothing FROM cells"):
        said = run("warehouse", "query", sql)
        assert (said.code, len(said.err.splitlines())) == (2, 1), said.err
        assert f"SQL {sql!r}: " in said.err


# --- parked cells, status -------------------------------------------------------------------------


def park(opened: Datastore, added_id: int) -> None:
    now_us = time.time_ns() // 1000
    parked = ParkedCells(opened.state)
    cell = ParkedCell(
        group="billing",
        topic="trips",
        partition=1,
        added_id=added_id,
        row_key=KEY,
        column_name="BASE",
        ref_key=1,
        error="Traceback\nCardDeclined: no [/money]",
        attempts=5,
        parked_at_us=now_us,
        last_tried_at_us=now_us,
    )
    opened.state.commit(parked.entry(cell))


def test_parked_cells_are_listed_shown_retried_and_skipped_with_a_reason(
    run: Run, opened: Datastore
) -> None:
    assert "nothing is parked" in run("parked", "list").out
    park(opened, 3)
    park(opened, 4)
    assert "CardDeclined: no [/money]" in run("parked", "list").out
    assert [cell["added_id"] for cell in run("parked", "list", "billing", "--json").lines] == [3, 4]
    assert "Traceback\nCardDeclined: no [/money]" in run("parked", "show", "billing", "1/3").out
    assert run("parked", "retry", "billing", "--json").lines == [{"to_be_tried_again": 2}]
    assert all(cell.retry_asked for cell in ParkedCells(opened.state).all("billing"))
    assert run("parked", "skip", "billing", "1/3", "--reason", " ").code == 2
    assert (
        run("parked", "skip", "billing", "1/3", "--reason", "paid by hand").out == "1/3 skipped\n"
    )
    assert run("parked", "skip", "billing", "1/3", "--reason", "again").code == 1
    assert [
        cell["skipped_because"] for cell in run("parked", "list", "--skipped", "--json").lines
    ] == ["paid by hand"]


def test_parked_cells_are_exported_with_error_and_body(
    run: Run, opened: Datastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.put_cell(KEY, "BASE", 1, {"text": 'a "quoted", line\nand ünïcode', "n": 1})
    park(opened, 3)
    park(opened, 4)
    said = run("parked", "export", "billing")
    assert [(cell["shard"], cell["added_id"], cell["attempts"]) for cell in said.lines] == [
        (1, 3, 5),
        (1, 4, 5),
    ]
    assert said.lines[0]["error"] == "Traceback\nCardDeclined: no [/money]"
    assert said.lines[0]["body"] == {"text": 'a "quoted", line\nand ünïcode', "n": 1}
    assert "2 parked cells of billing" in said.err

    table = tmp_path / "parked.csv"
    assert run("parked", "export", "billing", "--format", "csv", "--output", str(table)).code == 0
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [json.loads(row["body"]) for row in rows] == [cell["body"] for cell in said.lines]
    assert [row["error"] for row in rows] == [cell["error"] for cell in said.lines]
    assert run("parked", "export", "billing", "--output", str(table)).code == 2, (
        "another file was written over"
    )

    monkeypatch.setattr(Datastore, "get_cells", unavailable)
    assert run("parked", "export", "billing", "--output", str(tmp_path / "half")).code == 1
    assert not (tmp_path / "half").exists()


def unavailable(*_arguments: object) -> None:
    raise StorageUnavailable("away, says the test")


def test_what_was_skipped_and_what_has_no_cell_any_more_is_exported_too(
    run: Run, opened: Datastore
) -> None:
    park(opened, 3)
    assert run("parked", "export", "billing").lines[0]["body"] is None
    run("parked", "skip", "billing", "1/3", "--reason", "paid by hand")
    assert run("parked", "export", "billing").lines == []
    assert [
        cell["skipped_because"] for cell in run("parked", "export", "billing", "--skipped").lines
    ] == ["paid by hand"]


def test_a_stopped_trigger_is_shown_and_resumed(run: Run, opened: Datastore) -> None:
    park(opened, 3)
    StoreCoordinator(opened.state).commit_offsets("billing", {})
    ParkedCells(opened.state).stop("billing", "100 cells [/parked]")
    assert run("parked", "resume", "billing").out == "billing has resumed\n"
    assert ParkedCells(opened.state).stopped_because("billing") is None
    assert run("parked", "resume", "billing").code == 1


def test_status_tells_processes_logs_and_lag(run: Run, run_dir: RunDir, opened: Datastore) -> None:
    fill(opened, 10)
    ends = {shard: head.watermark for shard, head in opened.heads().items()}
    from cellfeed.bridge.coordination.contract import CommittedOffset

    StoreCoordinator(opened.state).commit_offsets(
        "readers", {("trips", 0): CommittedOffset(ends[0])}
    )
    run_dir.record(ProcessEntry("gateway", "gateway", 999_999_999, {"kafka": 1}, "-"))
    said = run("status", "--json").lines[0]
    assert [(process["name"], process["up"]) for process in said["processes"]] == [
        ("worker", True),
        ("gateway", False),
    ]
    assert {int(shard): head["watermark"] for shard, head in said["shards"].items()} == ends
    assert said["groups"] == [
        {
            "group": "readers",
            "topic": "trips",
            "behind": 10 - ends[0],
            "parked": 0,
            "stopped_because": None,
            "at_most": False,
        }
    ]
    text = run("status").out
    assert "10 cells in 4 shards" in text
    assert f"3:{ends[3]}" in text
    assert "down" in text


def test_status_tells_of_loops_that_died(run: Run, run_dir: RunDir, opened: Datastore) -> None:
    assert run("status", "--json").lines[0]["processes"][0]["troubles"] == []
    run_dir.say_troubles("worker", [LoopTrouble("writer-trips", "MemoryError: [/x]", 1, True, 0.0)])
    said = "writer-trips is dead, restart the process: MemoryError: [/x]"
    assert run("status", "--json").lines[0]["processes"][0]["troubles"] == [said]
    assert f"worker: {said}" in run("status").out


def test_status_of_thousands_of_shards_is_a_line(
    run: Run, opened: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(opened, 10)
    ends = [head.watermark for head in opened.heads().values()]
    monkeypatch.setattr("cellfeed.cli.status._SHARDS_PRINTED_MAX", 3)
    assert f"watermarks {min(ends)} to {max(ends)} (4 shards; --json has each)" in " ".join(
        run("status").out.split()
    )


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("put", "nobody", "BASE", "1", "{}"), 2, "'nobody' is not a UUID"),
        (("put", KEY, "", "1", "{}"), 2, "column"),
        (("put", KEY, "BASE", str(1 << 63), "{}"), 2, "ref key"),
        (("put", KEY, "BASE", "1", "[1]"), 2, "object"),
        (("put", KEY, "BASE", "1", '{"a":NaN}'), 2, "JSON"),
        (("put", KEY, "BASE", "1", '{"a":1,"a":2}'), 2, "'a'"),
        (("put", KEY, "BASE", "1", "{}", "--datastore", "other"), 1, "other"),
        (("get", KEY, "BASE", "9"), 1, "no cell"),
        (("scan", "99"), 1, "shard 99"),
        (("scan", "0", "yesterday"), 2, "'yesterday'"),
        (("scan", "0", "2019-03-23T20:21:09"), 2, "time zone"),
        (("load", "nowhere.csv", "--column", "BASE", "--row-key", "id"), 2, "nowhere.csv"),
        (("load", __file__, "--column", "BASE", "--row-key", "id"), 2, "format"),
        (("warehouse", "status"), 1, "warehouse"),
        (("parked", "show", "billing", "1/2"), 1, "'billing'"),
        (("start", "nobody"), 1, "'nobody'"),
        (("start", "worker"), 2, "runs already"),
        (("status", "--run-dir", "nowhere"), 1, "nowhere"),
        (("get", KEY, "--run-dir", "nowhere"), 1, "cellfeed up"),
        (("get", KEY, "--url", "ftp://x"), 2, "ftp://x"),
        (("run", "nobody"), 1, "'nobody'"),
    ],
)
def test_a_refusal_is_one_line_with_the_value_and_an_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    said = run(*arguments)
    assert said.code == code, said
    assert says in said.err
    assert len(said.err.strip().splitlines()) == 1, said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("put",),
        ("scan", "x"),
        ("nonsense",),
        ("parked", "skip", "billing", "1/2"),
        ("scan", "0", "--limit", "0"),
    ],
)
def test_a_command_that_is_not_understood_is_exit_code_2(
    run: Run, arguments: tuple[str, ...]
) -> None:
    said = run(*arguments)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_the_version_is_told(run: Run) -> None:
    from cellfeed import __version__

    assert run("--version").out.startswith(f"cellfeed {__version__}\nembedded store: reads ")
