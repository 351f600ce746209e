"""``cellfeed triggers``: workers as real processes, drained, killed and replaced; and commands of
operators from another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import UUID, uuid4, uuid5

import psutil
import pytest
import yaml

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, processes, running
from tests.support.waiting import wait_until

NAMESPACE = UUID("c1f4a3f0-7b7d-5c0e-8d0b-53c7f0a1be21")
SHARDS = 8
GROUP = "recorder"
PROGRAM = "tests.support.trigger_programs:recording"
pytestmark = pytest.mark.integration


class Instance:
    """A datastore without any process, and the ``triggers run`` that the test starts on it."""

    def __init__(self, directory: Path, coordination: str) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        (self.run_dir / "config.yaml").write_text(
            yaml.safe_dump({"datastore": {"shards": SHARDS}, "coordination": coordination})
        )
        self.datastore = Datastore.open_embedded(self.run_dir / "store", shards=SHARDS)
        self.coordinator: Coordinator = open_coordinator(coordination, self.datastore.state)
        self.started: list[subprocess.Popen[str]] = []

    def run(
        self, *options: str, program: str = PROGRAM, **settings: object
    ) -> subprocess.Popen[str]:
        """Starts ``cellfeed triggers run``; its log is a file of its own."""
        given = {"path": self.directory / "runs", **settings}
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        with self.log(len(self.started)).open("wb") as log:
            process = subprocess.Popen(
                [
                    *CELLFEED,
                    "triggers",
                    "run",
                    program,
                    "--run-dir",
                    str(self.run_dir),
                    *options,
                    *sets,
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.directory / f"run-{number}.log"

    def ask(self, *words: str) -> Any:
        """Runs a verb of ``cellfeed triggers`` to its end; its output as JSON."""
        ended = cellfeed("triggers", *words, "--run-dir", str(self.run_dir), "--json")
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def put(self, numbers: range, **extra: object) -> None:
        self.datastore.put_cells(
            [
                (uuid5(NAMESPACE, str(number)), "BASE", 1, {"n": number, **extra})
                for number in numbers
            ]
        )

    def cells(self) -> list[tuple[int, int]]:
        return [
            (shard, added_id)
            for shard, head in self.datastore.heads().items()
            for added_id in range(head.watermark)
        ]

    def runs(self) -> list[tuple[int, int, int]]:
        path = self.directory / "runs"
        return (
            [
                (int(number), int(shard), int(added_id))
                for number, shard, added_id in map(str.split, path.read_text().splitlines())
            ]
            if path.exists()
            else []
        )

    def cells_run(self) -> Counter[tuple[int, int]]:
        return Counter((shard, added_id) for shard, added_id, _ in self.runs())

    def members(self) -> list[str]:
        return self.coordinator.members(GROUP)

    def owners(self) -> dict[int, str]:
        return self.coordinator.owners(GROUP, "trips")

    def is_settled(self, members: int) -> bool:
        """Whether so many workers are there, and each has its share."""
        owners = self.owners()
        return len(self.members()) == members == len(set(owners.values())) and len(owners) == SHARDS

    def caught_up(self) -> bool:
        try:
            saved = {
                shard: offset.offset
                for (_, shard), offset in self.coordinator.fetch_offsets(GROUP).items()
            }
        except Unavailable:
            return False
        return saved == {shard: head.watermark for shard, head in self.datastore.heads().items()}

    def close(self) -> None:
        for process in self.started:
            for child in psutil.Process(process.pid).children() if process.poll() is None else ():
                child.kill()
            process.kill()
            process.wait(10)
        self.coordinator.close()
        self.datastore.close()


@pytest.fixture(params=["store", "zookeeper"])
def coordination(request: pytest.FixtureRequest) -> str:
    return (
        "store"
        if request.param == "store"
        else f"{request.getfixturevalue('zookeeper_server').url}/run-{uuid4()}"
    )


@pytest.fixture
def anywhere(tmp_path: Path, coordination: str) -> Iterator[Instance]:
    """An instance on either coordination."""
    with closing(Instance(tmp_path, coordination)) as instance:
        yield instance


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with closing(Instance(tmp_path, "store")) as opened:
        yield opened


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def test_a_rolling_restart_of_three_under_load_runs_no_cell_twice(anywhere: Instance) -> None:
    # With leases that no busy machine lets run out: the test is about the hand-over, not about a
    # take-over.
    group = [anywhere.run("--lease-s", "20", run_s=0.02) for _ in range(3)]
    wait_until(lambda: anywhere.is_settled(3), "three share the shards", 60)
    loaded, enough = threading.Event(), threading.Event()

    def load() -> None:
        number = 0
        while not enough.is_set():
            anywhere.put(range(number, number + 10))
            number += 10
            loaded.set()
            enough.wait(
                0.1
            )  # less than they can run, so that they are in cells all the time and never far behind

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for number in range(3):
            ran = len(anywhere.runs())
            wait_until(lambda ran=ran: len(anywhere.runs()) > ran + 20, "they are at work")  # type: ignore[misc]
            group[number].terminate()
            assert group[number].wait(60) == 0, anywhere.log(number).read_text()
            group.append(anywhere.run("--lease-s", "20", run_s=0.02))
            wait_until(lambda: anywhere.is_settled(3), "the next one has its share", 60)
    finally:
        enough.set()
        loader.join()
    wait_until(anywhere.caught_up, "all cells are run")
    pids = {pid for _, _, pid in anywhere.runs()}
    for process in group[3:]:
        process.terminate()
        assert process.wait(60) == 0
    assert len(pids) > 3, "nobody was replaced while there was work"
    assert loaded.is_set()
    assert anywhere.cells_run() == Counter(anywhere.cells())
    assert anywhere.members() == []


def test_processes_of_one_run_share_the_work_and_a_killed_one_takes_its_own_place_again(
    instance: Instance,
) -> None:
    run = instance.run("--processes", "2", "--name-prefix", "bills", "--lease-s", "20")
    wait_until(lambda: instance.is_settled(2), "two share the shards", 60)
    names = instance.members()
    assert [
        name.startswith("bills-") and name.endswith(f"-{run.pid}-{number}")
        for number, name in enumerate(names, 1)
    ] == [True, True]
    victim = workers(run)[0]
    owners = instance.owners()
    victim.kill()
    wait_until(
        lambda: len(workers(run)) == 2 and victim not in workers(run), "another one is started"
    )
    # Long before the lease of the killed one is over its shards are worked on: the new one has its
    # name.
    instance.put(range(100))
    wait_until(instance.caught_up, "all cells are run")
    assert instance.members() == names
    assert instance.owners() == owners
    run.terminate()
    assert run.wait(60) == 0
    assert "has ended with signal 9" in instance.log(0).read_text()
    assert instance.cells_run() == Counter(instance.cells())


def test_a_ctrl_c_ends_the_cells_under_way_and_no_others(instance: Instance) -> None:
    run = instance.run(run_s=0.3)
    instance.put(range(60))
    wait_until(lambda: len(instance.runs()) > 2, "it works", 60)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 0
    ran = instance.cells_run()
    assert set(ran.values()) == {1}
    assert len(ran) < 60
    offsets = instance.coordinator.fetch_offsets(GROUP)
    assert sorted(ran) == [
        (shard, added_id)
        for shard, added_id in instance.cells()
        if added_id < offsets["trips", shard].offset
    ]


def test_workers_end_when_their_run_was_killed(instance: Instance) -> None:
    run = instance.run("--processes", "2")
    wait_until(lambda: len(instance.members()) == 2, "both are there", 60)
    left = workers(run)
    run.kill()
    run.wait(10)
    wait_until(lambda: instance.members() == [], "they left the group")
    wait_until(
        lambda: (
            not any(
                process.is_running() and process.status() != psutil.STATUS_ZOMBIE
                for process in left
            )
        ),
        "and ended",
    )


@pytest.mark.parametrize(
    ("options", "program", "says"),
    [
        ((), "no_such_module:program", "No module named 'no_such_module'"),
        ((), "nowhere.py", "there is no file nowhere.py"),
        ((), "tests.support.trigger_programs:nothing", "has no 'nothing'"),
        (("--name-prefix", "a/b"), PROGRAM, "--name-prefix 'a/b': 1 to 41"),
        (("--set", "value"), PROGRAM, "--set 'value': KEY=VALUE is meant"),
        (("--config", "/nowhere.yaml"), PROGRAM, "config file /nowhere.yaml: No such file"),
    ],
)
def test_a_program_that_cannot_run_is_reported_once_with_the_fault(
    instance: Instance, options: tuple[str, ...], program: str, says: str
) -> None:
    run = instance.run("--processes", "3", *options, program=program)
    assert run.wait(60) == 2
    said = instance.log(0).read_text()
    assert said.count(says) == 1, said
    assert "Traceback" not in said


def test_a_run_directory_without_an_instance_is_not_made_by_mistake(tmp_path: Path) -> None:
    ended = cellfeed("triggers", "run", PROGRAM, "--run-dir", str(tmp_path / "nowhere"))
    assert ended.returncode == 1
    assert (
        "is not the run directory of an instance; name it with --run-dir, or a configuration with"
        " --config" in ended.stderr
    )
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "config.yaml").write_text("{}")
    ended = cellfeed(
        "triggers",
        "list",
        "--config",
        str(tmp_path / "config.yaml"),
        "--run-dir",
        str(tmp_path / "nowhere"),
    )
    assert ended.returncode == 1
    assert "there is no datastore in" in ended.stderr


def test_an_entry_of_the_configuration_can_be_run_by_its_name(instance: Instance) -> None:
    entry = {
        "name": "bills",
        "app": PROGRAM,
        "processes": 2,
        "settings": {"path": "{run_dir}/../runs"},
    }
    (instance.run_dir / "config.yaml").write_text(
        yaml.safe_dump({"datastore": {"shards": SHARDS}, "triggers": [entry]})
    )
    process = subprocess.Popen(
        [*CELLFEED, "triggers", "run", "bills", "--run-dir", str(instance.run_dir)], cwd=ROOT
    )
    instance.started.append(process)  # type: ignore[arg-type]
    instance.put(range(30))
    wait_until(lambda: len(instance.runs()) == 30, "it works", 60)
    wait_until(lambda: len(instance.members()) == 2, "both are there")
    process.terminate()
    assert process.wait(60) == 0


def test_pause_reset_and_resume_reach_workers_of_another_process_and_are_kept(
    anywhere: Instance,
) -> None:
    run = anywhere.run("--processes", "2")
    anywhere.put(range(80))
    wait_until(anywhere.caught_up, "all cells are run", 60)
    assert anywhere.ask("pause", GROUP, "--reason", "a look") == [
        {"paused": GROUP, "still_at_work": {}}
    ]
    anywhere.put(range(80, 100))
    [lag] = anywhere.ask("lag", GROUP)
    assert (lag["cells_behind"], len(lag["workers"]), lag["shards_without_worker"]) == (
        20,
        2,
        SHARDS,
    )
    assert lag["seconds_behind"] > 0
    assert all(
        "paused by " in each["because"] and each["because"].endswith("because a look")
        for each in lag["shards"]
    )
    [deed] = anywhere.ask("reset", GROUP, "--to", "earliest", "--reason", "all of it again")
    assert set(deed["after"].values()) == {0}
    assert sum(deed["before"].values()) == 80
    assert len(anywhere.runs()) == 80, "it was paused"
    assert anywhere.ask("resume", GROUP) == [{"resumed": GROUP}]
    wait_until(lambda: len(anywhere.runs()) == 180, "the 80 again, and the 20")
    wait_until(anywhere.caught_up, "all is saved")
    anywhere.ask("reset", GROUP, "--to", "3:0", "--reason", "one shard", "--wait-s", "30")
    third = len([cell for cell in anywhere.cells() if cell[0] == 3])
    wait_until(lambda: len(anywhere.runs()) == 180 + third, "that one again")
    wait_until(anywhere.caught_up, "all is saved")
    assert [(deed["action"], deed["because"]) for deed in anywhere.ask("history", GROUP)] == [
        ("paused", "a look"),
        ("reset", "all of it again"),
        ("resumed", "the reason for the pause is gone"),
        ("reset", "one shard"),
    ]
    run.terminate()
    assert run.wait(60) == 0
    [told] = anywhere.ask("list")
    assert (told["group"], told["column"], told["cells_behind"], told["workers"]) == (
        GROUP,
        "BASE",
        0,
        [],
    )
    status = json.loads(cellfeed("status", "--run-dir", str(anywhere.run_dir), "--json").stdout)
    assert status["triggers"] == [told]


def test_worker_metrics_include_the_triggers_of_an_instance(tmp_path: Path) -> None:
    config = f"""
