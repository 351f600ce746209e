"""A store and a topic of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from tests.support.export_runs import SHARDS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(place: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(place, shards=SHARDS) as opened:
        yield opened
