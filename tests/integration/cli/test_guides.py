"""README and guides as they are written: every command and program of a page runs, in the order of
the page, on an instance of its own. ``tests/support/fences.py`` lists the pieces that run elsewhere
or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

import pytest

from cellfeed.store.http.client import Client
from tests.newcomer.terminal import Terminal
from tests.support.cli_instance import ROOT, ended, of_run_dir, processes
from tests.support.fences import Piece, to_be_run_here
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMESPACE: Final = UUID("5c0b3f0e-0000-4c52-9a6f-0d1f6c6f4a11")
DRIVER: Final = "5c0b3f0e-3a5e-4c52-9a6f-0d1f6c6f4a11"
ROW: Final = "2f0a1c6e-3b7d-4f5a-9c8e-0123456789ab"
CONFIG: Final = """\
datastore:
  name: trips
  schemas: [{column: BASE, schema: trip.avsc, unfit: park}]
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
triggers: [{name: billing, app: billing.py}]
indexes: [{name: index}]
warehouses: [{name: warehouse, directory: warehouse, flush_age_s: 0.5}]
"""
BILLING: Final = """\
from cellfeed import RetryPolicy, trigger


@trigger(column="BASE", retry={KeyError: RetryPolicy(attempts=1)})
def bill(row_key, *, cell):
    cell.body["fare_cents"]
"""
TRIP_SCHEMA: Final = json.dumps(
    {
        "type": "record",
        "name": "Trip",
        "fields": [
            {"name": "fare_cents", "type": "long"},
            *(
                {"name": name, "type": ["null", "string"], "default": None}
                for name in ("payment", "driver_uuid", "request_at")
            ),
        ],
    }
)


class Guide:
    """An instance whose directory of everything is ``home``: the folder that the pages call /srv,
    with ``/srv/cellfeed`` as its run directory, which is ``run`` for commands that name none."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run_dir = home / "srv" / "cellfeed"
        self.run_dir.mkdir(parents=True)
        (home / "run").symlink_to(self.run_dir)
        (home / "schemas").symlink_to(ROOT / "schemas")
        for name, text in {
            "cellfeed.yaml": CONFIG,
            "billing.py": BILLING,
            "trip.avsc": TRIP_SCHEMA,
        }.items():
            for directory in (home, home / "srv", self.run_dir):
                (directory / name).write_text(text)
        self.terminal = Terminal(home)
        self.words = {
            "/srv/": f"{home}/srv/",
            "/etc/cellfeed.yaml": f"{home}/cellfeed.yaml",
            ".venv/bin/": "",
        }

    def up(self) -> None:
        self.terminal.run(
            f"cellfeed up --detach --config cellfeed.yaml --run-dir {self.run_dir}", sees="up:"
        )
        ports = {each["kind"]: each["ports"] for each in processes(self.run_dir).values()}
        self.words |= {
            "127.0.0.1:7420": f"127.0.0.1:{ports['worker']['http']}",
            "127.0.0.1:9092": f"127.0.0.1:{ports['gateway']['kafka']}",
            "127.0.0.1:8081": f"127.0.0.1:{ports['gateway']['registry']}",
        }

    def text(self, piece: Piece) -> str:
        text = piece.text
        for word in sorted(self.words, key=len, reverse=True):
            text = text.replace(word, self.words[word])
        return text.split("    #")[0] if piece.language == "sh" else text

    def run(self, piece: Piece, before: str = "", after: str = "") -> str:
        """A command, or a program with the lines around it."""
        if piece.language == "sh":
            return self.terminal.run(self.text(piece).split(" # ")[0])
        self.terminal.file("program.py", f"{before}\n{self.text(piece)}\n{after}\n")
        return self.terminal.run("python program.py")

    def client(self) -> Client:
        return Client([f"http://{self.words['127.0.0.1:7420']}"], "trips")

    def put(self, count: int, **more: Any) -> None:
        with self.client() as store:
            for result in store.put_cells(
                [
                    (uuid5(NAMESPACE, str(n)), "BASE", 1, {"fare_cents": 1_000 + n, **more})
                    for n in range(count)
                ]
            ):
                result.or_raise()


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    made = Guide(tmp_path)
    with ended(made.run_dir):
        yield made


