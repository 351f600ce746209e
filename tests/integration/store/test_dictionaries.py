"""Dictionaries in an instance: its worker trains one in the background, its other processes read
bodies of dictionaries new to them, and its operator looks after it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellfeed.cli.main import main
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.instance.config_file import write_config
from cellfeed.store.cells.body_codec import forget_dictionaries
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.training import SAMPLES_WANTED
from cellfeed.store.engines.contract.dictionaries_of_puts import REFRESH_S
from cellfeed.store.http.client import Client
from tests.support.cli_instance import ROOT, running
from tests.support.rides import ride, rider, rides, row_of
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("no_other_stores"),
]

INSTANCE = """
datastore: {shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
warehouses: [{flush_age_s: 0.2}]
"""


Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


def put(run_dir: Path, first: int, count: int) -> None:
    ports = json.loads((run_dir / "processes.json").read_text())
    [worker] = [each for each in ports if each["kind"] == "worker"]
    with Client([f"http://127.0.0.1:{worker['ports']['http']}"], "trips") as client:
        results = client.put_cells(
            [
                (row_of(number), "BASE", 1, json.loads(ride(number).body_json))
                for number in range(first, first + count)
            ]
        )
    assert all(result.acknowledged for result in results)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the instance as its entry point does, in this process; its exit code, its
    lines, and its stderr."""
    monkeypatch.setenv("CELLFEED_RUN_DIR", str(tmp_path / "run"))

    def command(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setattr(sys, "argv", ["cellfeed", *words, "--json"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return (
            int(ended.value.code or 0),
            [json.loads(line) for line in captured.out.splitlines()],
            captured.err,
        )

    return command


def well(said: tuple[int, list[dict[str, Any]], str]) -> list[dict[str, Any]]:
    code, lines, error = said
    assert code == 0, error
    return lines


def all_equal(run: Run, run_dir: Path, cells: int) -> bool:
    [report, *_] = well(
        run("verify", "--gateway", gateway(run_dir), "--parquet", str(run_dir / "warehouse"))
    )
    return bool(report["equal"]) and report["cells"] == {
        "store": cells,
        "gateway": cells,
        "warehouse": cells,
    }


def gateway(run_dir: Path) -> str:
    [found] = [
        each
        for each in json.loads((run_dir / "processes.json").read_text())
        if each["kind"] == "gateway"
    ]
    return f"127.0.0.1:{found['ports']['kafka']}"


def codecs(run_dir: Path) -> dict[int, int]:
    with sqlite3.connect(run_dir / "store" / "trips" / "node-0.sqlite3") as connection:
        return {
            int(codec, 16): count
            for codec, count in connection.execute(
                "SELECT hex(substr(body, 1, 1)), count(*) FROM cell GROUP BY 1"
            )
        }


def test_an_instance_trains_a_dictionary_and_gateway_and_warehouse_read_bodies_of_it(
    tmp_path: Path, run: Run
) -> None:
    with running(tmp_path, INSTANCE) as run_dir:
        put(run_dir, 0, SAMPLES_WANTED)
        wait_until(
            lambda: bool(well(run("dictionary", "list"))), "the worker has trained a dictionary", 60
        )
        [told] = well(run("dictionary", "list"))
        assert (told["column"], told["use"], told["whole_on"], told["not_whole_on"]) == (
            "BASE",
            "in use",
            ["node-0.sqlite3"],
            {},
        )
        count = SAMPLES_WANTED
        while 3 not in codecs(run_dir):  # its puts learn of it within REFRESH_S
            put(run_dir, count, 100)
            count += 100
            assert count < SAMPLES_WANTED + 100_000, (
                f"no body was stored with it in many times {REFRESH_S} s"
            )
        forget_dictionaries()
        wait_until(lambda: all_equal(run, run_dir, count), "every cell is in the warehouse", 60)


def test_an_operator_trains_looks_keeps_and_recovers(tmp_path: Path, run: Run) -> None:
    directory = tmp_path / "run" / "store"
    with Datastore.open_embedded(directory, shards=4) as store:
        store.put_new_cells(rides(0, 600))
    write_config(Config(datastore=DatastoreConfig(shards=4)), tmp_path / "run" / "config.yaml")
    assert well(run("dictionary", "list")) == []
    [first] = well(run("dictionary", "train", "BASE"))
    assert first["bytes_after"] < first["bytes_before"]
    name = first["name"]
    [shown] = well(run("dictionary", "show", name))
    assert (shown["use"], shown["samples"]) == ("in use", 300)
    assert "credit card" in "".join(shown["text"])
    assert not [number for number in range(600) if rider(number) in "".join(shown["text"])]
    for words, says in (
        (("train", "BASE"), "has a dictionary in use already"),
        (("train", "NOTE"), "nothing trained: 0 bodies of 0 row keys"),
        (("recover", "--from", "c9"), "no node of a cluster 'c9' answers"),
        (("recover", "--file", str(tmp_path / "none")), "No such file"),
    ):
        code, _, error = run("dictionary", *words)
        assert (code, says in error) == (2, True), error
    assert run("dictionary", "show", "00000000")[0] == 1
    with Datastore.open_embedded(directory, shards=4) as store:
        store.put_new_cells(rides(600, 300))
    [second] = well(run("dictionary", "train", "BASE", "--again"))
    assert {each["name"]: each["use"] for each in well(run("dictionary", "list"))} == {
        name: "earlier cells",
        second["name"]: "in use",
    }
    kept = str(tmp_path / "kept")
    assert well(run("dictionary", "export", kept))[0]["dictionaries"] == 2
    assert run("dictionary", "export", kept)[0] == 2
    assert well(run("dictionary", "recover")) == [{"recovered": 0}]

    with sqlite3.connect(directory / "trips" / "node-0.sqlite3") as connection:
        connection.execute(
            "UPDATE dictionary SET content = X'00' WHERE dictionary_id = ?", (int(name, 16),)
        )
    forget_dictionaries()
    code, _, error = run("dictionary", "train", "STATUS")
    assert (
        code,
        f"dictionary {name} of column 'BASE' is damaged" in error,
        "cellfeed dictionary recover" in error,
    ) == (3, True, True)
    code, listed, _ = run("dictionary", "list")
    assert (code, [each["not_whole_on"] for each in listed if each["name"] == name]) == (
        3,
        [{"node-0.sqlite3": "damaged"}],
    )
    assert run("dictionary", "export", str(tmp_path / "more"))[0] == 3
    assert run("dictionary", "recover")[0] == 3
    assert [each["source"] for each in well(run("dictionary", "recover", "--file", kept))] == [
        "the file"
    ]
    forget_dictionaries()
    with Datastore.open_embedded(directory, shards=4) as store:
        found = sorted(
            cell.body_json
            for shard in range(4)
            for cell in store.get_cells_for_shard(shard, 0, 10_000).cells
        )
    assert found == sorted(cell.body_json for cell in rides(0, 900))


WRITER = """
import sys
from pathlib import Path
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries import trainer
from cellfeed.store.dictionaries.training import SAMPLES_MIN
from tests.support.rides import rides
trainer.SAMPLES_WANTED = SAMPLES_MIN
store = Datastore.open_embedded(Path(sys.argv[1]), shards=4)
store.train_dictionaries()
number = int(sys.argv[2])
while True:
    store.put_new_cells(rides(number, 50))
    number += 50
    print(number, flush=True)
    if number > int(sys.argv[2]) + 1_000 and store.engine.dictionaries.current():
        break
store.close()
"""


def write(directory: Path, first: int, failpoints: str) -> tuple[int, int]:
    """Runs the writer to its end; its exit code, and how far it was acknowledged."""
    environment = {**os.environ, "CELLFEED_FAILPOINTS": failpoints}
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(directory), str(first)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, int(done.stdout.split()[-1])


@pytest.mark.parametrize(
    "point",
    [
        "dictionary.before_train",
        "dictionary.before_add",
        "sqlite.dictionary.after_add",
        "dictionary.after_use",
    ],
)
def test_kill_9_of_a_writer_that_trains_loses_no_acknowledged_cell_and_the_next_one_trains(
    tmp_path: Path, point: str
) -> None:
    code, killed_at = write(tmp_path, 0, f"{point}=kill")
    assert code == -9
    code, ended_at = write(tmp_path, killed_at, "")
    assert code == 0
    with Datastore.open_embedded(tmp_path, shards=4) as store:
        found = {
            cell.row_key: cell.body_json
            for shard in range(4)
            for cell in store.get_cells_for_shard(shard, 0, 10_000).cells
        }
        assert {
            row_of(number): cell.body_json for number, cell in enumerate(rides(0, ended_at))
        }.items() <= found.items()
        assert "BASE" in store.engine.dictionaries.current()
