"""A process that writes cells until it is stopped: python -m tests.support.managed_writer CONFIG
WRITER THREADS.

Prints ``begin <n>`` before and ``ack <n> <shard> <added_id>`` after each put that was acknowledged;
one whose outcome is another is put again, as a client does.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from cellfeed.assembly.datastore import open_datastore
from cellfeed.instance.config_file import load_config
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.errors import CellfeedError
from tests.support.writer_process import body_of, row_of

_PAUSE_S = 0.05


def main() -> None:
    config, writer, threads = load_config(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    store = open_datastore(config, Path(sys.argv[1]).parent)
    out, stop = threading.Lock(), threading.Event()

    def say(text: str) -> None:
        with out:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def put(cell: NewCell) -> tuple[int, int] | None:
        """Where the cell is, once it is acknowledged."""
        try:
            [result] = store.put_new_cells([cell])
        except CellfeedError:
            return None
        if not result.acknowledged or result.shard is None or result.added_id is None:
            return None
        return result.shard, result.added_id

    def write(thread: int) -> None:
        number = thread
        while not stop.is_set():
            say(f"begin {number}")
            cell = new_cell(row_of(writer, number), "BASE", 1, body_of(writer, number))
            while (place := put(cell)) is None:
                time.sleep(_PAUSE_S)
            say(f"ack {number} {place[0]} {place[1]}")
            number += threads

    workers = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    sys.stdin.read()  # until the parent closes it
    stop.set()
    for worker in workers:
        worker.join()
    store.close()


if __name__ == "__main__":
    main()
