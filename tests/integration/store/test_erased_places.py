"""Every place in the guide's table is planted with personal data, erased, and searched: by the test
here, or by the one that its line names."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.typed.rejected_cells import forget_row
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.indexes import records
from tests.support.personal_data import PLACES, SHARDS, files_with

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
HERE = f"tests/integration/store/{Path(__file__).name}"
NAMESPACE = UUID("0c6d3b4e-7a55-4f5e-9a55-7b7d2f1f0a32")


def table() -> dict[str, str]:
    """By place, which test searches it."""
    text = (ROOT / "docs" / "operate" / "erase.md").read_text()
    section = text[text.index("**Every place of a datastore**") :]
    lines = [
        line.strip("| ").split(" | ")
        for line in section[section.index("| --- |") :].partition("\n\n")[0].splitlines()[1:]
    ]
    return {line[0]: line[2].strip("`") for line in lines}


def test_the_guide_lists_every_place_that_is_planted_and_names_a_test_for_each() -> None:
    places = table()
    assert {place for place, test in places.items() if test == HERE} == set(PLACES)
    for test in places.values():
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), test
        assert not name or re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), (
            test
        )


def test_no_file_has_a_planted_body_after_erasures_and_a_scrub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "GRACE_S", 0.0)
    planted = {
        place: (uuid5(NAMESPACE, place), f"Jane Roe {number} of Harbour Street")
        for number, place in enumerate(PLACES)
    }
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore:
        datastore.when_erased(ParkedCells(datastore.state).forget_row)
        datastore.when_erased(partial(forget_row, datastore.state))
        datastore.put_cells(
            [
                (UUID(int=number), "BASE", 1, {"secret": f"somebody else {number}"})
                for number in range(50)
            ]
        )
        for place, plant in PLACES.items():
            plant(datastore, *planted[place])
        assert all(files_with(tmp_path, secret) for _, secret in planted.values()), (
            "all are there before"
        )
        for row, _ in planted.values():
            datastore.erase_row(row)
        assert all(datastore.get_row(row) == {} for row, _ in planted.values())
    scrub_files(tmp_path / "trips")
    assert {
        place: found
        for place, (_, secret) in planted.items()
        if (found := files_with(tmp_path, secret))
    } == {}
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore:
        starts = {shard: head.log_start for shard, head in datastore.heads().items()}
        kept = [
            cell.body
            for shard, start in starts.items()
            for cell in datastore.get_cells_for_shard(shard, start, 1_000).cells
            if cell.body_json != b"null"
        ]
    assert kept, "others are there"
