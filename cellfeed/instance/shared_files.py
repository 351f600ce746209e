"""Which run directories have an instance over the files of one embedded datastore.

Two instances may share the files: their processes divide shards and offsets, as those of one do.
But somebody who mistypes a directory does not know that. So ``cellfeed up`` refuses files of
another instance that runs, unless --share-files is given.

The run directories are in a file beside the datastore's folder (``trips.instances`` beside
``trips/``). It is a list to look through, never the truth: an instance runs if its supervisor holds
its lock or one of its processes is alive. So after ``kill -9`` of everything nothing has to be
removed, and after ``kill -9`` of the supervisor alone the files still count as used.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import InvalidRequest


@contextmanager
def files_used(
    directory: RunDir, config: Config, share: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """Registers the instance of ``directory`` while the context lasts. Raises InvalidRequest where
    another one runs on the same files and they are not to be shared; with ``share`` it is said."""
    if config.datastore.clusters:
        yield  # each server knows its own datastore, and hosts may share clusters
        return
    place = (directory.inside(config.datastore.directory) / config.datastore.name).resolve()
    list_path = place.with_name(f"{place.name}.instances")
    list_path.parent.mkdir(parents=True, exist_ok=True)
    me = str(directory.path.resolve())
    with _locked(list_path) as file:
        others = [other for other in _read(file) if other != me and _runs(RunDir(Path(other)))]
        if others and not share:
            raise InvalidRequest(_refusal(place, RunDir(Path(others[0]))))
        for other in others:
            say(f"sharing the files of {place} with the instance in {other}")
        _write(file, [*others, me])
    try:
        yield
    finally:
        with _locked(list_path) as file:
            _write(file, [other for other in _read(file) if other != me])


def _runs(directory: RunDir) -> bool:
    return directory.supervisor_pid() is not None or any(
        directory.alive(entry.name) for entry in directory.processes()
    )


def _refusal(place: Path, other: RunDir) -> str:
    pid = other.supervisor_pid()
    runs = (
        f"an instance with run directory {other.path} (pid {pid})"
        if pid is not None
        else f"processes of an instance with run directory {other.path}, whose supervisor is gone,"
    )
    return (
        f"{runs} has the files of {place} in use: speak to it with --run-dir {other.path}, end it"
        f" with `cellfeed down --run-dir {other.path}`, or share its files with --share-files"
    )


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _read(file: BinaryIO) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="surrogateescape").splitlines()


def _write(file: BinaryIO, run_dirs: list[str]) -> None:
    file.truncate(0)
    file.write("".join(f"{each}\n" for each in run_dirs).encode(errors="surrogateescape"))
    file.flush()
