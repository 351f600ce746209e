"""Records the steps of a real process in a folder: strace's account of its writes, syncs, names and
spoken lines, in order.

``record`` runs a program and returns the steps that :mod:`tests.durability.disk` replays. Only
files below the folder count; the program's standard output comes as :class:`Said`, between the
steps that came before and after.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CALLS: Final = (
    "openat,creat,write,pwrite64,writev,pwritev,pwritev2,lseek,ftruncate,fallocate,fsync,"
    "fdatasync,sync_file_range,close,dup,dup2,dup3,rename,renameat,renameat2,link,linkat,unlink,"
    "unlinkat,mkdir,mkdirat,rmdir,copy_file_range,sendfile,fork,vfork"
)
PROGRAM_TIMEOUT_S: Final = 120.0

_LINE: Final = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(?:<.*>)?(?: .*)?")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD: Final = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)(?:>|$)")


@dataclass(frozen=True)
class Opened:
    """A file was opened, and made or emptied where the flags say so."""

    path: str
    file: int
    creates: bool
    empties: bool


@dataclass(frozen=True)
class Written:
    file: int
    offset: int
    content: bytes


@dataclass(frozen=True)
class Truncated:
    file: int
    size: int


@dataclass(frozen=True)
class Synced:
    """A file, or a folder by its path, is on disk."""

    file: int
    folder: str | None


@dataclass(frozen=True)
class Named:
    """A change of names: ``kind`` is make, link, rename or remove."""

    kind: str
    path: str
    source: str = ""


@dataclass(frozen=True)
class Said:
    line: str


Step = Opened | Written | Truncated | Synced | Named | Said


def why_not() -> str | None:
    """Why nothing can be recorded here; None when it can."""
    return (
        None
        if shutil.which("strace")
        else "no strace on this machine: `make services` installs it on Debian"
    )


def record(module: str, arguments: Sequence[str], folder: Path, trace: Path) -> list[Step]:
    """Runs ``python -m module arguments`` to its end and returns its steps below ``folder``."""
    command = [
        "strace",
        "-f",
        "-y",
        "-xx",
        "-s",
        str(4 << 20),
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
        "-o",
        str(trace),
    ]
    program = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: PTH109 (of this run's tree)
    done = subprocess.run(
        [*command, *program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return list(_Reader(str(folder)).steps(trace))


@dataclass
class _Handle:
    file: int
    path: str
    appends: bool
    offset: int = 0
    is_folder: bool = False


class _Reader:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open: dict[int, _Handle] = {}
        self._files = 0
        self._sizes: dict[int, int] = {}
        self._by_path: dict[str, int] = {}
        self._unfinished: dict[str, str] = {}

    def steps(self, trace: Path) -> Iterator[Step]:
        with trace.open() as lines:
            for line in lines:
                thread, _, call = line.rstrip("\n").partition(" ")
                call = call.strip()
                if call.endswith("<unfinished ...>"):
                    self._unfinished[thread] = call.removesuffix("<unfinished ...>")
                    continue
                if resumed := re.match(r"<\.\.\. \w+ resumed>", call):
                    call = self._unfinished.pop(thread) + call[resumed.end() :]
                found = _LINE.fullmatch(call)
                if found is not None and int(found[3]) >= 0:
                    yield from self._step(found[1], found[2], int(found[3]))

    def _step(self, name: str, arguments: str, result: int) -> Iterator[Step]:
        assert name not in (
            "fork",
            "vfork",
            "sendfile",
            "copy_file_range",
            "pwritev2",
            "fallocate",
        ), f"{name} is not replayed"
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
        if name in ("openat", "creat"):
            yield from self._opened(self._paths(arguments)[0], arguments, result)
        elif name in (
            "rename",
            "renameat",
            "renameat2",
            "link",
            "linkat",
            "unlink",
            "unlinkat",
            "mkdir",
            "mkdirat",
            "rmdir",
        ):
            yield from self._named(name, self._paths(arguments))
        elif name.startswith("dup"):
            copied = _FD.match(arguments)
            assert copied is not None, f"{name} without a descriptor: {arguments}"
            assert int(copied[1]) not in self._open, (
                "a duplicate of a file below the folder is not replayed"
            )
        elif (fd := _FD.match(arguments)) is not None:
            yield from self._of_file(name, int(fd[1]), arguments, b"".join(texts), result)

    def _paths(self, arguments: str) -> list[str]:
        """The paths that a call names: each is relative to the folder handle in front of it, where
        there is one."""
        found, base = [], ""
        for handle, text in re.findall(
            r'(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>|"((?:\\x[0-9a-f]{2})*)"', arguments
        ):
            if text:
                path = bytes.fromhex(text.replace("\\x", "")).decode()
                found.append(os.path.normpath(os.path.join(base, path)))  # noqa: PTH118 (paths as the kernel got them)
            else:
                base = bytes.fromhex(handle.replace("\\x", "")).decode()
        return found

    def _is_below(self, path: str) -> bool:
        return path == self._folder or path.startswith(f"{self._folder}/")

    def _opened(self, path: str, arguments: str, fd: int) -> Iterator[Step]:
        self._open.pop(fd, None)
        if not self._is_below(path):
            return
        is_folder = "O_DIRECTORY" in arguments or Path(path).is_dir()
        if is_folder:
            self._open[fd] = _Handle(-1, path, appends=False, is_folder=True)
            return
        creates = "O_CREAT" in arguments and path not in self._by_path
        if path not in self._by_path:
            self._files += 1
            self._by_path[path] = self._files
        file = self._by_path[path]
        empties = "O_TRUNC" in arguments
        if empties:
            self._sizes[file] = 0
        self._open[fd] = _Handle(file, path, "O_APPEND" in arguments)
        yield Opened(path, file, creates, empties)

    def _named(self, name: str, paths: list[str]) -> Iterator[Step]:
        if not any(map(self._is_below, paths)):
            return
        kind = {
            "rename": "rename",
            "link": "link",
            "unlink": "remove",
            "rmdir": "remove",
            "mkdir": "make",
        }[re.sub("at2?$", "", name)]
        source, path = (paths[0], paths[1]) if kind in ("rename", "link") else ("", paths[0])
        if kind == "rename" and source in self._by_path:
            self._by_path[path] = self._by_path.pop(source)
        elif kind == "link":
            self._by_path[path] = self._by_path[source]
        elif kind == "remove":
            self._by_path.pop(path, None)
        yield Named(kind, path, source)

    def _of_file(
        self, name: str, fd: int, arguments: str, content: bytes, result: int
    ) -> Iterator[Step]:
        if fd == 1 and name == "write":
            yield from (Said(line) for line in content.decode().splitlines())
        handle = self._open.get(fd)
        if handle is None:
            return
        if name == "close":
            del self._open[fd]
        elif name in ("fsync", "fdatasync"):
            yield Synced(handle.file, handle.path if handle.is_folder else None)
        elif name == "lseek":
            handle.offset = result
        elif name == "ftruncate":
            size = int(arguments.rpartition(", ")[2])
            self._sizes[handle.file] = size
            yield Truncated(handle.file, size)
        elif name in ("write", "writev", "pwrite64", "pwritev"):
            content = content[:result]
            assert len(content) == result, f"strace cut a {name} of {result} bytes"
            offset = (
                int(arguments.rpartition(", ")[2])
                if name.startswith("p")
                else self._sizes.get(handle.file, 0)
                if handle.appends
                else handle.offset
            )
            if not name.startswith("p"):
                handle.offset = offset + result
            self._sizes[handle.file] = max(self._sizes.get(handle.file, 0), offset + result)
            yield Written(handle.file, offset, content)
        else:
            assert name == "sync_file_range", f"{name} is not replayed"
