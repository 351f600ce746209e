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

from cellfeed.store.engines.sqlite.open import CELLS_FILE, INDEX_FILE
from cellfeed.store.errors import OutcomeUnknown
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.left.between")


def staged_restore(place: Path) -> Path:
    """Where a restore to ``place`` works until it is whole."""
    return place.with_name(f"{place.name}.restoring")


def remove_left(place: Path) -> None:
    """Removes them. Only a folder that a restore made is removed. Raises OutcomeUnknown: the row's
    cells in the store are erased already, so the erasure is to be repeated."""
    staged = staged_restore(place)
    try:
        for path in place.glob(f"{INDEX_FILE}.replaced-*"):
            path.unlink()
        failpoint("sqlite.left.between")
        if (staged / CELLS_FILE).exists():
            # The file that names the datastore of the folder goes last.
            for path in staged.iterdir():
                if path.name != CELLS_FILE and not path.is_dir():
                    path.unlink()
            shutil.rmtree(staged)
    except OSError as error:
        raise OutcomeUnknown(
            f"{error.filename}: {error.strerror}: bodies that were erased may be in it; remove it"
        ) from error
