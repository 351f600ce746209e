"""The OpenAPI document of a worker, as generators of other people read it: a Go client of
oapi-codegen, and a TypeScript client of openapi-ts. Each is generated, compiled under strict types,
and puts and gets a cell. ``make ecosystem`` runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cellfeed.store.datastore import Datastore
from tests.clients.grid.builds import Unavailable
from tests.ecosystem.builds import go_generator, node_generator
from tests.ecosystem.place import RUNS
from tests.support.worker_thread import worker_thread

pytestmark = RUNS

COMMAND_S = 600.0
"""One step: the first one compiles a generator from nothing."""


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def url(datastore: Datastore) -> Iterator[str]:
    with worker_thread(datastore) as served:
        yield served


def document_into(folder: Path, url: str) -> None:
    with urllib.request.urlopen(f"{url}/schema/openapi.json") as answer:
        (folder / "openapi.json").write_bytes(answer.read())


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOPROXY": "off"},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    assert "warn" not in done.stderr.lower(), done.stderr
    return done.stdout


def assert_put_and_got(said: str, datastore: Datastore, row: UUID, ref_key: int) -> None:
    found: dict[str, Any] = json.loads(said)
    cell = datastore.get_cell(row, "BASE", ref_key)
    assert cell is not None
    assert cell.body == {"fare_cents": 1250}
    assert found == {
        "outcome": "stored",
        "added_id": cell.added_id,
        "body": cell.body,
        "ref_key": ref_key,
        "error": "conflict",
    }


def test_a_generated_go_client_puts_and_gets_a_cell(
    datastore: Datastore, url: str, tmp_path: Path
) -> None:
    try:
        folder = Path(shutil.copytree(go_generator(), tmp_path / "go"))
    except Unavailable as reason:
        pytest.skip(str(reason))
    document_into(folder, url)
    generator = ("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "main")
    run(folder, *generator, "-o", "client.gen.go", "openapi.json")
    run(folder, "go", "vet", ".")
    row = uuid4()
    assert_put_and_got(run(folder, "go", "run", ".", url, str(row)), datastore, row, 1 << 40)


def test_a_generated_typescript_client_puts_and_gets_a_cell(
    datastore: Datastore, url: str, tmp_path: Path
) -> None:
    try:
        folder = Path(shutil.copytree(node_generator(), tmp_path / "node", symlinks=True))
    except Unavailable as reason:
        pytest.skip(str(reason))
    document_into(folder, url)
    generator = ("npx", "--no-install", "openapi-ts", "-i", "openapi.json", "-o", "client")
    run(folder, *generator, "-c", "@hey-api/client-fetch")
    strict = ("--strict", "--target", "es2022", "--module", "commonjs", "--skipLibCheck")
    run(folder, "npx", "--no-install", "tsc", *strict, "--outDir", "made", "put_and_get.ts")
    row = uuid4()
    said = run(folder, "node", "made/put_and_get.js", url, str(row))
    assert_put_and_got(said, datastore, row, 7)
