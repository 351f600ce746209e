"""Files beside those of an embedded store that nobody reads, and that may have bodies of an erased
row.

    trips.restoring             a restore that was killed; the next one would begin it again
    index.sqlite3.replaced-…    the file that ``cellfeed index rebuild`` moved aside

An erasure removes both. A process that has the store open shares its lock, and a restore holds that
lock alone: so no restore is under way. Killed in between, the next erasure, or the same one again,
removes the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, INDEX_FILE
from cellfeed.store.errors import OutcomeUnknown
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.left.between")


def staged_restore(place: Path) -> Path:
    """Where a restore to ``place`` works until it is whole."""
    return place.with_name(f"{place.name}.restoring")


def remove_staged(staged: Path) -> None:
    """Removes the files that a killed restore left there. Leaves everything that no restore made: a
    folder of one has the file with the cells, which goes last, or is empty. Raises OSError."""
    if staged.is_symlink() or not staged.is_dir():
        return
    names = [path.name for path in staged.iterdir()]
    if names and CELLS_FILE not in names:
        return
    for path in staged.iterdir():
        if path.name != CELLS_FILE and not path.is_dir():
            path.unlink()
    shutil.rmtree(staged)


def remove_left(place: Path) -> None:
    """Removes them. Raises OutcomeUnknown: the row's cells in the store are erased already, so the
    erasure is to be repeated."""
    staged = staged_restore(place)
    try:
        for path in place.glob(f"{INDEX_FILE}.replaced-*"):
            path.unlink()
        failpoint("sqlite.left.between")
        remove_staged(staged)
    except OSError as error:
        raise OutcomeUnknown(
            f"{error.filename}: {error.strerror}: bodies that were erased may be in it; remove it"
        ) from error
