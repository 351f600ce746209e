"""Commands as a person can type them: in this folder, with this PATH, for this run directory."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from cellfeed.cli.instance import DEFAULT_RUN_DIR


def program() -> str:
    """``cellfeed`` where PATH leads to this one; else its path."""
    path = Path(sys.argv[0])
    if path.name != "cellfeed":  # python -m cellfeed, or a process of its own
        return "cellfeed"
    found = shutil.which("cellfeed")
    if found is not None and path.exists() and Path(found).samefile(path):
        return "cellfeed"
    return shlex.quote(str(from_here(path)))


def run_dir_option(directory: Path) -> str:
    """`` --run-dir DIRECTORY`` with a space before it; empty for the one that commands take
    without."""
    usual = Path(os.environ.get("CELLFEED_RUN_DIR") or DEFAULT_RUN_DIR).absolute()
    return "" if directory.absolute() == usual else f" --run-dir {shown(directory)}"


def shown(path: Path) -> str:
    """A path as one word of a command."""
    return shlex.quote(str(from_here(path)))


def from_here(path: Path) -> Path:
    """Relative where it lies in the current folder."""
    here, whole = Path.cwd(), path.absolute()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole
