"""Files of a commit as actions of the Delta protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from deltalake.transaction import AddAction, RemoveAction

from cellfeed.consumers.lake.contract import DataFile, LiveFile, NotCommitted
from cellfeed.consumers.lake.data_files import DAY


def added(file: DataFile, now_ms: int) -> AddAction:
    """A new file with its statistics."""
    statistics = {
        "numRecords": file.rows,
        "minValues": file.least,
        "maxValues": file.greatest,
        "nullCount": dict.fromkeys(file.least, 0),
    }
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values=_partition_values(file.path),
        modification_time=now_ms,
        data_change=True,
        stats=msgspec.json.encode(statistics).decode(),
    )


def removed(
    name: str,
    folder: Path,
    paths: Sequence[str],
    live: Callable[[], Sequence[LiveFile]],
    now_ms: int,
) -> list[RemoveAction]:
    """Live files that leave the table in ``folder``. Raises NotCommitted for one that left it
    before."""
    if not paths:
        return []
    has = {each.path for each in live()}
    if gone := [path for path in paths if path not in has]:
        raise NotCommitted(f"{name} does not have {gone[0]} any more")
    return [
        RemoveAction(
            path=str(Path(path).relative_to(folder)),
            data_change=True,
            deletion_timestamp=now_ms,
            partition_values=_partition_values(path),
        )
        for path in paths
    ]


def _partition_values(path: str) -> dict[str, str | None]:
    folder = Path(path).parent.name
    return {DAY: folder.partition("=")[2]} if folder.startswith(f"{DAY}=") else {}
