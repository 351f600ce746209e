"""``cellfeed load`` as a person meets it: the output of a dry run, the questions on a terminal, and
the last lines."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.loading.taxi import TRIP_NAME_FIELDS, shipped_csv
from cellfeed.store.http.client import Client
from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, processes, running

pytestmark = [pytest.mark.integration]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running(tmp_path_factory.mktemp("load")) as found:
        yield found


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    port = processes(run_dir)["worker"]["ports"]["http"]
    with Client(f"http://127.0.0.1:{port}", "trips") as found:
        yield found


def arguments(run_dir: Path, file: Path, *more: str) -> list[str]:
    return ["load", str(file), "--column", "BASE", "--run-dir", str(run_dir), *more]


def cells_in(client: Client) -> int:
    return sum(head.watermark for head in client.heads().values())


def file_of(tmp_path: Path, lines: int, *, fare: object = "1.25") -> Path:
    path = tmp_path / "trips.csv"
    path.write_text(
        "id,fare,zip\n"
        + "".join(
            f"{uuid.uuid5(uuid.NAMESPACE_URL, str(tmp_path) + str(n))},{fare},007\n"
            for n in range(lines)
        )
    )
    return path


def on_a_terminal(words: list[str], answer: bytes) -> tuple[int, str]:
    """The exit code and all that a command says to a terminal, which answers."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CELLFEED, *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "120"},
    )
    os.close(theirs)
    os.write(mine, answer)
    said = b""
    try:
        while piece := os.read(mine, 65_536):
            said += piece
    except OSError:
        pass  # the terminal is closed
    os.close(mine)
    return process.wait(30), said.decode()


def test_a_dry_run_shows_types_keys_examples_and_writes_nothing(
    run_dir: Path, client: Client, tmp_path: Path
) -> None:
    before = cells_in(client)
    said = cellfeed(
        *arguments(
            run_dir, shipped_csv(), "--row-key-from", ",".join(TRIP_NAME_FIELDS), "--dry-run"
        )
    )
    assert said.returncode == 0, said.stderr
    assert cells_in(client) == before
    for text in (
        "csv, 6,433 records, into column BASE of datastore trips",
        "passengers",
        "int (inferred)",
        "float (inferred)",
        "row key: made from pickup, dropoff, pickup_zone, dropoff_zone, total; ref key: 1",
        '"color":"yellow"',
        "6,433 cells: 6,433 new, 0 there already",
        "nothing was written (--dry-run)",
    ):
        assert text in said.stdout


def test_a_dry_run_finds_conflicts_with_the_store_and_within_the_file(
    run_dir: Path, client: Client, tmp_path: Path
) -> None:
    file = file_of(tmp_path, 20)
    assert cellfeed(*arguments(run_dir, file, "--row-key", "id")).returncode == 0
    lines = file.read_text().splitlines()
    changed = [lines[0], *(line.replace("1.25", "9.5") for line in lines[1:4]), *lines[4:]]
    new = f"{uuid.uuid4()},1,007"
    file.write_text("\n".join([*changed, new, new, new.replace(",1,", ",2,")]))
    before = cells_in(client)
    said = cellfeed(*arguments(run_dir, file, "--row-key", "id", "--dry-run", "--json"))
    found = json.loads(said.stdout)
    assert said.returncode == 1
    assert [found[name] for name in ("new", "exists", "conflicts", "repeated", "failed")] == [
        1,
        17,
        4,
        1,
        0,
    ]
    assert [(each["line"], each["count"]) for each in found["problems"]] == [(24, 1), (2, 3)]
    assert cells_in(client) == before


def test_a_terminal_is_asked_once_and_a_no_writes_nothing(
    run_dir: Path, client: Client, tmp_path: Path
) -> None:
    words = arguments(run_dir, file_of(tmp_path, 300), "--row-key", "id")
    before = cells_in(client)
    code, said = on_a_terminal(words, b"n\n")
    assert (code, cells_in(client)) == (1, before)
    assert "float (inferred)" in said
    assert "Load them? [y/N]" in said
    assert "nothing was written" in said
    code, said = on_a_terminal(words, b"y\n")
    assert (code, cells_in(client)) == (0, before + 300), said
    assert "stored 300" in said
    code, said = on_a_terminal(words, b"")
    assert code == 0
    assert "Load them?" not in said
    assert "exists 300" in said


def test_other_types_for_an_already_loaded_file_are_asked_about(
    run_dir: Path, client: Client, tmp_path: Path
) -> None:
    file = file_of(tmp_path, 50)
    assert cellfeed(*arguments(run_dir, file, "--row-key", "id")).returncode == 0
    before = cells_in(client)
    code, said = on_a_terminal(arguments(run_dir, file, "--row-key", "id", "--all-text"), b"n\n")
    assert (code, cells_in(client)) == (1, before)
    assert "50 conflicts" in said


def test_yes_asks_nothing_on_a_terminal(run_dir: Path, client: Client, tmp_path: Path) -> None:
    before = cells_in(client)
    words = arguments(run_dir, file_of(tmp_path, 5), "--row-key", "id", "--yes")
    code, said = on_a_terminal(words, b"")
    assert (code, cells_in(client)) == (0, before + 5), said


def test_the_end_of_a_load_shows_rate_time_and_bytes(run_dir: Path, tmp_path: Path) -> None:
    file = file_of(tmp_path, 2_000)
    said = cellfeed(*arguments(run_dir, file, "--row-key", "id"))
    assert said.returncode == 0, said.stderr
    counts, rate = said.stdout.splitlines()
    assert counts.startswith("stored 2000, exists 0, ")
    assert rate.startswith("92.0 kB in ")
    assert "cells/s" in rate
    again = json.loads(cellfeed(*arguments(run_dir, file, "--row-key", "id", "--json")).stdout)
    assert (again["bytes"], again["exists"]) == (file.stat().st_size, 2_000)
    assert again["cells_per_s"] > 0


def test_a_load_stops_at_too_many_errors_with_a_clear_end(run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "trips.csv"
    file.write_text("id,n\n" + "".join(f"nobody{n},{n}\n" for n in range(20_000)))
    said = cellfeed(*arguments(run_dir, file, "--row-key", "id"))
    assert said.returncode == 1
    named, stopped = said.stderr.splitlines()
    assert named.startswith("line 2: failed: row key 'nobody0' is not a UUID")
    assert "more like it: lines 3, 4, 5, 6, …)" in named
    assert stopped.startswith("stopped: more than 100 errors (--max-errors). Lines behind ")
    report = json.loads(
        cellfeed(
            *arguments(run_dir, file, "--row-key", "id", "--json", "--max-errors", "30000")
        ).stdout
    )
    assert (report["failed"], report["stopped_behind_line"]) == (20_000, None)


def test_a_missing_key_field_is_one_line_before_anything_is_put(
    run_dir: Path, client: Client, tmp_path: Path
) -> None:
    before = cells_in(client)
    said = cellfeed(*arguments(run_dir, file_of(tmp_path, 5), "--row-key", "ids"))
    assert (said.returncode, cells_in(client)) == (2, before)
    assert said.stderr.count("\n") == 1
    assert "no field 'ids', which the key is to come from; it has id, fare, zip" in said.stderr
    assert "Did you mean 'id'?" in said.stderr
