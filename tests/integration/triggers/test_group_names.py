"""Names of trigger groups: two entries of a configuration never share the cells of one group."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID, uuid5

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.definition import Definition, check_definition
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.instance.config_file import write_config
from cellfeed.run_dir import RunDir
from cellfeed.store.http.client import Client
from tests.support.cli_instance import cellfeed, processes, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
NAMESPACE = UUID("7b0c0f5e-0d0b-5a53-8a49-5f3b6b8a0c11")
PROGRAM = """
from cellfeed import trigger


@trigger(column={column!r}{more})
def bill(row_key):
    with open({runs!r}, "a") as file:
        file.write(f"{{row_key}}\\n")
"""
CONFIG = """
datastore: {{shards: 4}}
workers: [{{port: 0}}]
gateways: []
triggers: {triggers}
"""


def program(directory: Path, name: str, column: str, more: str = "") -> Path:
    """A file with a function ``bill`` of its own; the cells that it ran are in ``NAME.runs``."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}.py"
    file.write_text(PROGRAM.format(column=column, more=more, runs=str(directory / f"{name}.runs")))
    return file


def ran(directory: Path, name: str) -> list[str]:
    file = directory / f"{name}.runs"
    return file.read_text().split() if file.exists() else []


def config(*entries: dict[str, object]) -> str:
    return CONFIG.format(triggers=json.dumps(entries))


def test_two_entries_whose_functions_have_one_name_run_all_cells_of_each(tmp_path: Path) -> None:
    rides, refunds = (
        program(tmp_path, "rides", "BASE"),
        program(tmp_path, "refunds", "REFUND"),
    )
    entries = config({"name": "rides", "app": str(rides)}, {"name": "refunds", "app": str(refunds)})
    with running(tmp_path, entries) as run_dir:

        def status() -> list[dict[str, object]]:
            told = cellfeed("status", "--run-dir", str(run_dir), "--json")
            found: list[dict[str, object]] = json.loads(told.stdout)["triggers"]
            return found

        def all_shards_have_workers() -> bool:
            found = status()
            return bool(found) and all(
                each["workers"] and not each["shards_without_worker"] for each in found
            )

        wait_until(all_shards_have_workers, "the workers have their shards", 60)
        port = processes(run_dir)["worker"]["ports"]["http"]
        with Client([f"http://127.0.0.1:{port}"], "trips") as store:
            for number in range(6):
                row_key = uuid5(NAMESPACE, str(number))
                store.put_cell(row_key, "BASE", 1, {"n": number})
                store.put_cell(row_key, "REFUND", 1, {"n": number})
        wait_until(
            lambda: sum(int(str(each["cells_behind"])) for each in status()) == 0,
            "status says that nothing is behind",
            60,
        )
        wanted = sorted(str(uuid5(NAMESPACE, str(number))) for number in range(6))
        assert (sorted(ran(tmp_path, "rides")), sorted(ran(tmp_path, "refunds"))) == (
            wanted,
            wanted,
        )
        assert [each["group"] for each in status()] == ["refunds", "rides"]


def test_up_refuses_a_second_trigger_of_one_group_with_both_definitions(tmp_path: Path) -> None:
    rides = program(tmp_path, "rides", "BASE", ", group='bills'")
    refunds = program(tmp_path, "refunds", "REFUND", ", group='bills'")
    entries = config({"name": "rides", "app": str(rides)}, {"name": "refunds", "app": str(refunds)})
    (tmp_path / "cellfeed.yaml").write_text(entries)
    up = cellfeed(
        *("up", "--detach", "--config", str(tmp_path / "cellfeed.yaml")),
        *("--run-dir", str(tmp_path / "run")),
    )
    assert up.returncode != 0
    told = " ".join(up.stderr.split())
    for each in (
        "group 'bills' belongs to another trigger: rides:bill on column BASE of entry 'rides'",
        "This one is refunds:bill on column REFUND of entry 'refunds'",
        "cellfeed triggers redefine bills --reason",
    ):
        assert each in told, told


def test_a_changed_filter_takes_effect_once_an_operator_accepts_it(tmp_path: Path) -> None:
    rides = program(tmp_path, "rides", "BASE")
    entries = config({"name": "rides", "app": str(rides)})
    at = ("--run-dir", str(tmp_path / "run"))
    with running(tmp_path, entries):
        at_work = cellfeed("triggers", "redefine", "rides", "--reason", "refunds count", *at)
        assert (at_work.returncode, "end its workers first" in at_work.stderr) == (1, True)
        assert cellfeed("down", *at).returncode == 0
    program(tmp_path, "rides", "REFUND")
    again = ("up", "--detach", "--config", str(tmp_path / "cellfeed.yaml"), *at)
    refused = cellfeed(*again)
    assert (refused.returncode, "on column REFUND" in refused.stderr) == (1, True), refused.stderr
    done = cellfeed("triggers", "redefine", "rides", "--reason", "refunds count", *at)
    assert (done.returncode, "rides was rides:bill on column BASE" in done.stdout) == (0, True)
    with running(tmp_path, entries):
        history = cellfeed("triggers", "history", "rides", "--json", *at)
        assert json.loads(history.stdout)["action"] == "redefined"


