"""``cellfeed demo`` as a newcomer runs it: every line of its proof holds, nothing is left running,
and a proof that is false is reported by the exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from rich.console import Console

from cellfeed.cli.output import progress_bar
from cellfeed.demo.run import DEMO_DATASTORE, run_demo
from cellfeed.loading.taxi import expected_figures, shipped_csv
from cellfeed.run_dir import RunDir
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import DataDamaged
from tests.support.cli_instance import accepts, ended, of_run_dir, processes
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("demo")]

CELLFEED = str(Path(sys.executable).with_name("cellfeed"))
"""The installed command: the words that a user types."""

DEMO_TIMEOUT_S = 110.0
FEW_TRIPS = 150
PROOF_LINES = 9


def start_demo(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo in a folder of its own, its run directory where it puts it by itself."""
    environment = {**os.environ, "COLUMNS": "200"}
    command = [CELLFEED, "demo", *arguments]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(demo: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and everything that was said."""
    try:
        said, _ = demo.communicate(timeout=DEMO_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        demo.kill()
        said, _ = demo.communicate()
        pytest.fail(f"the demo did not end:\n{said}")
    return demo.returncode, said


def proof_lines(said: str) -> list[str]:
    return [
        line.rstrip()
        for line in said.splitlines()
        if line.rstrip().endswith((" holds", "DOES NOT HOLD"))
    ]


def suggested(said: str) -> list[str]:
    """The commands that the demo ends with."""
    _, _, following = said.partition("Try next:\n")
    lines = following.split("\n\n")[0].splitlines()
    return [re.split(r"  +", line.strip())[0] for line in lines]


def typed(command: str, directory: Path) -> str:
    """The output of a command where the demo was typed; fails where it does not end well."""
    done = subprocess.run(
        command, shell=True, cwd=directory, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def few_trips(tmp_path: Path) -> Path:
    """The first trips of the shipped file: the same demo in a few seconds."""
    path = tmp_path / "few.csv"
    path.write_text("".join(shipped_csv().read_text().splitlines(keepends=True)[: FEW_TRIPS + 1]))
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    with ended(tmp_path / "demo-run"):
        yield tmp_path / "demo-run"


def test_the_demo_proves_every_figure_and_leaves_nothing_running(
    tmp_path: Path, run_dir: Path
) -> None:
    code, said = finish(start_demo(tmp_path))
    assert code == 0, said
    lines = proof_lines(said)
    assert len(lines) == PROOF_LINES, said
    assert all(line.endswith(" holds") for line in lines)
    figures = expected_figures()
    assert figures.trips == 6_433
    cells = figures.cells + figures.trips
    assert any(
        f"CSV {cells:,}   store {cells:,}   Kafka {cells:,}   Parquet {cells:,}" in line
        for line in lines
    )
    charged = f"${figures.card_cents // 100:,}.{figures.card_cents % 100:02d}"
    assert any(f"CSV {charged}   provider {charged}   Parquet {charged}" in line for line in lines)
    assert any("all 16   store = Kafka = Parquet 16" in line for line in lines)
    assert not of_run_dir(run_dir)
    assert "Traceback" not in said
    query, up, status, down = suggested(said)
    assert re.search(r"^Manhattan +[0-9]+ *$", typed(query, tmp_path), re.MULTILINE)
    typed(up, tmp_path)
    assert set(processes(run_dir)) == {"worker", "gateway", "billing", "warehouse"}
    assert DEMO_DATASTORE in typed(status, tmp_path)
    typed(down, tmp_path)
    assert not of_run_dir(run_dir)
    logs = {path.name: path.read_text() for path in (run_dir / "logs").iterdir()}
    assert {
        name: ends for name, text in logs.items() if (ends := _unexpected_tracebacks(text))
    } == {}


def _unexpected_tracebacks(log: str) -> list[str]:
    """The last lines of those that are no card that was declined: billing meets some in each
    demo."""
    ends: list[str] = re.findall(r"Traceback .*\n(?: .*\n)*(.*)", log)
    return [each for each in ends if "card_provider.CardDeclined: card declined" not in each]


def test_a_demo_that_is_kept_serves_until_down_and_its_proof_can_be_made_again(
    tmp_path: Path, run_dir: Path, few_trips: Path
) -> None:
    code, said = finish(start_demo(tmp_path, "--keep", "--csv", str(few_trips)))
    assert code == 0, said
    kept = processes(run_dir)
    assert set(kept) == {"worker", "gateway", "billing", "warehouse", "console"}
    assert all(accepts(port) for entry in kept.values() for port in entry["ports"].values())
    status = subprocess.run(
        [CELLFEED, "status", "--json", "--run-dir", str(run_dir)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(status.stdout)
    shown, kcat, tail, query, schema, down = suggested(said)
    with urllib.request.urlopen(f"{shown}/groups", timeout=60) as groups:
        assert "billing" in groups.read().decode()
    assert kcat.startswith(f"kcat -b 127.0.0.1:{kept['gateway']['ports']['kafka']} ")
    assert len(typed(f"{tail} --seconds 1", tmp_path).splitlines()) == 10
    assert re.search(r"^Manhattan +[0-9]+ *$", typed(query, tmp_path), re.MULTILINE)
    assert schema == f"http://127.0.0.1:{kept['worker']['ports']['http']}/schema"

    again = start_demo(tmp_path, "--csv", str(few_trips))
    code, said = finish(again)
    assert (code, "cellfeed down" in said) == (
        2,
        True,
    ), "a second demo does not empty the directory of one that runs"

    # The same steps over the same trips change nothing and prove the same; one data file less, and
    # the proof is refused.
    directory, silent = RunDir(run_dir), Console(quiet=True)
    assert all(line.agrees for line in run_demo(directory, silent, progress_bar, few_trips))
    next(iter((run_dir / "warehouse").rglob("shard-*/*.parquet"))).unlink()
    with pytest.raises(DataDamaged):
        run_demo(directory, silent, progress_bar, few_trips)

    typed(down, tmp_path)
    assert not of_run_dir(run_dir)
    assert not any(accepts(port) for entry in kept.values() for port in entry["ports"].values())


def test_one_cent_in_the_providers_books_makes_the_proof_false_and_the_exit_code_1(
    tmp_path: Path, run_dir: Path, few_trips: Path
) -> None:
    demo = start_demo(tmp_path, "--csv", str(few_trips))
    try:
        wait_until(
            lambda: demo.poll() is not None or add_a_cent(run_dir / "billing" / "charges.sqlite3"),
            "the first card is charged",
            DEMO_TIMEOUT_S,
        )
    finally:
        code, said = finish(demo)
    lines = proof_lines(said)
    assert len(lines) == PROOF_LINES, said
    [false] = [line for line in lines if line.endswith("DOES NOT HOLD")]
    assert false.strip().startswith("charged ")
    assert code == 1
    assert not of_run_dir(run_dir)


def test_an_interrupted_demo_ends_the_processes_that_it_started(
    tmp_path: Path, run_dir: Path
) -> None:
    demo = start_demo(tmp_path)
    try:
        wait_until(
            lambda: demo.poll() is not None or (run_dir / "billing" / "charges.sqlite3").exists(),
            "billing has begun",
            DEMO_TIMEOUT_S,
        )
        assert len(of_run_dir(run_dir)) >= 3, "there is something to end"
        demo.send_signal(signal.SIGINT)
    finally:
        code, said = finish(demo)
    assert code == 128 + signal.SIGINT
    assert not proof_lines(said)
    assert not of_run_dir(run_dir)


def test_a_directory_of_another_owner_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "demo-run").mkdir()
    precious = tmp_path / "demo-run" / "thesis.txt"
    precious.write_text("years of work")
    code, said = finish(start_demo(tmp_path))
    assert (code, "does not empty it" in said) == (2, True)
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize("name", ["trips", DEMO_DATASTORE])
def test_the_run_directory_of_another_instance_is_not_emptied(tmp_path: Path, name: str) -> None:
    """Also where its datastore has the name of the demo's."""
    place = tmp_path / "demo-run"
    with Datastore.open_embedded(place / "store", name, 1) as store:
        store.put_new_cells(rides(0, 3))
    (place / "config.yaml").write_text(f"datastore: {{name: {name}, shards: 1}}\n")
    code, said = finish(start_demo(tmp_path))
    assert (code, "is not a run directory of the demo" in said) == (2, True), said
    with Datastore.open_embedded(place / "store", name, 1) as store:
        assert store.heads()[0].next_added_id == 3


def add_a_cent(books: Path) -> bool:
    """Changes the first charge, once there is one."""
    if not books.exists():
        return False
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(books, timeout=1.0, isolation_level=None)) as connection,
    ):
        changed = connection.execute(
            "UPDATE charge SET amount_cents = amount_cents + 1 WHERE rowid = (SELECT min(rowid)"
            " FROM charge)"
        )
        return changed.rowcount == 1
    time.sleep(0.01)
    return False
