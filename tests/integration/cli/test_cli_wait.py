"""``cellfeed wait``: its exit codes and its output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.definition import Definition, check_definition
from cellfeed.bridge.groups.history import Deed, entry
from cellfeed.bridge.outlets.find import outlets
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.cli.main import command_line
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound, WaitTimedOut
from tests.support.worker_thread import worker_thread

pytestmark = [pytest.mark.integration]

Run = Callable[..., Result]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[tuple[StoreCoordinator, Run]]:
    """Of a store with the trigger billing, and a function that runs a command at its worker."""
    with Datastore.open_embedded(tmp_path / "store", shards=1) as datastore:
        opened = StoreCoordinator(datastore.state)
        datastore.waits.find = outlets(datastore, opened)
        check_definition(datastore.state, "billing", Definition(["BASE"], "app:bill"))
        assert LagReader(datastore, opened).groups() == []
        with worker_thread(datastore) as url:

            def run(*words: str) -> Result:
                return CliRunner().invoke(
                    command_line(words[0]), [*words, "--url", url, "--datastore", "trips"]
                )

            yield opened, run


def test_a_command_waits_for_the_token_that_put_prints(
    coordinator: tuple[StoreCoordinator, Run],
) -> None:
    offsets, run = coordinator
    put = json.loads(run("put", str(uuid4()), "BASE", "1", "{}", "--json").stdout)
    assert put["token"].endswith(":0.0")

    late = run("wait", put["token"], "--trigger", "billing", "--timeout", "0.1")
    assert isinstance(late.exception, WaitTimedOut)
    assert "shard 0 is not begun" in str(late.exception)
    other = run("wait", put["token"], "--trigger", "biling")
    assert isinstance(other.exception, NotFound)
    assert "billing" in str(other.exception)

    offsets.commit_offsets("billing", {("trips", 0): CommittedOffset(1)})
    done = run("wait", put["token"], "--trigger", "billing")
    assert (done.exit_code, done.stdout) == (0, "trigger 'billing' has passed it\n")
    as_json = run("wait", put["token"], "--trigger", "billing", "--json")
    assert json.loads(as_json.stdout) == {
        "outlet": "trigger 'billing'",
        "parked": [],
        "skipped": [],
    }


def test_a_cell_that_is_skipped_is_a_failure_of_the_command(
    coordinator: tuple[StoreCoordinator, Run],
) -> None:
    offsets, run = coordinator
    put = json.loads(run("put", str(uuid4()), "BASE", "1", "{}", "--json").stdout)
    deed = Deed(
        group="billing", action="reset", by="a", because="b", at_us=1, before={0: 0}, after={0: 1}
    )
    offsets.commit_offsets("billing", {("trips", 0): CommittedOffset(1)}, entries=dict(entry(deed)))

    skipped = run("wait", put["token"], "--trigger", "billing")
    assert skipped.exit_code == 1
    assert "0/0 to 0/0 was skipped" in skipped.stdout