@pytest.mark.parametrize(
    "command",
    [
        ("parked", "list", "bils"),
        ("parked", "show", "bils", "0/1"),
        ("parked", "retry", "bils"),
        ("parked", "skip", "bils", "0/1", "--reason", "x"),
        ("parked", "resume", "bils"),
        ("parked", "export", "bils"),
        ("offsets", "show", "bils"),
        ("offsets", "set", "bils", "earliest"),
        ("triggers", "lag", "bils"),
        ("triggers", "pause", "bils", "--reason", "x"),
        ("triggers", "resume", "bils"),
        ("triggers", "reset", "bils", "--to", "earliest", "--reason", "x"),
        ("triggers", "rename", "bils", "bills", "--reason", "x"),
        ("triggers", "redefine", "bils", "--reason", "x"),
        ("triggers", "forget", "bils", "--reason", "x"),
        ("triggers", "history", "bils"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_group_with_a_slip_in_its_name_is_an_error_that_lists_the_groups(
    stopped: Path, command: tuple[str, ...]
) -> None:
    ended = cellfeed(*command, "--run-dir", str(stopped))
    assert ended.returncode == 1, ended.stdout
    assert ended.stderr.strip() == (
        "cellfeed: no trigger 'bils' has ever run here; there are bills, lake"
    )
    assert ended.stdout == ""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an instance that is down: a trigger ``bills`` has run, and a consumer
    group ``lake`` has offsets."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    run_dir.mkdir()
    made = Config(datastore=DatastoreConfig(shards=4))
    write_config(made, RunDir(run_dir).config)
    with open_datastore(made, run_dir) as datastore:
        datastore.state.commit({"triggers/bills/left": b'{"member":"w","at_us":1}'})
        StoreCoordinator(datastore.state).commit_offsets("lake", {("trips", 0): CommittedOffset(0)})
    return run_dir


def test_a_group_with_only_a_definition_can_be_redefined(tmp_path: Path) -> None:
    made = Config(datastore=DatastoreConfig(shards=4))
    write_config(made, RunDir(tmp_path).config)
    with open_datastore(made, tmp_path) as datastore:
        check_definition(datastore.state, "fresh", Definition(["BASE"], "app:bill"))
    done = cellfeed(
        "triggers", "redefine", "fresh", "--reason", "mistyped", "--run-dir", str(tmp_path)
    )
    assert (done.returncode, "fresh was app:bill on column BASE" in done.stdout) == (0, True)


def test_kafka_consumers_move_no_offset_of_a_trigger(tmp_path: Path) -> None:
    rides = program(tmp_path, "rides", "BASE")
    entries = config({"name": "rides", "app": str(rides)}).replace(
        "gateways: []", "gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]"
    )
    at = ("--run-dir", str(tmp_path / "run"))
    with running(tmp_path, entries) as run_dir:

        def offsets() -> dict[str, int | None]:
            told = json.loads(cellfeed("offsets", "show", "rides", "--json", *at).stdout)
            found: dict[str, int | None] = told["offsets"]
            return found

        wait_until(lambda: set(offsets().values()) == {0}, "the trigger has begun", 60)
        bootstrap = f"127.0.0.1:{processes(run_dir)['gateway']['ports']['kafka']}"
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "rides"})
        try:
            for shard in range(4):
                with pytest.raises(KafkaException) as refused:
                    consumer.commit(offsets=[TopicPartition("trips", shard, 0)], asynchronous=False)
                assert refused.value.args[0].code() == KafkaError.INVALID_GROUP_ID
            consumer.subscribe(["trips"])
            wait_until(lambda: polled(consumer) == KafkaError.INVALID_GROUP_ID, "no join", 60)
        finally:
            consumer.close()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        with pytest.raises(KafkaException) as kept:
            admin.delete_consumer_groups(["rides"])["rides"].result(30)
        assert kept.value.args[0].code() == KafkaError.INVALID_GROUP_ID
        assert set(offsets().values()) == {0}
        assert "consumer group 'rides' is refused" in (run_dir / "logs/gateway.log").read_text()


def polled(consumer: Consumer) -> int | None:
    """The error that a poll gives, if any."""
    try:
        message = consumer.poll(1)
    except KafkaException as error:
        return int(error.args[0].code())
    refusal = message.error() if message is not None else None
    return refusal.code() if refusal is not None else None
