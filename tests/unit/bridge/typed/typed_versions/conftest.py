"""The store of the tests of typed versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import clear_failpoints


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    clear_failpoints()
