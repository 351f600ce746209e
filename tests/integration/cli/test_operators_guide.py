"""The operators' pages as they are written: their commands are run, one after the other, on
instances of the test's own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from cellfeed.cli.main import command_line
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from tests.support import local_mariadb
from tests.support.cli_instance import EMBEDDED, cellfeed, ended, processes
from tests.support.local_mariadb import MariaDB
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ERASED_IN_GUIDE = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
RESTORED_IN_GUIDE = "20263b88-d2b4-56b3-9b7f-e5d5a3b70b1c"
PAGES = Path(__file__).parents[3] / "docs" / "operate"


def commands(page: str, section: str | None = None) -> list[list[str]]:
    """Blocks of command lines of a page, or of one section of it."""
    text = (PAGES / page).read_text()
    if section is not None:
        found = re.search(
            rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
        )
        assert found is not None, (page, section)
        text = found[1]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, (page, section)
    return [block.splitlines() for block in blocks]


def run(lines: list[str], srv: Path) -> list[Result]:
    """Runs them with ``srv`` in the place of /srv; each must end well."""
    done: list[Result] = []
    for line in lines:
        program, *words = shlex.split(line.replace("/srv/", f"{srv}/"), comments=True)
        if words[:1] == ["up"]:
            up = cellfeed(*words, timeout_s=180)
            assert up.returncode == 0, up.stderr
        elif program == "cellfeed":
            result = CliRunner().invoke(command_line(words[0]), words)
            assert result.exit_code == 0, (line, result.output, result.exception)
            done.append(result)
        else:
            assert program == "mv", line
            subprocess.run([program, *words], check=True)
    return done


@pytest.fixture
def srv(tmp_path: Path) -> Iterator[Path]:
    """The folder that the guide calls /srv."""
    with ended(tmp_path / "cellfeed"):
        yield tmp_path


def cells(first: int, count: int) -> list[tuple[UUID, str, int, dict[str, int]]]:
    return [(UUID(int=number), "BASE", 1, {"n": number}) for number in range(first, first + count)]


def _client(run_dir: Path) -> Client:
    [worker] = [entry for entry in processes(run_dir).values() if entry["kind"] == "worker"]
    return Client([f"http://127.0.0.1:{worker['ports']['http']}"], "trips")


def put(run_dir: Path, first: int, count: int) -> None:
    with _client(run_dir) as client:
        assert all(result.acknowledged for result in client.put_cells(cells(first, count)))


def digests(run_dir: Path) -> list[object]:
    done = CliRunner().invoke(
        command_line("verify"), ["verify", "--run-dir", str(run_dir), "--json"]
    )
    assert done.exit_code == 0, done.output
    return [(shard["digests"], shard["cells"]) for shard in json.loads(done.output)["shards"]]


def test_an_embedded_datastore_is_backed_up_and_restored(srv: Path) -> None:
    (srv / "cellfeed.yaml").write_text(EMBEDDED)
    up = ["cellfeed up --detach --config /srv/cellfeed.yaml --run-dir /srv/cellfeed"]
    run(up, srv)
    put(srv / "cellfeed", 0, 499)
    with _client(srv / "cellfeed") as client:
        assert client.put_cell(RESTORED_IN_GUIDE, "BASE", 1, {"n": 499}).acknowledged
    (srv / "tmp").mkdir()  # the directory of trial restores is the operator's to make
    [backing_up] = commands("back-up.md")
    done = run(backing_up, srv)
    assert "500 cells" in done[0].output
    assert done[1].output.count("0 cells") == 1
    before = digests(srv / "cellfeed")
    embedded, _, raised, above, part = commands("restore.md")
    run(embedded, srv)
    assert digests(srv / "cellfeed") == before
    assert "0 put, 1 there already" in run(part, srv)[-1].output
    put(srv / "cellfeed", 500, 20)
    assert "are nobody's" in run(raised, srv)[0].output
    assert "at 90000" in run(above, srv)[0].output


def test_an_embedded_datastore_is_trimmed_and_a_row_of_it_erased(srv: Path) -> None:
    (srv / "cellfeed.yaml").write_text(EMBEDDED)
    run(["cellfeed up --detach --config /srv/cellfeed.yaml --run-dir /srv/cellfeed"], srv)
    [trimming] = commands("trim.md")
    trimmed = run(
        [line for line in trimming if "--shard" not in line], srv
    )  # those of all shards: none of them has so many cells
    assert "nothing was done" in trimmed[0].output
    [(_, erasing)] = commands("erase.md")
    [(_, scrubbing)] = commands("scrub.md")
    with _client(srv / "cellfeed") as client:
        assert client.put_cell(ERASED_IN_GUIDE, "BASE", 1, {"name": "somebody"}).acknowledged
    assert "1 bodies erased" in run([erasing], srv)[0].output
    assert (
        "node-0.sqlite3" in run(["cellfeed down --run-dir /srv/cellfeed", scrubbing], srv)[1].output
    )


CLUSTERS = """
datastore:
  name: trips
  shards: 4
  clusters: [{{name: c1, nodes: [{nodes}]}}]
workers: [{{port: 0}}]
gateways: []
"""


def test_clusters_are_restored_their_nodes_replaced_and_their_schema_upgraded(
    srv: Path, servers: list[MariaDB]
) -> None:
    nodes = ", ".join(
        f'{{name: c1-{node}, url: "{server.url}"}}'
        for node, server in zip("abc", servers, strict=True)
    )
    (srv / "clusters.yaml").write_text(CLUSTERS.format(nodes=nodes))
    (srv / "cellfeed").mkdir()
    (srv / "cellfeed" / "config.yaml").write_text("datastore: {shards: 4}")
    with Datastore.open_embedded(srv / "cellfeed" / "store", "trips", 4) as store:
        assert all(result.acknowledged for result in store.put_cells(cells(0, 200)))
        before = verify([StorePlace(store)]).as_json()["shards"]
    run(["cellfeed backup create /srv/backups --run-dir /srv/cellfeed"], srv)
    try:
        restored = run(commands("restore.md")[1], srv)
        assert "c1-a" in restored[1].output
        minion, master = commands("grow.md", "Replacing a node")
        _replaced(servers[2])
        run(minion, srv)
        servers[0].kill()
        promoted, copied = master
        run([promoted], srv)
        _replaced(servers[0])
        run([copied], srv)
        [upgrading] = commands("run.md", "Upgrading")
        run(upgrading, srv)
        wait_until(
            lambda: (
                digests(srv / "cellfeed") == [(each["digests"], each["cells"]) for each in before]
            ),
            "all cells are shown",
        )
        put(srv / "cellfeed", 200, 10)
    finally:
        CliRunner().invoke(command_line("down"), ["down", "--run-dir", str(srv / "cellfeed")])


def _replaced(server: MariaDB) -> None:
    """A bare server takes its place, and its port."""
    server.kill()
    shutil.rmtree(server.directory)
    local_mariadb.new_server(
        server.directory, server.server_id
    )  # its files; the port is the one that it had
    server.start()
