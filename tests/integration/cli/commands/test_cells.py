"""Cells by hand: put, get, scan, tail, load."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from tests.support.cli_said import KEY, Run, fill

pytestmark = pytest.mark.integration


def test_put_prints_the_place_of_the_cell_and_the_same_again_for_the_same_cell(run: Run) -> None:
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


def test_scan_reads_a_log_from_an_id_or_a_time_and_prints_the_next_id(
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