def in_order(
    guide: Guide, page: str, special: Mapping[str, Callable[[Piece], object]] | None = None
) -> dict[str, str]:
    """Runs the pieces of a page; the output of each by its first line. ``special``: by the
    beginning of a piece the function that runs it, given the piece; each is used."""
    unused = set(special or {})
    said: dict[str, str] = {}
    for piece in to_be_run_here(page):
        found = [each for each in special or {} if piece.text.startswith(each)]
        if found and special is not None:
            name = max(found, key=len)
            unused.discard(name)
            said[piece.begins] = str(special[name](piece) or "")
        else:
            said[piece.begins] = guide.run(piece)
    assert said, f"{page} has nothing to run here"
    assert not unused, f"{page} has none of these any more: {unused}"
    return said


def saying(said: Mapping[str, str], begins: str) -> str:
    return next(each for line, each in said.items() if line.startswith(begins))


def test_the_readme(guide: Guide) -> None:
    guide.words[" --detach"] = " --detach --port 0 --kafka-port 0 --registry-port 0"

    def up(piece: Piece) -> None:
        guide.terminal.run(guide.text(piece), sees="up:")

    def down(piece: Piece) -> None:  # the program behind it is for an instance that runs
        guide.run(piece)
        guide.up()

    def program(piece: Piece) -> str:
        guide.run(piece)
        return guide.terminal.run(f"cellfeed get {ROW}", sees="paid")

    said = in_order(
        guide,
        "README.md",
        {
            ".venv/bin/cellfeed up": up,
            ".venv/bin/cellfeed down": down,
            "from cellfeed import connect, trigger": program,
        },
    )
    assert "stored" in saying(said, ".venv/bin/cellfeed put")
    assert ROW in saying(said, ".venv/bin/cellfeed tail")


def test_the_guide_for_authors_of_services(guide: Guide) -> None:
    guide.up()
    place = ""
    with guide.client() as store:
        parked = store.put_cell(uuid4(), "BASE", 1, {"wrong": 1}).or_raise()
        place = f"{parked.shard}/{parked.added_id}"
    guide.words["7/42"] = place
    guide.terminal.wait("cellfeed parked list", place)
    rows = "\n".join(f"{uuid4()},{1000 + n}" for n in range(20))
    (guide.home / "trips.csv").write_text(f"id,fare_cents\n{rows}\n")
    run_it = "from cellfeed.testing import Kit\nfrom pathlib import Path\nfrom uuid import uuid4"

    def trigger(column: str, name: str) -> Callable[[Piece], str]:
        after = f"""\
with Kit(Path("kit-{name}")) as kit:
    row = uuid4()
    kit.store.put_cell(row, "BASE", 1, {{"fare_cents": 1}})
    if "{column}" == "$erased":
        kit.store.erase_row(row)
    kit.run_until_idle({name})
    assert kit.history(), "it was not called"
"""
        return lambda piece: guide.run(piece, run_it, after)

    def shows(piece: Piece) -> None:
        """With the function's traceback."""
        guide.terminal.wait(guide.text(piece), "KeyError")

    def resume(piece: Piece) -> str:
        """Nothing stopped it here, and the command says so."""
        return guide.terminal.run(guide.text(piece), code=1, sees="is not stopped")

    def again(piece: Piece) -> str:
        guide.terminal.wait("cellfeed parked list", place)
        return guide.run(piece)

    def programs(piece: Piece) -> str:
        row_key = "from uuid import uuid4\nrow_key = uuid4()"
        if "store.follow(" in piece.text:
            once = piece._replace(text=f"{piece.text.rstrip()}\n    break\n")
            return guide.run(once, after="assert kept.read_text() == cell.token\nprint('followed')")
        if "AsyncClient" in piece.text:
            return guide.run(
                piece, f"import asyncio\n{row_key}", "asyncio.run(main())\nprint('done')"
            )
        if "async def notify" in piece.text:
            return trigger("BASE", "notify")(piece)
        if "$erased" in piece.text:
            return trigger("$erased", "forget")(piece)
        if "def write_rows" in piece.text:
            return trigger("BASE", "write_rows")(piece)
        if "def bill" in piece.text:
            return trigger("BASE", "bill")(piece)
        return guide.run(piece, row_key, "assert store.get_row(row_key)['BASE'].ref_key == 1")

    said = in_order(
        guide,
        "docs/service-authors.md",
        {
            "from cellfeed": programs,
            "from pathlib": programs,
            "cellfeed parked show": shows,
            "cellfeed parked skip": again,
            "cellfeed parked resume": resume,
        },
    )
    assert "20" in saying(said, "cellfeed load trips.csv --column BASE --row-key id  ")


