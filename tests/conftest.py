"""Fixtures that every kind of test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from store.datastore import Datastore
from store.failpoints import clear_failpoints

settings.register_profile("fast", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.register_profile("deep", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    """A failpoint armed by one test must never act in the next."""
    yield
    clear_failpoints()


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    """An empty embedded datastore ``trips`` of 16 shards."""
    with Datastore.open_embedded(tmp_path / "store") as opened:
        yield opened
