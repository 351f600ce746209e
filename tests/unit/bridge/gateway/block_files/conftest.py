"""A log and the files of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.gateway.log.block_files import BlockFiles
from tests.support.block_logs import Log, opened


@pytest.fixture
def log() -> Log:
    made = Log()
    made.put(40)
    return made


@pytest.fixture
def open_files(tmp_path: Path, log: Log) -> Iterator[Callable[..., BlockFiles]]:
    made: list[BlockFiles] = []

    def make(**arguments: Any) -> BlockFiles:
        made.append(opened(tmp_path, arguments.pop("log", log), **arguments))
        return made[-1]

    yield make
    for each in made:
        if each._work._thread.is_alive():
            each.close()
