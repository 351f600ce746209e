"""The arguments that each kind of process is started with, and that both signals stop it. Their
work is tested where they are at home."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from cellfeed.bridge.events.views import Condition
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.lake import LakeConfig
from cellfeed.config.model import (
    Config,
    DatastoreConfig,
    TriggersConfig,
    WarehouseConfig,
    WorkerConfig,
)
from cellfeed.consumers.lake.open_table import Place
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.warehouse.loader_progress import LoaderProgress
from cellfeed.instance.config_file import write_config
from cellfeed.instance.process import run_process
from cellfeed.kinds.registry import KINDS, process_kind
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound

VIEW = VirtualTopic(
    "cards",
    filter=[Condition("tip", "=", value=None), Condition("kind", "in", values=["card", 1])],
    fields=["fare"],
    format="cloudevents",
)
CONFIG = Config(
    datastore=DatastoreConfig(topics=[VIEW]),
    workers=[WorkerConfig(name="w1", port=0), WorkerConfig(name="w2", port=7421)],
    gateways=[
        GatewayProcessConfig(name="g1", port=0, registry_port=0, formats={"trips": "json"}),
        GatewayProcessConfig(name="g2", port=0, registry_port=8082),
    ],
    triggers=[
        TriggersConfig(
            app="somewhere:program",
            name="bills",
            processes=2,
            lease_s=3.0,
            settings={"key": "value"},
        )
    ],
    warehouses=[
        WarehouseConfig(name="lake", flush_rows=7),
        WarehouseConfig(
            name="far", bootstrap="127.0.0.1:1", topic="trips.BASE", directory="/elsewhere"
        ),
    ],
    lakes=[
        LakeConfig(name="sea", commit_age_s=7.0),
        LakeConfig(
            name="ocean",
            format="delta",
            bootstrap="127.0.0.1:1",
            topic="copied",
            client={"security.protocol": "SSL"},
        ),
    ],
)


HOMES = {
    "run_worker": "cellfeed.store.http.server.worker.run_worker",
    "run_gateway": "cellfeed.bridge.gateway.run.run_gateway",
    "run_trigger_worker": "cellfeed.bridge.triggers.worker.run_trigger_worker",
    "run_warehouse_loader": "cellfeed.consumers.warehouse.loader.run_warehouse_loader",
    "run_lake_loader": "cellfeed.consumers.lake.loader.run_lake_loader",
}
"""Where each is imported from: processes import only the code that they run."""


class Started:
    """Stands in for the work of a process, and keeps the arguments of the call."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "run")
    run_dir.make()
    write_config(CONFIG, run_dir.config)
    return run_dir


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[..., None]]:
    """The signal handlers that were set; this process keeps its own."""
    found: dict[int, Callable[..., None]] = {}
    monkeypatch.setattr("signal.signal", lambda number, handler: found.update({number: handler}))
    return found


