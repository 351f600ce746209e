"""A folder for an instance's own servers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_instance import ended
from tests.support.own_servers import servers_in


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that MariaDB's own user can get at, which pytest's are not. Servers that still run
    in it at the end are killed."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-servers-"))
    directory.chmod(0o755)
    try:
        with ended(directory / "run"):
            yield directory
    finally:
        for process in servers_in(directory):
            process.kill()
        shutil.rmtree(directory)
