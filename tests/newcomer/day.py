"""The day of a new user, in order, with README and guides alone: the demo, the first cell, a
trigger, a file, an index, a Kafka consumer, SQL, a backup, a restore, and the mistakes.

Each step prints a person's view, and fails where that is a traceback, silence or wrong. Ports are
free ones, so that the day can be lived beside an instance that runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.newcomer.terminal import Terminal
from tests.support.cli_instance import ended

ROW: Final = "2f0a1c6e-3b7d-4f5a-9c8e-0123456789ab"
BAD_ROW: Final = "2f0a1c6e-3b7d-4f5a-9c8e-00000000dead"
TRIPS: Final = 300

CONFIG: Final = """\
datastore: {name: trips, shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
triggers: [{name: receipts, app: receipts.py}]
indexes: [{name: index}]
warehouses: [{name: warehouse, directory: warehouse, flush_age_s: 0.5}]
"""

TRIGGER: Final = """\
from pathlib import Path
from cellfeed import RetryPolicy, trigger


@trigger(column="BASE", retry={KeyError: RetryPolicy(attempts=1)})
def bill(row_key, *, cell):
    with Path("run/receipts.txt").open("a") as receipts:
        receipts.write(f"{row_key} {cell.body['fare_cents']}\\n")
"""

INDEX: Final = """\
table: trips_by_city
datastore: trips
column_defs:
  - column_name: BASE
    fields:
      - { field: city, type: string }
      - { field: fare_cents, type: int }
"""

CONSUMER: Final = """\
import json, subprocess
from confluent_kafka import Consumer

status = json.loads(subprocess.check_output(["cellfeed", "status", "--json"]))
[port] = [each["ports"]["kafka"] for each in status["processes"] if each["kind"] == "gateway"]
consumer = Consumer({
    "bootstrap.servers": f"127.0.0.1:{port}", "group.id": "me", "auto.offset.reset": "earliest"
})
consumer.subscribe(["trips.BASE"])
read = 0
while read < EXPECTED and (record := consumer.poll(20)):
    assert record.error() is None, record.error()
    read += 1
consumer.close()
print(read, "records")
"""


def live(home: Path) -> None:
    """Lives the day in ``home``, an empty directory. Raises AssertionError where a step is not as
    the guides say."""
    with ended(home / "run"):
        terminal = Terminal(home)
        _first_look(terminal)
        _first_cell(terminal)
        _file_and_index(terminal)
        _readers(terminal)
        _bad_cell(terminal)
        _mistakes(terminal)
        _backup_and_restore(terminal)
        terminal.chapter("good night")
        terminal.run("cellfeed down", sees="down")
        terminal.run("cellfeed down", sees="nothing runs")


def _first_look(terminal: Terminal) -> None:
    terminal.chapter("a first look")
    terminal.run("cellfeed --version", sees="cellfeed ")
    terminal.run("cellfeed --help", sees="demo")
    terminal.run("cellfeed demo", sees="6,433")


def _first_cell(terminal: Terminal) -> None:
    terminal.chapter("the first cell, and a trigger")
    terminal.file("cellfeed.yaml", CONFIG)
    terminal.file("receipts.py", TRIGGER)
    terminal.run("cellfeed config check cellfeed.yaml")
    terminal.run("cellfeed up --detach --config cellfeed.yaml", sees="up: run directory")
    put = f"cellfeed put {ROW} BASE 1"
    terminal.run(f"""{put} '{{"fare_cents": 1250, "city": "Berlin"}}'""", sees="stored")
    terminal.run(f"""{put} '{{"fare_cents": 1250, "city": "Berlin"}}'""", sees="exists")
    terminal.run(f"cellfeed get {ROW}", sees="1250")
    terminal.run("cellfeed tail --last 10 --seconds 1", sees=ROW)
    terminal.wait("cat run/receipts.txt", f"{ROW} 1250")


def _file_and_index(terminal: Terminal) -> None:
    terminal.chapter("a file, and an index")
    cities = ("Berlin", "Lagos", "Lima")
    lines = [f"trip-{n},{cities[n % 3]},{1000 + n}" for n in range(TRIPS)]
    (terminal.home / "trips.csv").write_text("id,city,fare_cents\n" + "\n".join(lines) + "\n")
    load = "cellfeed load trips.csv --column BASE --row-key-from id"
    terminal.run(f"{load} --dry-run", sees="fare_cents")
    terminal.run(f"{load} --yes", sees=f"{TRIPS}")
    terminal.run(f"{load} --yes", sees=f"{TRIPS}")
    terminal.file("trips_by_city.yaml", INDEX)
    terminal.run("cellfeed index create trips_by_city.yaml")
    terminal.run("cellfeed index build trips_by_city")
    terminal.run("cellfeed index status", sees="trips_by_city")
    terminal.run("cellfeed index query trips_by_city Lima --column BASE --limit 3", sees="Lima")


def _readers(terminal: Terminal) -> None:
    terminal.chapter("a Kafka consumer, and SQL")
    terminal.file("consumer.py", CONSUMER.replace("EXPECTED", str(TRIPS + 1)))
    terminal.run("python consumer.py", sees=f"{TRIPS + 1} records")
    count = 'cellfeed warehouse query "SELECT count(*) AS trips FROM latest"'
    terminal.wait(count, str(TRIPS + 1))
    terminal.wait("cellfeed verify --parquet run/warehouse", "all equal")
    terminal.wait("cellfeed status", "receipts")


def _bad_cell(terminal: Terminal) -> None:
    terminal.chapter("a cell that the trigger cannot take")
    said = terminal.run(f"""cellfeed put {BAD_ROW} BASE 1 '{{"city": "Lima"}}'""", sees="stored at")
    terminal.wait("cellfeed parked list", BAD_ROW)
    terminal.wait("cat run/logs/receipts.log", "KeyError: 'fare_cents'")
    cell = said.split()[-1]
    terminal.run(f'cellfeed parked skip receipts {cell} --reason "refunded by hand"')
    assert BAD_ROW not in terminal.run("cellfeed parked list")


def _mistakes(terminal: Terminal) -> None:
    terminal.chapter("mistakes")
    terminal.mistake("cellfeed putt", code=2, sees="putt")
    terminal.mistake("cellfeed get no-uuid", code=2, sees="no-uuid")
    terminal.mistake(f"cellfeed put {ROW} BASE 1 '{{\"fare_cents\": 1}}'", sees="another body")
    terminal.mistake(f"cellfeed put {ROW} BASE 2 '{{fare: 1'", code=2, sees="JSON")
    terminal.mistake("cellfeed tail --shard 99", sees="shards 0 to 3")
    terminal.mistake('cellfeed warehouse query "SELEC 1"', code=2, sees="SELEC")
    terminal.mistake("cellfeed parked retry nobody", sees="receipts")
    terminal.mistake("cellfeed verify --gateway 127.0.0.1:1", sees="127.0.0.1:1")
    terminal.mistake("cellfeed up --detach", code=2, sees="end it with: cellfeed down")
    terminal.file("wrong.yaml", "datastore: {shrads: 4}\n")
    terminal.mistake("cellfeed config check wrong.yaml", code=2, sees="did you mean")


def _backup_and_restore(terminal: Terminal) -> None:
    terminal.chapter("a backup, a lost disk, a restore")
    terminal.run("cellfeed backup create backups", sees=f"{TRIPS + 2} cells")
    terminal.run("cellfeed backup verify backups")
    terminal.run("cellfeed down")
    terminal.run("mv run/store lost")
    restore = "cellfeed restore backups --into run --config cellfeed.yaml"
    terminal.run(f'{restore} --reason "the disk failed"')
    terminal.run("cellfeed up --detach --config cellfeed.yaml")
    terminal.run(f"cellfeed get {ROW}", sees="1250")
    terminal.wait("cellfeed verify --parquet run/warehouse", "all equal")