@pytest.fixture
def run(
    directory: RunDir, handlers: dict[int, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Started]:
    """Runs the process of that name, with ``what`` in place of its work."""
    del handlers
    # No broker answers at the addresses of these tests.
    monkeypatch.setattr("cellfeed.assembly.servers_asked.END_TIMEOUT_S", 0.01)

    def run_with(name: str, what: str) -> Started:
        started = Started()
        monkeypatch.setattr(HOMES[what], started)
        run_process(directory.path, name)
        return started

    return run_with


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_sigint_stop_a_process(
    run: Callable[[str, str], Started],
    handlers: dict[int, Callable[..., None]],
    number: signal.Signals,
) -> None:
    stops = [each for each in run("g1", "run_gateway").arguments if isinstance(each, Event)]
    assert len(stops) == 1
    assert not stops[0].is_set()
    handlers[number](number, None)
    assert stops[0].is_set()


def test_each_name_runs_with_its_own_part_of_the_configuration(
    run: Callable[[str, str], Started],
) -> None:
    gateways = [run(name, "run_gateway").arguments[2] for name in ("g1", "g2")]
    assert [(each.name, each.registry.port, dict(each.formats)) for each in gateways] == [
        ("g1", 0, {"trips": "json"}),
        ("g2", 8082, {}),
    ]
    assert [each.topics for each in gateways] == [(VIEW,), (VIEW,)], (
        "as it was declared, through the file"
    )
    assert run("lake", "run_warehouse_loader").options["flush"].rows == 7


def test_every_gateway_of_a_cluster_has_an_identity_of_its_own(
    run: Callable[[str, str], Started],
) -> None:
    first, second = (run(name, "run_gateway").arguments[2] for name in ("g1", "g2"))
    assert first.name != second.name


def test_a_port_that_was_chosen_before_is_asked_for_again(
    run: Callable[[str, str], Started], directory: RunDir
) -> None:
    directory.say_ready("g1", {"kafka": 4711, "registry": 4712})
    config = run("g1", "run_gateway").arguments[2]
    assert (config.port, config.registry.port) == (4711, 4712)


def test_a_loader_reads_from_the_first_gateways_actual_address_by_default(
    run: Callable[[str, str], Started], directory: RunDir
) -> None:
    directory.say_ready("g1", {"kafka": 4711, "registry": 4712})
    lake, far = run("lake", "run_warehouse_loader"), run("far", "run_warehouse_loader")
    assert lake.arguments[:4] == (
        "127.0.0.1:4711",
        "trips",
        "warehouse",
        directory.path / "warehouse",
    )
    assert (lake.options["offset_is_added_id"], far.options["offset_is_added_id"]) == (True, False)
    assert far.arguments[:4] == ("127.0.0.1:1", "trips.BASE", "warehouse", Path("/elsewhere"))


def test_a_lake_is_loaded_from_the_first_gateway_or_a_cluster_with_its_own_settings(
    run: Callable[[str, str], Started], directory: RunDir
) -> None:
    directory.say_ready("g1", {"kafka": 4711, "registry": 4712})
    sea, ocean = run("sea", "run_lake_loader"), run("ocean", "run_lake_loader")
    place = Place(format="iceberg", storage=directory.path / "lake")
    assert sea.arguments[:4] == ("127.0.0.1:4711", "trips", "lake", place)
    assert ocean.arguments[:4] == (
        "127.0.0.1:1",
        "copied",
        "lake",
        msgspec.structs.replace(place, format="delta"),
    )
    assert (sea.options["offset_is_added_id"], ocean.options["offset_is_added_id"]) == (True, False)
    assert sea.options["policy"].age_s == 7.0
    assert ocean.options["client"]["security.protocol"] == "SSL"

    on_progress = run("sea", "run_lake_loader").options["on_progress"]
    on_progress(LakeProgress(stopped={5: "no cell"}, trouble="the catalog is away"))
    assert directory.troubles("sea") == [
        "partition 5 is stopped: no cell",
        "nothing is committed: the catalog is away",
    ]
    on_progress(LakeProgress())
    assert directory.troubles("sea") == []


def test_stopped_partitions_of_a_loader_are_reported_until_they_run_again(
    run: Callable[[str, str], Started], directory: RunDir
) -> None:
    directory.say_ready("g1", {"kafka": 4711})
    on_progress = run("lake", "run_warehouse_loader").options["on_progress"]
    on_progress(LoaderProgress(stopped={5: "no cell"}))
    assert directory.troubles("lake") == ["partition 5 is stopped: no cell"]
    on_progress(LoaderProgress())
    assert directory.troubles("lake") == []


def test_a_loader_without_any_gateway_is_refused_in_words(
    run: Callable[[str, str], Started], directory: RunDir
) -> None:
    write_config(Config(gateways=[], warehouses=[WarehouseConfig()]), directory.config)
    with pytest.raises(NotFound, match="needs a gateway"):
        run("warehouse", "run_warehouse_loader")


def test_trigger_processes_of_one_program_work_under_different_names(
    run: Callable[[str, str], Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[Any, ...]] = []

    def noted(*arguments: Any, entry: str) -> list[Trigger]:
        loaded.append((*arguments, entry))
        return []

    monkeypatch.setattr("cellfeed.bridge.triggers.loading.load_program", noted)
    started = [run(name, "run_trigger_worker") for name in ("bills-1", "bills-2")]
    assert [each.arguments[3] for each in started] == ["bills-1", "bills-2"]
    assert [each.options for each in started] == [{"lease_s": 3.0, "threads": 8}] * 2
    assert loaded == [("somewhere:program", {"key": "value"}, "bills")] * 2


@pytest.mark.parametrize("name", ["bills", "bills-3", "worker", ""])
def test_an_unknown_name_is_refused_with_the_configured_ones(
    run: Callable[[str, str], Started], name: str
) -> None:
    with pytest.raises(NotFound, match="it has w1, w2, g1, g2, bills-1, bills-2, lake, far"):
        run(name, "run_worker")


def test_a_setting_of_triggers_may_name_the_run_directory(directory: RunDir) -> None:
    triggers = TriggersConfig(
        app="somewhere:program",
        settings={"books": "{run_dir}/books", "count": 3, "plain": "{other}"},
    )
    assert triggers.settings_in(directory.path) == {
        "books": f"{directory.path}/books",
        "count": 3,
        "plain": "{other}",
    }


@pytest.mark.parametrize(("name", "position"), [("worker", 99), ("other", 10)])
def test_a_second_kind_of_a_name_or_a_position_is_refused(name: str, position: int) -> None:
    before = dict(KINDS)
    with pytest.raises(ValueError, match=r"'worker' of cellfeed\.kinds\.worker has position 10"):
        process_kind(name, position, lambda _: [])(lambda _: None)
    assert before == KINDS
