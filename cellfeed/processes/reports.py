"""Files that processes write about themselves, and that others read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from cellfeed.store.background import LoopTrouble

_S = TypeVar("_S", bound=msgspec.Struct)


class ProcessEntry(msgspec.Struct, frozen=True):
    """One line of processes.json."""

    name: str
    kind: str
    pid: int
    ports: dict[str, int]
    log: str


class Ready(msgspec.Struct, frozen=True):
    """The report of a process once it serves. ``began_s``, seconds from the machine's start,
    distinguishes it from a later process with the same pid. It stays true when somebody sets the
    clock."""

    pid: int
    began_s: float
    ports: dict[str, int]


class Troubles(msgspec.Struct, frozen=True):
    """The report of a process about its loops."""

    pid: int
    loops: list[LoopTrouble]


class Stopped(msgspec.Struct, frozen=True):
    """The work that a process has stopped, in words, while it does the rest."""

    pid: int
    reasons: list[str]


def said(path: Path, kind: type[_S]) -> _S | None:
    """The report that a process wrote there; None where it wrote nothing, or its file is
    damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def replace_file(path: Path, content: bytes) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    staged.write_bytes(content)
    staged.replace(path)
