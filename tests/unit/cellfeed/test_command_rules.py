"""Rules of commands that change data: options that go together, moments and ages, ids that nobody
may get again, exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, cast
from uuid import UUID

import pytest
import typer
from typer.testing import CliRunner

from cellfeed.assembly import check_metrics
from cellfeed.bridge.events.views import View
from cellfeed.cli import (
    cells,
    lifecycle,
    main,
    parked,
    restore_point,
    trim,
    wait,
)
from cellfeed.cli.main import command_line
from cellfeed.cli.output import cell_as_json
from cellfeed.cli.parked_export import _record
from cellfeed.cli.restore_options import refuse_together
from cellfeed.cli.restore_readers import first_new_ids, ids_read
from cellfeed.cli.up_options import UpOptions
from cellfeed.config.gateway import GatewayListenerConfig, GatewayProcessConfig
from cellfeed.config.model import Config, WorkerConfig
from cellfeed.status import records_behind
from cellfeed.store.backups.manifest import Manifest
from cellfeed.store.backups.readers_ahead import IDS_LEFT_OUT
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, Unavailable
from cellfeed.store.limits import ADDED_ID_MAX
from cellfeed.store.waits.waiting import Passed, Place

ROW = UUID(int=7)
MANIFEST = cast(
    "Manifest",
    SimpleNamespace(
        shards=3, logs=[SimpleNamespace(shard=shard, watermark=10) for shard in range(3)]
    ),
)

# --- restore --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row_key", "shard", "whole", "part", "says"),
    [
        (str(ROW), 3, False, False, "exclude each other"),
        (str(ROW), None, True, False, "--at goes without a --row-key or --shard"),
        (None, 0, True, False, "--at goes without a --row-key or --shard"),
        (None, None, False, True, "--dry-run goes with a --row-key or --shard"),
    ],
)
def test_options_of_a_part_and_of_a_whole_backup_do_not_go_together(
    row_key: str | None, shard: int | None, whole: bool, part: bool, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        refuse_together(row_key, shard, {"--at": whole}, {"--dry-run": part})


def test_options_of_one_kind_go_together() -> None:
    refuse_together(None, None, {"--at": True}, {"--dry-run": False})
    refuse_together(str(ROW), None, {"--at": False}, {"--dry-run": True})
    refuse_together(None, 0, {"--at": False}, {"--dry-run": True})


def test_a_printed_moment_has_its_time_zone() -> None:
    at_us = restore_point._microseconds("2026-03-01T12:00:00+01:00")
    assert at_us == restore_point._microseconds("2026-03-01T11:00:00Z") == 1_772_362_800_000_000
    with pytest.raises(InvalidRequest, match="has no time zone"):
        restore_point._microseconds("2026-03-01T12:00:00")
    with pytest.raises(InvalidRequest, match="is no moment"):
        restore_point._microseconds("yesterday")


def test_of_the_ids_that_readers_have_seen_the_highest_counts() -> None:
    assert ids_read(["1:50", "40", "1:20", "2:60"], MANIFEST) == {0: 40, 1: 50, 2: 60}
    largest = ADDED_ID_MAX - IDS_LEFT_OUT - 1
    assert ids_read([f"0:{largest}"], MANIFEST) == {0: largest}
    for text in (f"0:{largest + 1}", "x", "0:", ":x", "a:1", "-1"):
        with pytest.raises(InvalidRequest, match="is not of the form 120000 or 3:120000"):
            ids_read([text], MANIFEST)


def test_new_ids_are_above_every_id_seen_or_given_out() -> None:
    readers = [SimpleNamespace(shard=0, location=30), SimpleNamespace(shard=0, location=20)]
    named = {1: 50, 2: 5}
    given = cast("Any", readers)
    assert first_new_ids(MANIFEST, given, named, raised=False) == named
    found = first_new_ids(MANIFEST, given, named, raised=True)
    assert found == {0: 30 + IDS_LEFT_OUT, 1: 50 + IDS_LEFT_OUT, 2: 10 + IDS_LEFT_OUT}


# --- trim -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "seconds"), [("30s", 30), ("15m", 900), ("36h", 129_600), ("90d", 7_776_000)]
)
def test_an_age_has_a_unit(age: str, seconds: int) -> None:
    assert trim._seconds(age) == seconds
    with pytest.raises(InvalidRequest, match="is not of the form"):
        trim._seconds(age[:-1])


@pytest.mark.parametrize(
    ("shard", "all_shards", "below", "older_than", "says"),
    [
        (None, False, 5, None, "say which shards"),
        ([1], True, None, "1d", "say which shards"),
        ([1], False, None, None, "name the cells that go"),
        ([1], False, 5, "1d", "name the cells that go"),
        (None, True, 5, None, "--below is an added_id of one shard"),
    ],
)
def test_a_trim_names_its_shards_and_cells(
    shard: list[int] | None, all_shards: bool, below: int | None, older_than: str | None, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        trim._check(shard, all_shards=all_shards, below=below, older_than=older_than)
    trim._check([1], all_shards=False, below=0, older_than=None)
    trim._check(None, all_shards=True, below=None, older_than="1d")


# --- parked cells, and cells as commands print them -----------------------------------------------


def test_a_file_that_broke_off_does_not_stay_and_none_is_written_over(tmp_path: Path) -> None:
    def breaks(file: TextIO) -> int:
        file.write("half")
        raise KeyboardInterrupt

    path = tmp_path / "parked.ndjson"
    with pytest.raises(KeyboardInterrupt):
        parked._write_file(path, breaks)
    assert not path.exists()
    assert parked._write_file(path, lambda file: file.write("whole")) == len("whole")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        parked._write_file(path, breaks)
    assert path.read_text() == "whole"


def test_a_printed_erased_cell_has_no_body(datastore: Datastore) -> None:
    datastore.put_cell(ROW, "BASE", 1, {"secret": 1})
    place = datastore.get_cell(ROW, "BASE", 1)
    assert place is not None
    assert cell_as_json(place)["body"] == {"secret": 1}
    datastore.erase_row(ROW)
    erased = datastore.get_cells_for_shard(place.shard, 0, 1).cells[0]
    assert erased.erased
    fields = dict.fromkeys(
        ("partition", "added_id", "ref_key", "attempts", "parked_at_us", "last_tried_at_us"), 0
    )
    texts = dict.fromkeys(("group", "row_key", "column_name", "skipped_because", "error"), "")
    cell = cast("Any", SimpleNamespace(**fields, **texts, ended=False, is_behind=False))
    assert cell_as_json(erased)["body"] is _record(cell, erased)["body"] is None
    assert _record(cell, place)["body"] == {"secret": 1}
    assert _record(cell, None)["body"] is None


# --- exit codes -----------------------------------------------------------------------------------


def answered_by(store: Any) -> Callable[..., Any]:
    @contextmanager
    def client_of(*_: object) -> Iterator[Any]:
        yield store

    return client_of


@pytest.mark.parametrize(("parked_cells", "code"), [([], 0), ([Place(0, 1)], 1)])
def test_a_wait_for_a_cell_that_is_parked_fails(
    monkeypatch: pytest.MonkeyPatch, parked_cells: list[Place], code: int
) -> None:
    passed = Passed("trigger 'billing'", parked_cells)
    store = SimpleNamespace(wait_for=lambda *_, **__: passed)
    monkeypatch.setattr(wait, "client_of", answered_by(store))
    result = CliRunner().invoke(command_line("wait"), ["wait", "h:0.1", "--trigger", "billing"])
    assert result.exit_code == code


def test_a_scan_gives_as_many_cells_as_asked_for_over_pieces(
    monkeypatch: pytest.MonkeyPatch, datastore: Datastore
) -> None:
    for number in range(5):
        datastore.put_cell(ROW, "BASE", number, {})
    shard, scanned = datastore.shard_of(ROW), list[tuple[int, int]]()
    monkeypatch.setattr(
        cells, "print_cell", lambda cell, _: scanned.append((cell.shard, cell.added_id))
    )

    def piece(shard: int, location: Any, limit: int) -> Any:
        return datastore.get_cells_for_shard(shard, location, min(limit, 2))

    store = SimpleNamespace(
        shards=datastore.shards, heads=datastore.heads, get_cells_for_shard=piece
    )
    monkeypatch.setattr(cells, "client_of", answered_by(store))
    for limit, found in ((3, 3), (4, 4), (100, 5)):
        scanned.clear()
        words = ["scan", str(shard), "--limit", str(limit)]
        assert CliRunner().invoke(command_line("scan"), words).exit_code == 0
        assert scanned == [(shard, added_id) for added_id in range(found)]


@pytest.mark.parametrize(("code", "passed_on"), [(2, True), (3, True), (1, False), (-9, False)])
def test_a_detached_start_passes_a_refusal_on(tmp_path: Path, code: int, passed_on: bool) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier run\nrefused\n")
    ended = cast("subprocess.Popen[bytes]", SimpleNamespace(poll=lambda: code, returncode=code))
    with pytest.raises((typer.Exit, Unavailable)) as raised:
        lifecycle._wait_until_up(ended, log, len("an earlier run\n"))
    if passed_on:
        assert isinstance(raised.value, typer.Exit)
        assert raised.value.exit_code == code
    else:
        assert str(raised.value) == "it did not start:\nrefused"


@pytest.mark.parametrize("path", ["/nowhere/file", None])
def test_a_wrong_path_is_reported_in_one_line_and_a_failing_system_with_its_trace(
    monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    def fails(_first: object) -> Callable[[], None]:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(main, "command_line", fails)
    monkeypatch.setattr(sys, "argv", ["cellfeed", "status"])
    with pytest.raises(SystemExit if path else FileNotFoundError) as raised:
        main.main()
    if path:
        assert cast("SystemExit", raised.value).code == 2


# --- options of up --------------------------------------------------------------------------------


def test_options_reach_a_detached_instance_also_a_port_of_0() -> None:
    assert UpOptions(port=0, registry_port=8082).words() == [
        "--port",
        "0",
        "--registry-port",
        "8082",
    ]


def test_a_port_is_for_the_only_entry_and_not_for_listeners() -> None:
    config = UpOptions(port=0, kafka_port=0).applied(Config())
    assert (config.workers[0].port, config.gateways[0].port) == (0, 0)
    assert config.gateways[0].registry_port == GatewayProcessConfig().registry_port
    two = Config(workers=[WorkerConfig("a"), WorkerConfig("b")])
    with pytest.raises(InvalidRequest, match="has 2 workers"):
        UpOptions(port=0).applied(two)
    listening = Config(gateways=[GatewayProcessConfig(listeners=[GatewayListenerConfig("a")])])
    with pytest.raises(InvalidRequest, match="has listeners"):
        UpOptions(kafka_port=0).applied(listening)


# --- what is measured -----------------------------------------------------------------------------


def test_a_check_that_never_ended_is_infinitely_old() -> None:
    def age(known_s: float | None) -> float:
        known = SimpleNamespace(age_s=lambda _now: known_s, found=None)
        gauges = check_metrics.CheckMetrics(cast("Any", SimpleNamespace(known=known))).collect()
        [age] = [each for each in gauges if each.name == "cellfeed_check_age_seconds"]
        return float(age.samples[0].value)

    assert (age(None), age(12.0)) == (float("inf"), 12.0)


def test_every_record_behind_a_group_counts_over_pieces_of_the_log(
    monkeypatch: pytest.MonkeyPatch, datastore: Datastore
) -> None:
    monkeypatch.setattr(records_behind, "_SCAN_CELLS", 2)
    for number in range(9):
        datastore.put_cell(ROW, "BASE" if number % 3 else "NOTES", number, {})
    shard = datastore.shard_of(ROW)

    def count(behind: range) -> tuple[int, bool]:
        return records_behind.records_behind(datastore, View("BASE"), {shard: behind})

    assert count(range(9)) == (6, False)
    assert count(range(1, 8)) == (5, False)
    assert count(range(3, 3)) == (0, False)
    monkeypatch.setattr(records_behind, "CELLS_MAX", 4)
    assert count(range(9)) == (2 + 5, True), "behind the cells that were looked at ids are counted"
