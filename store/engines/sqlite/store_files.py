"""The files of an embedded store: their names, and the cure where one is lost."""

from __future__ import annotations

from typing import Final

CELLS_FILE: Final = "node-0.sqlite3"
"""The file with the cells, in the datastore's directory."""

STATE_FILE: Final = "state.sqlite3"
"""The file with the state table, there too."""

INDEX_FILE: Final = "index.sqlite3"
"""The file with the entries of indexes, there too, once there is one."""

OTHERS: Final = (STATE_FILE, INDEX_FILE)

CURES: Final = {
    CELLS_FILE: (
        "Put the file back, with its -wal, or restore a backup into empty storage (`cellfeed backup"
        " restore`). To begin an empty store, move the other files away as well"
    ),
    STATE_FILE: (
        "Put the file back, with its -wal, or restore a backup into empty storage (`cellfeed backup"
        " restore`)"
    ),
    INDEX_FILE: (
        "Put the file back, with its -wal, or run `cellfeed index rebuild`: it builds every index"
        " again from the cells"
    ),
}