def test_the_guide_for_tests_of_triggers(guide: Guide) -> None:
    in_order(guide, "docs/testing-triggers.md")


def test_the_guide_to_indexes(guide: Guide) -> None:
    guide.up()
    guide.put(30, driver_uuid=DRIVER, request_at="2019-03-11T10:00:00Z")
    with guide.client() as store:
        for n in range(30):
            adjusted = {"amount_cents": 501 + n}
            store.put_cell(uuid5(NAMESPACE, str(n)), "FARE_ADJUSTMENT", 1, adjusted).or_raise()

    def drop(piece: Piece) -> str:
        """Of the first version, once another definition has made a second one."""
        definition = (ROOT / "schemas" / "indexes" / "trips_by_driver.yaml").read_text()
        (guide.home / "changed.yaml").write_text(
            definition.replace("      - { field: city_uuid, type: uuid }\n", "").replace(
                "      - { field: city_uuid, type: UUID }\n", ""
            )
        )
        guide.terminal.run("cellfeed index create changed.yaml", sees="2")
        guide.terminal.run("cellfeed index build trips_by_driver")
        return guide.run(piece)

    said = in_order(guide, "docs/indexes.md", {"cellfeed index drop": drop})
    assert saying(said, "cellfeed index query").count("2019-03-11") >= 30
    assert saying(said, "from cellfeed import Client").count("fare_cents") == 30


def test_the_guide_for_warehouse_engineers(guide: Guide) -> None:
    guide.up()
    guide.put(40, payment="card")
    count = 'cellfeed warehouse query "SELECT count(*) AS n FROM latest"'
    guide.terminal.wait(count, "40")
    said = in_order(guide, "docs/warehouse.md")
    assert "card" in saying(said, 'cellfeed warehouse query "SELECT json')
    assert "all equal" in saying(said, "cellfeed verify")


def test_the_guide_for_owners_of_kafka_consumers(guide: Guide) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("no kcat here; `make services` installs it on Debian")
    guide.up()
    guide.put(25, payment="card")
    with guide.client() as store:
        store.put_cell(uuid4(), "BASE", 1, {"fare_cents": "text"}).or_raise()
        erased = uuid4()
        store.put_cell(erased, "BASE", 1, {"fare_cents": 9}).or_raise()
    guide.terminal.run(f"cellfeed erase {erased} --yes")
    reader = f"""\
from confluent_kafka import Consumer

consumer = Consumer({{"bootstrap.servers": "{guide.words["127.0.0.1:9092"]}", "group.id": "me",
                     "auto.offset.reset": "earliest", "enable.partition.eof": True}})
consumer.subscribe([TOPIC])
ended, messages = 0, []
while ended < 16:
    record = consumer.poll(20)
    assert record is not None
    if record.error():
        ended += 1
    else:
        messages.append(record)
consumer.close()
"""

    def forgets(piece: Piece) -> str:
        lines = "\n    ".join(piece.text.splitlines())
        looped = piece._replace(text=f"for message in messages:\n    {lines}\n")
        before = reader.replace("TOPIC", '"trips"') + "\ndef forget(key): print('forgets', key)\n"
        said = guide.run(looped, before)
        assert said.count("forgets") == 1
        assert str(erased) in said
        return said

    def typed(piece: Piece) -> str:
        after = """\
bodies = [read(each.value(), None)["body"] for each in messages if each.value() is not None]
print(len([each for each in bodies if each["fare_cents"] > 0]), "typed")
"""
        said = guide.run(piece, reader.replace("TOPIC", '"trips.BASE"'), after)
        assert "25 typed" in said
        return said

    def until_its_end(piece: Piece) -> str:
        return guide.terminal.run(guide.text(piece).split(" # ")[0] + " -e")

    def rejected_bodies(piece: Piece) -> str:
        """One cell would fit no version: the exit code says so."""
        return guide.terminal.run(guide.text(piece), code=1, sees="1 fit no version")

    said = in_order(
        guide,
        "docs/kafka-consumers.md",
        {
            "headers = dict": forgets,
            "from confluent_kafka": typed,
            "kcat -b 127.0.0.1:9092 -C -t trips@latest": until_its_end,
            "cellfeed schemas check": rejected_bodies,
        },
    )
    assert "fare_cents is text" in saying(said, "cellfeed schemas unfit --run-dir")


