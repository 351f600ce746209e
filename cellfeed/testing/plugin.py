"""The pytest plugin: the fixture ``cellfeed_kit``. pytest loads it by its entry point in every
project of an environment, so it imports nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cellfeed.testing.kit import Kit

_MARKER = (
    "cellfeed_kit(datastore='trips', shards=4, coordination='store'): how the fixture cellfeed_kit"
    " is made; coordination may be 'zookeeper'"
)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def cellfeed_kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """An embedded store with the trigger runtime and its faults. At the end, a fault that was
    injected and never happened fails the test."""
    from cellfeed.testing.kit import Kit  # start-up: pytest loads this module in every run

    marker = request.node.get_closest_marker("cellfeed_kit")
    kit = Kit(tmp_path / "cellfeed-kit", **(marker.kwargs if marker else {}))
    try:
        yield kit
    finally:
        kit.close()