datastore: {{shards: 4}}
workers: [{{port: 0}}]
gateways: []
triggers: [{{app: "{PROGRAM}", settings: {{path: "{tmp_path / "runs"}"}}}}]
"""
    with running(tmp_path, config) as run_dir:
        url = f"http://127.0.0.1:{processes(run_dir)['worker']['ports']['http']}/metrics"

        def told() -> str:
            with urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())

        wait_until(
            lambda: f'cellfeed_trigger_workers{{group="{GROUP}"}} 1.0' in told(),
            "its worker is there",
            60,
        )
        assert "cellfeed_triggers_known 1.0" in told()
        wait_until(
            lambda: f'cellfeed_trigger_shards_without_worker{{group="{GROUP}"}} 0.0' in told(),
            "it has its shards",
            60,
        )
        assert f'cellfeed_trigger_cells_behind{{group="{GROUP}"}} 0.0' in told()


def test_a_trigger_with_a_slip_in_its_name_is_neither_paused_nor_reset(instance: Instance) -> None:
    for words in (("pause", "recoder"), ("reset", "recoder", "--to", "earliest")):
        ended = cellfeed("triggers", *words, "--reason", "x", "--run-dir", str(instance.run_dir))
        assert ended.returncode == 1
        assert "no trigger 'recoder' has ever run here; there are none" in ended.stderr


def test_workers_continue_after_a_reset_that_is_killed_before_its_decision(
    instance: Instance,
) -> None:
    run = instance.run("--lease-s", "1")
    instance.put(range(40))
    wait_until(instance.caught_up, "all cells are run", 60)
    killed = subprocess.run(
        [
            *CELLFEED,
            "triggers",
            "reset",
            GROUP,
            "--to",
            "earliest",
            "--reason",
            "x",
            "--run-dir",
            str(instance.run_dir),
        ],
        cwd=ROOT,
        env={**os.environ, "CELLFEED_FAILPOINTS": "reset.after_claims=kill@1"},
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, "the fault did not happen"
    instance.put(range(40, 60))
    wait_until(instance.caught_up, "they continue once its session is over", 60)
    assert instance.cells_run() == Counter(instance.cells())
    assert instance.ask("history", GROUP) == []
    run.terminate()
    assert run.wait(60) == 0


def test_a_worker_stopped_in_its_sleep_cannot_undo_a_reset(anywhere: Instance) -> None:
    run = anywhere.run("--lease-s", "1", run_s=0.02)
    anywhere.put(range(400))
    wait_until(lambda: len(anywhere.runs()) > 5, "it works", 60)
    [zombie] = workers(run)
    zombie.suspend()
    try:
        [deed] = anywhere.ask("reset", GROUP, "--to", "latest", "--reason", "it was asleep")
        ran = len(anywhere.runs())
    finally:
        zombie.resume()
    wait_until(
        lambda: len(anywhere.members()) == 1 and len(anywhere.owners()) == SHARDS, "it is back", 60
    )
    anywhere.put(range(400, 420))
    wait_until(anywhere.caught_up, "it continues")
    # Cells under way in its threads when it was stopped may end; no other cell from before the
    # reset is run.
    new = [cell for cell in anywhere.cells() if cell[1] >= deed["after"][str(cell[0])]]
    assert len(new) == 20
    assert set(new) <= set(anywhere.cells_run())
    assert len(anywhere.runs()) - ran <= len(new) + SHARDS
    run.terminate()
    assert run.wait(60) == 0


def test_a_trigger_that_stopped_is_resumed_with_an_entry_in_its_history(instance: Instance) -> None:
    ParkedCells(instance.datastore.state).stop(GROUP, "3 cells are parked")
    ended = cellfeed(
        "parked", "resume", GROUP, "--reason", "mended", "--run-dir", str(instance.run_dir)
    )
    assert ended.returncode == 0, ended.stderr
    [deed] = instance.ask("history", GROUP)
    assert (deed["action"], deed["because"], deed["to"]) == (
        "parked resume",
        "mended",
        "it was stopped: 3 cells are parked",
    )