def test_the_operators_page_on_running(guide: Guide) -> None:
    def up(piece: Piece) -> None:
        assert "Ctrl-C or SIGTERM ends it" in piece.text
        guide.up()
        [gateway] = [p for p in processes(guide.run_dir).values() if p["kind"] == "gateway"]
        os.kill(gateway["pid"], signal.SIGKILL)

    in_order(guide, "docs/operate/run.md", {"cellfeed up": up})
    wait_until(lambda: not of_run_dir(guide.run_dir), "down ends it")


def test_the_operators_page_on_triggers(guide: Guide) -> None:
    guide.up()
    guide.words["3:1200,7:88"] = "3:0,7:0"  # its shards have fewer cells
    guide.put(20)
    (guide.home / "app").mkdir()
    rides = BILLING.replace('column="BASE"', 'column="BASE", group="rides"')
    (guide.home / "app" / "rides.py").write_text(rides)

    def until_it_runs(piece: Piece) -> None:
        """Workers that Ctrl-C ends."""
        group = "rides" if "rides" in piece.text else "billing"
        command = guide.text(piece).split(" # ")[0].split()
        log = guide.home / "workers.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=guide.home,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                },
                stdout=file,
                stderr=file,
            )
        try:
            wait_until(
                lambda: str(process.pid) in guide.terminal.run("cellfeed triggers list --json"),
                f"workers of {group} are listed: {log.read_text()}",
                60,
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()

    def without_workers(piece: Piece) -> str:
        if of_run_dir(guide.run_dir):
            guide.terminal.run("cellfeed down")
        return guide.run(piece)

    in_order(
        guide,
        "docs/operate/triggers.md",
        {
            "cellfeed triggers run": until_it_runs,
            "cellfeed triggers redefine": without_workers,
            "cellfeed triggers rename": without_workers,
        },
    )


def test_the_operators_pages_on_watching_and_the_configuration(guide: Guide) -> None:
    guide.up()
    in_order(guide, "docs/operate/watch.md")
    in_order(guide, "docs/reference/configuration.md")


def test_the_operators_page_on_users(guide: Guide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLFEED_PASSWORD", "a password of sixteen")
    guide = Guide(guide.home / "own")
    with ended(guide.run_dir):
        guide.up()
        in_order(guide, "docs/operate/secure.md")
        in_order(guide, "docs/operate/hosts.md")


def test_the_operators_pages_on_damage_and_moments(guide: Guide) -> None:
    guide.up()
    guide.put(20)
    backup = f"cellfeed backup create {guide.home}/srv/backups"
    guide.terminal.run(backup)
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    guide.put(30)
    guide.terminal.run(f"{backup} --onto latest", sees="10 cells")
    in_order(guide, "docs/operate/damage.md")
    guide.terminal.run("cellfeed down")
    guide.words["2026-03-01T11:58:00Z"] = moment
    said = in_order(guide, "docs/operate/restore-to-a-moment.md")
    assert "20" in saying(said, "cellfeed restore")


def test_the_operators_page_on_dictionaries(guide: Guide) -> None:
    guide.up()
    guide.put(5_000, payment="credit card", note="left a bag in the car")

    def train(piece: Piece) -> str:
        """Workers have trained one by themselves meanwhile."""
        text = guide.text(piece).split(" # ")[0] + " --again"
        return guide.terminal.run(text)

    listed = guide.terminal.run("cellfeed dictionary list --json")
    wait_until(
        lambda: bool(guide.terminal.run("cellfeed dictionary list --json").strip()),
        f"a worker trains one: {listed}",
        60,
    )
    first = json.loads(guide.terminal.run("cellfeed dictionary list --json").splitlines()[0])
    guide.words["4eddd73a"] = first["name"]
    in_order(guide, "docs/operate/dictionaries.md", {"cellfeed dictionary train": train})
