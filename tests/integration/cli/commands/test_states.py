"""The status of an instance, and refusals with their exit codes."""

from __future__ import annotations

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.processes.reports import ProcessEntry
from cellfeed.run_dir import RunDir
from cellfeed.store.background import LoopTrouble
from cellfeed.store.datastore import Datastore
from tests.support.cli_said import KEY, Run, fill, park

pytestmark = pytest.mark.integration


def test_a_stopped_trigger_is_shown_and_resumed(run: Run, opened: Datastore) -> None:
    park(opened, 3)
    StoreCoordinator(opened.state).commit_offsets("billing", {})
    ParkedCells(opened.state).stop("billing", "100 cells [/parked]")
    assert run("parked", "resume", "billing").out == "billing has resumed\n"
    assert ParkedCells(opened.state).stopped_because("billing") is None
    assert run("parked", "resume", "billing").code == 1


def test_status_shows_processes_logs_and_lag(run: Run, run_dir: RunDir, opened: Datastore) -> None:
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
    assert said["groups"][0].pop("committed_at_us") > 0
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


def test_status_names_loops_that_died(run: Run, run_dir: RunDir, opened: Datastore) -> None:
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


def test_the_version_option_prints_the_version(run: Run) -> None:
    from cellfeed import __version__

    assert run("--version").out.startswith(f"cellfeed {__version__}\nembedded store: reads ")
